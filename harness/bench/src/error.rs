//! Why a benchmark failed.

use tonic::Status;

/// Why a benchmark failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A runtime does not answer.
    #[error("the runtime at {endpoint} does not answer Version: {}", status.message())]
    NoRuntime {
        /// Its socket.
        endpoint: String,
        /// Its answer.
        status: Box<Status>,
    },
    /// The containers have no image.
    #[error("there is no image for containers: {0}")]
    NoImage(String),
    /// A call failed.
    #[error("{call} failed at {endpoint}: {}", status.message())]
    Refused {
        /// The call.
        call: &'static str,
        /// The runtime's socket.
        endpoint: String,
        /// The runtime's answer.
        status: Box<Status>,
    },
    /// Something that was waited for did not happen.
    #[error("failed to wait: {0}")]
    Wait(String),
    /// An operation of the benchmark itself failed.
    #[error("failed to {doing}")]
    Io {
        /// The operation.
        doing: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The benchmark was interrupted; everything that it made is removed.
    #[error("interrupted")]
    Interrupted,
}
