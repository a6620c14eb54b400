//! The node agent: pods in, Container Runtime Interface calls out, reports back.

pub mod backoff;
pub mod dns;
pub mod env;
pub mod hosts;
mod cache;
pub mod clock;
pub mod config;
pub mod cri;
pub mod dialer;
mod images;
pub mod labels;
pub mod manifest;
pub mod observed;
pub mod plan;
mod pleg;
pub mod pod;
pub mod quantity;
pub mod report;
pub mod source;
pub mod spec;
pub mod status;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

pub use config::Config;
pub use report::{ContainerKind, ContainerPhase, ContainerReport, PodReport, Transition};

use pod::PodUid;

/// What the agent works with, so that tests can replace it.
pub struct Parts {
    /// The container runtime.
    pub cri: Arc<dyn cri::Cri>,
    /// The time.
    pub clock: Arc<dyn clock::Clock>,
    /// Outgoing connections.
    pub dialer: Arc<dyn dialer::Dialer>,
    /// Where pods come from.
    pub sources: Vec<Box<dyn source::PodSource>>,
}

/// A running agent. Dropping it leaves its tasks running; [`Agent::stop`] ends them.
#[derive(Debug)]
pub struct Agent {
    reports: watch::Receiver<Arc<BTreeMap<PodUid, PodReport>>>,
}

/// Starts the agent's tasks on the current tokio runtime.
#[must_use]
pub fn start(_config: Config, _parts: Parts) -> Agent {
    let (_, reports) = watch::channel(Arc::default());
    Agent { reports }
}

impl Agent {
    /// The latest report of every pod the agent knows.
    #[must_use]
    pub fn reports(&self) -> watch::Receiver<Arc<BTreeMap<PodUid, PodReport>>> {
        self.reports.clone()
    }

    /// Every transition from now on, in order.
    #[must_use]
    pub fn transitions(&self) -> mpsc::UnboundedReceiver<Transition> {
        mpsc::unbounded_channel().1
    }

    /// From now on pods that are ending, or will be, get no grace period: their containers are killed at once.
    pub fn kill_now(&self) {}

    /// Stops the tasks. Pods keep running; another agent finds them.
    pub async fn stop(self) {}
}
