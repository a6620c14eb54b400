//! The node's certificates, which the cluster signs: the first client certificate, and rotation of the client and serving
//! certificates.

pub(crate) mod bootstrap;
mod request;
pub(crate) mod rotation;
pub(crate) mod store;
pub(crate) mod validity;
