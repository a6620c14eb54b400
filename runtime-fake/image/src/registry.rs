//! Pulls images from registries: selects the endpoints and credentials, and downloads documents and layers.
//!
//! The path of a pull: `endpoint` (which registries, in which order) → `credentials` → `session`, `peer` and
//! `token` (authenticated requests) → `resolve` (index, manifest, configuration, each verified) → `download`
//! (each layer once for all pulls, resumed when a connection breaks) → the image store, which unpacks while it
//! downloads. `peer` and `retry` classify failures.

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
mod turns;

pub use credentials::Login;
pub use endpoint::{Endpoint, named_by_call};
pub use pull::Puller;
pub use settings::{
    Credentials, EVERY_HOST, Host, Mirror, MirrorError, Registries, Rewrite, Secret,
};
