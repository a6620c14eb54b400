//! runtime-fake

pub mod image;
pub mod net;
