//! The container runtime in the agent's own words. Nothing outside `cri/` names a protobuf type.

pub mod grpc;

/// The container runtime.
pub trait Cri: Send + Sync {}

/// Why no runtime could be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing answers there.
    #[error("no container runtime answers at {endpoint}: {cause}; start one with `crib runtime`, or name another with --runtime-endpoint")]
    NotReachable {
        /// Where it was looked for.
        endpoint: String,
        /// What the operating system said.
        cause: String,
    },
}
