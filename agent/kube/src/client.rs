//! A client of an API server: kubeconfigs, requests, and reflectors (list and watch).
//!
//! It uses the HTTPS client that also pulls images. Objects are JSON values as the server sent them, so that unknown fields are
//! preserved; the few types that the agent needs are decoded where they are used.

mod backoff;
mod counts;
mod error;
mod exec;
mod exec_credential;
mod files;
mod insecure;
mod kubeconfig;
mod kubeconfig_file;
mod rate;
mod reflector;
mod requests;
mod shape;
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
