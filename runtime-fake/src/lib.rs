//! runtime-fake

pub mod net;
