//! **runtime-fake**: a container runtime that speaks CRI v1 over real namespaces and processes.
//!
//! Read in this order: `server` opens everything and serves; `service` takes the calls; `runtime` walks between the
//! records and the processes; `launch` decides how a container is set up; `keeper` does it.
//!
//! # Tasks
//! | task | owns | in | out |
//! |---|---|---|---|
//! | store (one) | every record, their files | changes (channel) | state (watch), news (broadcast) |
//! | keeper connection (a pod) | one connection | calls (channel) | answers (oneshot), news (channel) |
//! | follower (a pod) | nothing | a keeper's news | changes to the store |
//! | stream server (one) | tokens | clients with a URL | their streams to processes and pods |
//! | stream client (a connection, and a forwarded port) | one connection | bytes | bytes |
//! | operation (a call) | nothing | a request | an answer; it goes on when its client is gone |

mod cdi;
mod cgroup;
mod checkpoint;
mod config;
mod container;
mod criu;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod handler;
mod host;
mod host_devices;
mod id;
mod instance;
mod isolation;
mod keeper;
mod launch;
mod log;
mod lsm;
mod open_files;
mod recovery;
mod resolv;
mod runtime;
mod sandbox;
mod server;
mod service;
mod stats;
mod store;
mod streaming;
mod trouble;

pub use config::{Config, Streams};
pub use handler::{Handler, Handlers, NotAName};
pub use instance::instance_name;
pub use isolation::{EnterError, Isolation, IsolationWish, UnknownIsolation, enter};
pub use keeper::{Deadlines, keep_descriptors, keeper_main};
pub use open_files::{TooFewFiles, raise_open_files};
pub use server::{ServeError, delete_trash, longest_end, serve};
pub use store::OpenError;

/// An error with its causes, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
