//! How long a keeper may take for a call: pure.
//!
//! A keeper that is stopped, or hangs in the kernel, never answers. Each call has a deadline by what its keeper has to wait
//! for. A client's own deadline, where that is shorter, ends its call earlier (`server/deadline.rs`). An exec's streams are
//! no call: they last as long as the process.

use std::time::Duration;

use keeper::protocol::Call;

/// The deadlines of calls, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Of what a keeper does by itself: signals, execs, attaching, its state.
    pub answer: Duration,
    /// Of a pod's namespaces, which the kernel makes under a lock that all network namespaces share.
    pub set_up: Duration,
    /// Of a container's set-up and start, which touch the client's file systems: what a kubelet waits for a call
    /// (`runtimeRequestTimeout`).
    pub work: Duration,
    /// Of a start that brings a checkpoint back: criu reads all of the container's memory from the disk.
    pub restore: Duration,
    /// Of the end of killed processes: one that survives SIGKILL this long is stuck in the kernel.
    pub kill: Duration,
    /// Of a keeper's own end, with everything in the pod. One that does not end is killed.
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
    /// The same for every call.
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
            Call::Create { .. }
            | Call::Start {
                restored: false, ..
            } => self.work,
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
