//! The error of an operation.

use image::ImageError;
use keeper::kernel::cgroup::{CgroupError, InvalidCgroup};
use keeper::kernel::failure::Failure;
use network::NetError;

use crate::{launch::Invalid, store::StateError};

/// Why an operation failed. `service/error.rs` maps it to a gRPC code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The request does not fit the current state.
    #[error(transparent)]
    State(#[from] StateError),
    /// An image operation failed.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A network operation failed.
    #[error("failed to {what} the pod's network")]
    Net { what: &'static str, source: NetError },
    /// A CNI operation failed.
    #[error("failed to {what} the pod's network")]
    Cni { what: &'static str, source: network::cni::CniError },
    /// There is no pod network, for this reason.
    #[error("pod network is unavailable; only pods on the host's network can run: {0}")]
    NoNetwork(String),
    /// A host port is unavailable.
    #[error(transparent)]
    Port(#[from] super::ports::PortError),
    /// The pod's keeper failed.
    #[error(transparent)]
    Keeper(#[from] Failure),
    /// A limit is invalid.
    #[error(transparent)]
    Limit(#[from] InvalidCgroup),
    /// A cgroup operation failed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A copy of a container's files failed.
    #[error(transparent)]
    Copy(#[from] file_copy::CopyError),
    /// A file or process operation of the daemon failed.
    #[error("failed to {what}")]
    Io { what: &'static str, source: std::io::Error },
    /// A container's keeper is unreachable.
    #[error("container {id} is unknown, {why}: stop the pod sandbox, which ends it")]
    Unreachable { id: crate::id::ContainerId, why: String },
    /// The connection to a pod's port failed.
    #[error("{0}")]
    NoAnswer(String),
    /// A URL for a stream client is unavailable.
    #[error(transparent)]
    NoUrl(#[from] crate::streaming::token::UrlError),
    /// This machine, or the runtime on it, does not support the request.
    #[error("{0}")]
    Unable(String),
    /// The container's behaviour script makes this call fail.
    #[error("the container's behaviour script says {0}")]
    Scripted(&'static str),
    /// The operation timed out.
    #[error("{what} did not end within {seconds} s")]
    Timeout { what: String, seconds: u64 },
}

/// Wraps an I/O error with the operation that failed.
pub(crate) fn io(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Io { what, source }
}
