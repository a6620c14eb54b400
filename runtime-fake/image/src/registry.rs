//! Images from registries: who is asked for an image, with which credentials, and how its bytes arrive.
//!
//! The walk of a pull: `endpoint` (which places, in which order) → `credentials` → `session`, `peer` and `token` (requests that
//! prove who asks) → `resolve` (index, manifest, configuration, each verified) → `download` (each layer once, whoever
//! wants it, resumed when a connection breaks) → the image store, which unpacks while the bytes arrive. `peer` and
//! `retry` say what a failure means.

mod challenge;
mod credentials;
mod download;
mod endpoint;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod peer;
mod pull;
mod resolve;
mod retry;
mod session;
mod settings;
mod token;
mod transport;

pub use credentials::Login;
pub use endpoint::{Endpoint, named_by_call};
pub use pull::Puller;
pub use settings::{
    Credentials, EVERY_HOST, Host, Mirror, MirrorError, Registries, Rewrite, Secret,
};
