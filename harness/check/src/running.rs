//! Runs rules: preparation, deadlines, restarts of the runtime, and cleanup.

pub(crate) mod cleanup;
pub(crate) mod dead_runs;
pub(crate) mod interruption;
pub(crate) mod pace;
pub(crate) mod prepare;
pub(crate) mod run;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proxy::Fault;
use tonic::Status;

use crate::restart::Restart;
use crate::rule::Rule;

/// The default time limit of a rule.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Options of a check.
#[derive(Debug, Clone)]
pub struct Options {
    /// The runtime's socket.
    pub runtime: PathBuf,
    /// The image service's socket.
    pub images: PathBuf,
    /// The containers' image; by default an image that the endpoint has, or pulls from a registry in this process.
    pub image: Option<String>,
    /// The port of that registry at 127.0.0.1; by default a free one.
    pub registry_port: Option<u16>,
    /// The rules.
    pub rules: Vec<&'static Rule>,
    /// How many rules run concurrently.
    pub parallel: usize,
    /// The time limit of a rule.
    pub deadline: Duration,
    /// How long a rule waits for one state.
    pub wait_limit: Duration,
    /// How to restart the runtime; if missing, the rules of restarts are skipped.
    pub restart: Option<Restart>,
    /// The faults that the rules' proxies inject. A fault that is `off` and named `restarted` is enabled when a rule has restarted
    /// the runtime.
    pub faults: Vec<Fault>,
}

impl Options {
    /// Options for all rules, against the runtime at a socket.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self {
            runtime: socket.to_owned(),
            images: socket.to_owned(),
            image: None,
            registry_port: None,
            rules: crate::all(),
            parallel: 8,
            deadline: DEADLINE,
            wait_limit: Duration::from_secs(20),
            restart: None,
            faults: Vec::new(),
        }
    }

    /// The deadline of each call. It is later than the rule's, so that the rule ends first and reports the unanswered call.
    pub(crate) fn deadline_of_calls(&self) -> Duration {
        self.deadline.saturating_mul(2)
    }
}

/// Why no rule was checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The runtime does not respond.
    #[error("the runtime does not respond to Version: {}", .0.message())]
    NoRuntime(Box<Status>),
    /// There is no image for the containers.
    #[error("no image for containers is available: {0}")]
    NoImage(String),
    /// The check was interrupted.
    #[error("interrupted before the first rule")]
    Interrupted,
    /// A file or a socket could not be created.
    #[error("failed to {doing}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
}
