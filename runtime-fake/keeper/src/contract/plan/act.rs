//! What a process does where it runs no program: the part of a behaviour script that is its own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a process does in place of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// It fails to start, with this message.
    Fail(String),
    /// It acts this out.
    Play(Box<ActPlan>),
}

/// What a process acts out. All times count from its start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActPlan {
    /// When it exits, and with which code; without, it runs on.
    pub exit: Option<ExitPlan>,
    /// What it does on SIGTERM.
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
    /// When.
    pub after: Duration,
}

/// What a process does on SIGTERM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTerm {
    /// It exits at once, with 143, as if it had no handler.
    #[default]
    End,
    /// It goes on.
    Ignore,
    /// It exits with this code, so long after the first SIGTERM.
    Exit(ExitPlan),
}

/// Numbered lines: `line 1`, `line 2`, …
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinesPlan {
    /// How many a second, evenly; the first at once. At least 1.
    pub per_second: u32,
    /// To standard error, not to standard output.
    pub stderr: bool,
}

/// Memory that is allocated and written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPlan {
    /// How much; `None`: until the kernel kills the process.
    pub bytes: Option<u64>,
    /// When.
    pub after: Duration,
}

/// Children that wait for as long as their parent lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildrenPlan {
    /// How many.
    pub count: u32,
    /// When.
    pub after: Duration,
}
