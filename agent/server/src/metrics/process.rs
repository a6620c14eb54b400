//! ◆ Resource usage of the agent's process, from its files in `/proc`. Pure.

/// Clock ticks per second in `/proc` (USER_HZ).
const TICKS: f64 = 100.0;

/// The resource usage of a process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Process {
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) virtual_bytes: Option<f64>,
    pub(crate) resident_bytes: Option<f64>,
    /// In seconds since 1970.
    pub(crate) started_at: Option<f64>,
    pub(crate) open_fds: Option<f64>,
    pub(crate) max_fds: Option<f64>,
}

/// The content of a process's files, and the machine's boot time in seconds since 1970.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files<'t> {
    pub(crate) stat: &'t str,
    pub(crate) status: &'t str,
    pub(crate) limits: &'t str,
    pub(crate) open_fds: Option<usize>,
    pub(crate) boot: Option<u64>,
}

/// Parses the files.
pub(crate) fn process(files: &Files<'_>) -> Process {
    // The command name in parentheses may contain any character. The first field after it is the state.
    let fields = files.stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let field = |at: usize| fields.get(at)?.parse::<f64>().ok();
    let ticks = field(11).zip(field(12)).map(|(user, system)| user + system);
    let started = field(19).map(|ticks| ticks / TICKS);
    let kib = |name: &str| {
        let line = files.status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()
    };
    let limit = files.limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    Process {
        cpu_seconds: ticks.map(|ticks| ticks / TICKS),
        virtual_bytes: kib("VmSize:").map(|kib| kib * 1024.0),
        resident_bytes: kib("VmRSS:").map(|kib| kib * 1024.0),
        started_at: files.boot.zip(started).map(|(boot, started)| boot as f64 + started),
        open_fds: files.open_fds.map(|count| count as f64),
        max_fds: limit.and_then(|limit| limit.split_whitespace().next()?.parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_say_what_the_process_uses() {
        let files = Files {
            stat: "7 (a) b) S 1 7 7 0 -1 4194560 2000 0 0 0 150 50 0 0 20 0 4 0 1000 9000 500",
            status: "Name:\ta\nVmSize:\t    200 kB\nVmRSS:\t    100 kB\n",
            limits: "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\n",
            open_fds: Some(9),
            boot: Some(1000),
        };
        let expected = Process {
            cpu_seconds: Some(2.0),
            virtual_bytes: Some(204_800.0),
            resident_bytes: Some(102_400.0),
            started_at: Some(1010.0),
            open_fds: Some(9.0),
            max_fds: Some(1024.0),
        };
        assert_eq!(process(&files), expected);
        assert_eq!(process(&Files::default()), Process::default());
    }
}
