//! The simulated behaviour of a process that runs no program: the part of a behaviour script that the process carries out itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The behaviour of a process that runs no program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// It fails to start, with this message.
    Fail(String),
    /// It carries out this plan.
    Play(Box<ActPlan>),
}

/// The simulated behaviour of a process. All times count from its start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActPlan {
    /// When it exits, and with which code; if none, it does not exit by itself.
    pub exit: Option<ExitPlan>,
    /// Its reaction to SIGTERM.
    pub term: OnTerm,
    /// The numbered lines that it writes.
    pub log: Option<LinesPlan>,
    /// The memory that it allocates.
    pub memory: Option<MemoryPlan>,
    /// The children that it forks.
    pub children: Option<ChildrenPlan>,
}

/// An exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitPlan {
    /// The exit code.
    pub code: u8,
    /// The delay before the exit.
    pub after: Duration,
}

/// The reaction of a process to SIGTERM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTerm {
    /// It exits immediately with 143, as if it had no handler.
    #[default]
    End,
    /// It keeps running.
    Ignore,
    /// It exits with this code, this long after the first SIGTERM.
    Exit(ExitPlan),
}

/// Numbered lines: `line 1`, `line 2`, …
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinesPlan {
    /// Lines per second, evenly spaced; the first one is written immediately. At least 1.
    pub per_second: u32,
    /// Write to standard error instead of standard output.
    pub stderr: bool,
}

/// Memory that is allocated and written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPlan {
    /// The number of bytes; `None`: allocate until the kernel kills the process.
    pub bytes: Option<u64>,
    /// The delay before the allocation.
    pub after: Duration,
}

/// Child processes that wait until their parent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildrenPlan {
    /// The number of children.
    pub count: u32,
    /// The delay before the fork.
    pub after: Duration,
}
