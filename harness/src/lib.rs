//! Tools for tests of a Container Runtime Interface server or client, some of which the `crib` command shares.
//!
//! A test starts its own runtime, calls it through its socket, and observes its effects from outside. Dropping the [`Runtime`],
//! even in a panic, stops everything that it started, and panics if anything is left.
//!
//! ```no_run
//! use harness::Runtime;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let runtime = Runtime::start().await?;
//!     let pod = runtime.pod("greeter").await?;
//!     let greeting = pod.output(pod.script("hello", "echo hello from $(hostname)")).await?;
//!     assert_eq!(greeting, "hello from greeter\n");
//!     Ok(())
//! }
//! ```
//!
//! Reading order: [`runtime`] and [`node`] start daemons, [`client`] and [`pod`] call them, [`eventually()`] waits,
//! [`procfs`] and [`leak`] observe from outside, [`fixture`] and [`fixture_image`] make configurations and images, [`ports`]
//! finds free ports, [`streaming`] is the client side of exec, attach and port-forward; [`proxy`] records a client's calls and
//! injects faults.
//!
//! Packages beside this one: `registry` serves images, `check` has the rules of `crib check`, `bench` measures runtimes.
//!
//! This package has no command line, and does not link the runtime: it starts `crib runtime` and `crib agent` as processes. It
//! depends on `proxy` to start runtimes with faults.

pub mod binary;
pub mod client;
pub mod debug_text;
pub mod events;
pub mod eventually;
pub mod fixture;
pub mod fixture_image;
pub mod leak;
pub mod need;
pub mod netns;
pub mod node;
pub mod pod;
pub mod ports;
pub mod process;
pub mod procfs;
pub mod runtime;
pub mod streaming;

pub use client::Client;
pub use cri;
pub use cri_log;
pub use events::Events;
pub use eventually::{WAIT_LIMIT, WaitError, eventually};
pub use fixture::temp_dir;
pub use leak::Leaks;
pub use netns::Netns;
pub use node::Node;
pub use pod::Pod;
pub use proxy::{self, Proxy};
pub use runtime::{Runtime, StartError};
