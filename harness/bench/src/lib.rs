//! Measures a CRI runtime, or two in turns: calls, pods, growth, memory, events, pulls and logs, compared with what the kernel
//! alone needs.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use bench::{Options};
//! use tokio_util::sync::CancellationToken;
//!
//! let options = Options::new("/run/containerd/containerd.sock".as_ref());
//! let report = bench::bench(options, CancellationToken::new(), |_| {}).await?;
//! print!("{}", bench::report::text(&report));
//! # Ok(())
//! # }
//! ```
//!
//! On a shared machine only ratios within one run are meaningful. So with two endpoints each round measures both, one after the
//! other, in alternating order, and ratios are computed from these pairs.
//!
//! | file | what |
//! |---|---|
//! | `options` ◆ | which sections are measured, and with how much effort |
//! | `rows` ◆ | the results |
//! | `statistics` ◆ | medians with their confidence intervals, and ratios of pairs |
//! | `target` | an endpoint, with configurations of pods and containers; rounds in which the endpoints take turns |
//! | `calls` | the calls of a pod's lifecycle: alone, several concurrently, and while many others run |
//! | `processes` ◆ | the processes that a runtime started |
//! | `density` | the memory of pods |
//! | `events` | the latency of events |
//! | `pulls` | pulls from a registry in this process |
//! | `logs` | the throughput of container logs |
//! | `startup` | the start of crib's own daemon |
//! | `floor`, `veth` | what the kernel alone needs for a container |
//! | `run` | measures all sections, and removes what they created |
//! | `compare` ◆ | the differences between an earlier and a later benchmark |
//! | `report` ◆ | reports: text, JSON, Markdown, HTML |

mod calls;
pub mod compare;
mod density;
mod events;
mod floor;
mod logs;
mod options;
mod processes;
mod pulls;
pub mod report;
mod rows;
mod run;
mod startup;
mod statistics;
mod target;
mod veth;

use tonic::Status;

pub use floor::{COMMAND as FLOOR_COMMAND, NETWORK as FLOOR_NETWORK, serve as serve_floor};
pub use options::{Effort, Endpoint, Options};
pub use rows::{Machine, Report, Row, Section, Subject, Unit, UnknownSection};
pub use run::bench;
pub use statistics::{Interval, Summary, ratio, summary};

/// Why a benchmark failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A runtime does not respond.
    #[error("the runtime at {endpoint} does not respond to Version: {}", status.message())]
    NoRuntime {
        /// Its socket.
        endpoint: String,
        /// Its error.
        status: Box<Status>,
    },
    /// There is no image for the containers.
    #[error("no image for containers is available: {0}")]
    NoImage(String),
    /// A call failed.
    #[error("{call} failed at {endpoint}: {}", status.message())]
    Refused {
        /// The call.
        call: &'static str,
        /// The runtime's socket.
        endpoint: String,
        /// The runtime's error.
        status: Box<Status>,
    },
    /// A wait timed out.
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
    /// The path of a daemon's socket would be too long.
    #[error(transparent)]
    LongSocket(#[from] harness::runtime::LongSocketPath),
    /// The benchmark was interrupted; everything that it created is removed.
    #[error("interrupted")]
    Interrupted,
}
