//! Images from registries: who is asked for an image, with which credentials, and how its bytes arrive.

mod settings;

pub use settings::{
    Credentials, EVERY_HOST, Host, Mirror, MirrorError, Registries, Rewrite, Secret,
};

pub use crate::image::is_host;
