//! ◆ Decides the deadlines of calls to a keeper. Pure.
//!
//! A keeper that is stopped, or hangs in the kernel, never answers. The deadline of each call depends on the work that its keeper
//! waits for. A client's own deadline, if it is shorter, ends its call earlier (`server/deadline.rs`). An exec's streams are not
//! a call: they last as long as the process.

use std::time::Duration;

use keeper::contract::protocol::Call;

/// The deadlines of calls, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// For work of the keeper alone: signals, execs, attaching, its state.
    pub answer: Duration,
    /// For a pod's namespaces, which the kernel creates under a lock shared by all network namespaces.
    pub set_up: Duration,
    /// For a container's set-up and start, which access the client's file systems: a kubelet's timeout for a call
    /// (`runtimeRequestTimeout`).
    pub work: Duration,
    /// For a start that restores a checkpoint: criu reads all of the container's memory from the disk.
    pub restore: Duration,
    /// For the end of killed processes: one that survives SIGKILL this long is stuck in the kernel.
    pub kill: Duration,
    /// For the end of a keeper and its pod. A keeper that does not end is killed.
    pub shutdown: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(10),
            set_up: Duration::from_secs(60),
            work: Duration::from_secs(120),
            restore: Duration::from_secs(600),
            kill: Duration::from_secs(60),
            shutdown: Duration::from_secs(10),
        }
    }
}

impl Deadlines {
    /// The same deadline for every call.
    #[must_use]
    pub fn all(limit: Duration) -> Self {
        Self {
            answer: limit,
            set_up: limit,
            work: limit,
            restore: limit,
            kill: limit,
            shutdown: limit,
        }
    }

    /// The deadline of `call`.
    pub(super) fn of(&self, call: &Call) -> Duration {
        match call {
            Call::Setup(_) => self.set_up,
            Call::Create { .. } | Call::Start { restored: false, .. } => self.work,
            Call::Start { restored: true, .. } => self.restore,
            Call::Forget { .. } => self.kill,
            Call::Shutdown => self.shutdown,
            Call::Spawn
            | Call::Connected { .. }
            | Call::Signal { .. }
            | Call::Exec { .. }
            | Call::Dump { .. }
            | Call::KillExec { .. }
            | Call::Attach { .. }
            | Call::Sockets
            | Call::ReopenLog { .. }
            | Call::State => self.answer,
        }
    }
}
