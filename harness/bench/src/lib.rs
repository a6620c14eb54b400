//! Measures a CRI runtime, or two in turns: calls, pods, growth, memory, events, pulls and logs, beside what the kernel alone
//! takes.
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
//! On a shared machine only ratios within one run mean something. So with two endpoints each round measures both, one after the
//! other, in alternating order, and ratios are those of pairs.
//!
//! | file | what |
//! |---|---|
//! | `options` ◆ | what is measured, and how much of it |
//! | `rows` ◆ | the results |
//! | `statistics` ◆ | medians with their confidence intervals, and ratios of pairs |
//! | `target` | an endpoint, with configurations of pods and containers; rounds in which each endpoint takes its turn |
//! | `calls` | the calls of a pod's life: alone, several at once, and while many others run |
//! | `processes` ◆ | the processes that a runtime started |
//! | `density` | the memory of pods |
//! | `events` | the latency of events |
//! | `pulls` | pulls from a registry of this process |
//! | `logs` | the throughput of container logs |
//! | `startup` | the start of crib's own daemon |
//! | `floor`, `veth` | what the kernel alone takes for a container |
//! | `run` | measures all sections, and removes what they made |
//! | `compare` ◆ | what an earlier and a later benchmark differ in |
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
pub use rows::{Machine, NoSuchSection, Report, Row, Section, Subject, Unit};
pub use run::bench;
pub use statistics::{Interval, Summary, ratio, summary};

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
