//! Images from registries: who is asked for an image, with which credentials, and how its bytes arrive.
//!
//! The walk of a pull: `route` (which places, in which order) → `credentials` → `session` and `token` (requests that
//! prove who asks) → `resolve` (index, manifest, configuration, each verified) → `download` (each layer once, whoever
//! wants it, resumed when a connection breaks) → the image store, which unpacks while the bytes arrive. `judge`, `retry`
//! and `problem` say what a failure means.

mod challenge;
mod credentials;
mod download;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod judge;
mod problem;
mod pull;
mod resolve;
mod retry;
mod route;
mod session;
mod settings;
mod token;
mod transport;

pub use credentials::Login;
pub use problem::{PullError, PullFailure};
pub(crate) use pull::Puller;
pub(crate) use route::named_by_call;
pub use settings::{
    Credentials, EVERY_HOST, Host, Mirror, MirrorError, Registries, Rewrite, Secret,
};

pub use crate::image::is_host;
