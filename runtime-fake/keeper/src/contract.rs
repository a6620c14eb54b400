//! What a daemon and its keepers exchange: plans, messages and their frames, descriptors and locks. No process is made here.
//!
//! The connection is a unix socket in the sandbox's directory, with JSON documents in frames (`frame`); file descriptors ride on them, any
//! number, on as many messages as they need. A new daemon connects to the same socket and asks for the state. A connection that
//! fails in one direction ends in both, and every call on it fails; the daemon gives each call a deadline by its kind.
//!
//! A keeper holds a lock on its standard output, `keeper.lock`, for life (`liveness`). The lock belongs to the process: no fork
//! inherits it. The daemon declares a pod lost only if the lock is free and nothing listens on the socket; it retries after any other
//! failure, and the pod is not ready meanwhile.
//!
//! `plan` is complete: the launcher decides nothing. A new field goes there, is decided in `launch` of the runtime, and is carried
//! out in `setup`. `criu` has the requests of a dump over criu's own protocol: the keeper starts `criu swrk`, and the daemon talks to it.

pub mod criu;
pub mod frame;
pub mod host;
pub mod liveness;
pub mod open_files;
pub mod orphan;
pub mod plan;
pub mod protocol;
