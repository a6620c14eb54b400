//! runtime-fake

pub mod image;
pub mod net;
mod service;
