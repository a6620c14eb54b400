//! What can go wrong in a call, whatever its cause.

use image::ImageError;
use keeper::{
    cgroup::{CgroupError, InvalidCgroup},
    failure::Failure,
};
use network::NetError;

use crate::{launch::Invalid, store::Refused};

/// Why a call failed. `service/error.rs` chooses the gRPC code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The request itself is wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// It does not fit the state that things are in.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// An image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A network.
    #[error("failed to {what} the pod's network")]
    Net {
        what: &'static str,
        source: NetError,
    },
    /// A network of plugins.
    #[error("failed to {what} the pod's network")]
    Cni {
        what: &'static str,
        source: network::cni::CniError,
    },
    /// There is no network for pods: why.
    #[error("pods have no network; pods of the host's network can be run: {0}")]
    NoNetwork(String),
    /// A port of the host.
    #[error(transparent)]
    Port(#[from] super::ports::PortError),
    /// The pod's keeper said no.
    #[error(transparent)]
    Keeper(#[from] Failure),
    /// A limit that is wrong.
    #[error(transparent)]
    Limit(#[from] InvalidCgroup),
    /// A cgroup of the kernel's, which said no.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A file or process of the daemon's own.
    #[error("failed to {what}")]
    Io {
        what: &'static str,
        source: std::io::Error,
    },
    /// A container's keeper cannot be asked.
    #[error("container {id} is unknown, {why}: stop the pod sandbox, which ends it")]
    Unreachable {
        id: crate::id::ContainerId,
        why: String,
    },
    /// Nothing answers at a port of a pod: why.
    #[error("{0}")]
    NoAnswer(String),
    /// There is no URL for a client of streams.
    #[error(transparent)]
    NoUrl(#[from] crate::streaming::url_error::UrlError),
    /// The box, or this runtime on it, cannot do it.
    #[error("{0}")]
    Unable(String),
    /// It took too long.
    #[error("{what} did not end within {seconds} s")]
    Timeout { what: String, seconds: u64 },
}

/// Says what was being done when the system refused.
pub(crate) fn io(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Io { what, source }
}
