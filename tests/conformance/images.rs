//! Images, and how they are pulled.

pub(crate) mod image;
pub(crate) mod image_names;
pub(crate) mod pull;
