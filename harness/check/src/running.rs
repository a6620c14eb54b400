//! How rules run: preparation, deadlines, restarts of the runtime, and the removal of what they made.

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

/// How long a rule may take, unless the options say otherwise.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// What is checked, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The runtime's socket.
    pub runtime: PathBuf,
    /// The image service's socket.
    pub images: PathBuf,
    /// The image of containers; otherwise one that the endpoint has, or gets from a registry of this process.
    pub image: Option<String>,
    /// The port of that registry at 127.0.0.1; otherwise a free one.
    pub registry_port: Option<u16>,
    /// The rules.
    pub rules: Vec<&'static Rule>,
    /// How many run at once.
    pub parallel: usize,
    /// How long a rule may take.
    pub deadline: Duration,
    /// How long a rule waits for one state.
    pub patience: Duration,
    /// How the runtime is restarted; otherwise the rules of restarts are skipped.
    pub restart: Option<Restart>,
    /// What the runtime is to do wrong, as the rules see it. One that is `off` and called `restarted` is switched on when a rule
    /// has restarted the runtime.
    pub faults: Vec<Fault>,
}

impl Options {
    /// Every rule, against the runtime at a socket.
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
            patience: Duration::from_secs(20),
            restart: None,
            faults: Vec::new(),
        }
    }

    /// The deadline that calls carry: a rule ends before, and says which call has no answer.
    pub(crate) fn deadline_of_calls(&self) -> Duration {
        self.deadline.saturating_mul(2)
    }
}

/// Why nothing was checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The runtime does not answer.
    #[error("the runtime does not answer Version: {}", .0.message())]
    NoRuntime(Box<Status>),
    /// The containers have no image.
    #[error("there is no image for containers: {0}")]
    NoImage(String),
    /// It was interrupted.
    #[error("interrupted before the first rule")]
    Interrupted,
    /// A file or a socket cannot be made.
    #[error("failed to {doing}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
}
