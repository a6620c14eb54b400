//! Resource usage of the whole machine, from `/proc` and its file systems.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::proc::{self, Load};
use super::summary::{FsStats, InterfaceStats};

/// Measures the machine.
pub(crate) trait Machine: Send + Sync {
    /// CPU time, memory and pressure.
    fn load(&self) -> Load;
    /// The external network interfaces.
    fn interfaces(&self) -> Vec<InterfaceStats>;
    /// Size and usage of the file system at this path.
    fn fs(&self, path: &Path) -> Option<FsStats>;
    /// The maximum and the current number of tasks.
    fn tasks(&self) -> (Option<u64>, Option<u64>);
}

/// The machine that this process runs on.
pub(crate) struct ProcMachine {
    root: PathBuf,
}

impl ProcMachine {
    pub(crate) fn new() -> Self {
        Self { root: PathBuf::from("/proc") }
    }

    fn text(&self, name: &str) -> String {
        read_to_string(self.root.join(name)).unwrap_or_default()
    }
}

impl Machine for ProcMachine {
    fn load(&self) -> Load {
        let (stat, vmstat) = (self.text("stat"), self.text("vmstat"));
        let boot = proc::boot(&stat).and_then(|seconds| i64::try_from(seconds).ok());
        Load {
            at: Timestamp::now(),
            started_at: boot.and_then(|seconds| Timestamp::from_second(seconds).ok()),
            processors: proc::processors(&stat),
            busy: proc::busy(&stat),
            memory: proc::memory(&self.text("meminfo")),
            page_faults: proc::number(&vmstat, "pgfault"),
            major_page_faults: proc::number(&vmstat, "pgmajfault"),
            cpu_pressure: proc::pressure(&self.text("pressure/cpu")),
            memory_pressure: proc::pressure(&self.text("pressure/memory")),
            io_pressure: proc::pressure(&self.text("pressure/io")),
        }
    }

    fn interfaces(&self) -> Vec<InterfaceStats> {
        proc::interfaces(&self.text("net/dev"))
    }

    fn fs(&self, path: &Path) -> Option<FsStats> {
        let usage = file_tree::usage(path).ok()?;
        Some(FsStats {
            time: Timestamp::now().into(),
            available_bytes: Some(usage.space.available),
            capacity_bytes: Some(usage.space.capacity),
            used_bytes: Some(usage.used),
            inodes_free: Some(usage.inodes_free),
            inodes: Some(usage.inodes),
            inodes_used: Some(usage.inodes.saturating_sub(usage.inodes_free)),
        })
    }

    fn tasks(&self) -> (Option<u64>, Option<u64>) {
        let limits = ["sys/kernel/pid_max", "sys/kernel/threads-max"];
        let limits = limits.iter().filter_map(|name| self.text(name).trim().parse().ok());
        (limits.min(), proc::tasks(&self.text("loadavg")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_machine_has_usage() {
        let machine = ProcMachine::new();
        let load = machine.load();
        assert!(load.busy > Some(0) && load.processors > Some(0), "{load:?}");
        assert!(load.memory.working_set > Some(0) && load.memory.total > load.memory.working_set);
        assert!(load.started_at.is_some_and(|started_at| started_at < load.at));
        let fs = machine.fs(Path::new("/"));
        assert!(fs.is_some_and(|fs| fs.capacity_bytes >= fs.used_bytes));
        assert_eq!(machine.fs(Path::new("/no/such/path")), None);
        let (limit, running) = machine.tasks();
        assert!(running > Some(0) && limit >= running, "{limit:?} {running:?}");
    }

    #[test]
    fn machine_without_proc_has_no_usage() {
        let machine = ProcMachine { root: PathBuf::from("/no/such/path") };
        let load = machine.load();
        assert_eq!(load, Load { at: load.at, ..Load::default() });
        assert_eq!((machine.interfaces(), machine.tasks()), (Vec::new(), (None, None)));
    }
}
