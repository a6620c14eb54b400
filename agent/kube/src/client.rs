//! A client of an API server: where it is and who the client is, requests, and collections that are followed.
//!
//! It is crib's own, over the HTTPS client that images are pulled with: objects are JSON values as the server sent them, so that
//! nothing of them is lost, and the few types that matter are decoded where they are used.

mod any_server;
mod backoff;
mod counts;
mod error;
mod exec;
mod exec_credential;
mod files;
mod kubeconfig;
mod kubeconfig_file;
mod rate;
mod reflector;
mod requests;
mod transport;
mod watch;

pub(crate) use backoff::Backoff;
pub use counts::RequestCounts;
pub use error::ApiError;
pub use kubeconfig::{Connection, KubeconfigError};
pub use rate::Rate;
pub(crate) use reflector::Key;
pub use reflector::{Change, Reflector};
pub use requests::{ApiClient, PatchKind};
