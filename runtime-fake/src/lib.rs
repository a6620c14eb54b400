//! **runtime-fake**: a container runtime that speaks CRI v1 over real namespaces and processes.
//!
//! Reading order: `server` opens everything and serves; `service` takes the calls; `runtime` executes them with
//! the records and the keepers; `launch` decides how a container is set up; `keeper_client` calls the pod's
//! keeper, which is the package `keeper`. Images, pod networks and stream protocols are the packages `image`,
//! `network` and `stream`.
//!
//! # Tasks
//! | task | owns | in | out |
//! |---|---|---|---|
//! | store (one) | every record, their files | changes (channel) | state (watch), events (broadcast) |
//! | keeper connection (a pod) | one connection | calls (channel) | answers (oneshot), notifications (channel) |
//! | reach (a pod) | the way to its keeper | the keeper's notifications | changes to the store |
//! | stream server (one) | tokens | clients with a URL | their streams to processes and pods |
//! | stream client (a connection, and a forwarded port) | one connection | bytes | bytes |
//! | Services (a thread, while a client serves some) | the ports of Services, the DNS server | tables (channel) | connections to pods |
//! | operation (a call) | nothing | a request | an answer; it continues when its client disconnects |

mod cdi;
mod checkpoint;
mod config;
mod container;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod handler;
mod id;
mod instance;
mod isolation;
mod keeper_client;
mod keepers;
mod launch;
mod recovery;
mod resolv;
mod runtime;
mod sandbox;
mod security_modules;
mod server;
mod service;
mod services;
mod stats;
mod store;
mod streaming;
mod unknown_reason;

pub use config::{Config, Streams, Unprivileged};
pub use handler::{Handler, Handlers, NotAName};
pub use instance::instance_name;
pub use isolation::{EnterError, Isolation, IsolationRequest, UnknownIsolation, enter};
pub use keeper::contract::open_files::{TooFewFiles, ensure_open_files, raise_open_files};
pub use keeper::{keep_descriptors, keeper_main, take_short_turns};
pub use keeper_client::Deadlines;
pub use network::{EGRESS_COMMAND, serve_egress};
pub use server::{ServeError, delete_trash, longest_end, serve};
pub use service::image::PULL_FROM;
pub use store::OpenError;

use keeper::kernel::failure::chain;
