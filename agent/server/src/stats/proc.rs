//! ◆ Parses the files of `/proc` about the whole machine. Pure.
//!
//! Source: cAdvisor's numbers for the root cgroup, which come from the same files (runc, cgroups/fs2/memory.go
//! rootStatsFromMeminfo), and Kubernetes 1.36, pkg/kubelet/stats/pidlimit/pidlimit_linux.go.

use jiff::Timestamp;

use super::summary::{InterfaceStats, Psi, PsiData};

/// Nanoseconds per clock tick in `/proc`: the kernel always reports 100 ticks per second (USER_HZ).
const TICK_NANOSECONDS: u64 = 10_000_000;
/// Prefixes of internal interfaces: loopback, and the host's ends of pods' veth pairs.
const INNER: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// Memory and swap, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: Option<u64>,
    pub(crate) usage: Option<u64>,
    pub(crate) working_set: Option<u64>,
    pub(crate) available: Option<u64>,
    pub(crate) rss: Option<u64>,
    pub(crate) swap_total: Option<u64>,
    pub(crate) swap_used: Option<u64>,
    pub(crate) swap_free: Option<u64>,
}

/// CPU time, memory and pressure of the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// The time of the measurement.
    pub(crate) at: Timestamp,
    /// The machine's boot time.
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) processors: Option<u64>,
    /// The busy time of all CPUs in nanoseconds.
    pub(crate) busy: Option<u64>,
    pub(crate) memory: Memory,
    pub(crate) page_faults: Option<u64>,
    pub(crate) major_page_faults: Option<u64>,
    pub(crate) cpu_pressure: Option<Psi>,
    pub(crate) memory_pressure: Option<Psi>,
    pub(crate) io_pressure: Option<Psi>,
}

/// `/proc/meminfo`
pub(crate) fn memory(meminfo: &str) -> Memory {
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let number: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        number.checked_mul(1024)
    };
    let total = bytes("MemTotal");
    let usage = difference(total, bytes("MemFree"));
    // File pages on the inactive list can be reclaimed, so they do not count.
    let working_set = difference(usage, bytes("Inactive(file)"));
    let (swap_total, swap_free) = (bytes("SwapTotal"), bytes("SwapFree"));
    Memory {
        total,
        usage,
        working_set,
        available: difference(total, working_set),
        rss: bytes("AnonPages"),
        swap_total,
        swap_used: difference(swap_total, swap_free),
        swap_free,
    }
}

fn difference(whole: Option<u64>, part: Option<u64>) -> Option<u64> {
    Some(whole?.saturating_sub(part?))
}

/// The busy time of all CPUs in nanoseconds, from `/proc/stat`: neither idle nor waiting for I/O.
pub(crate) fn busy(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // The fields are: user nice system idle iowait irq softirq steal. user and nice include the time of guests.
    let [user, nice, system, _, _, rest @ ..] = fields.as_slice() else {
        return None;
    };
    let ticks = [user, nice, system].into_iter().chain(rest.iter().take(3));
    let ticks = ticks.fold(0_u64, |sum, ticks| sum.saturating_add(*ticks));
    ticks.checked_mul(TICK_NANOSECONDS)
}

/// A line of `/proc/stat` or `/proc/vmstat` with one number: `btime`, `pgfault`.
pub(crate) fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

/// The boot time in seconds since 1970, from `/proc/stat`.
pub(crate) fn boot(stat: &str) -> Option<u64> {
    number(stat, "btime")
}

/// The number of CPUs in `/proc/stat`.
pub(crate) fn processors(stat: &str) -> Option<u64> {
    let is_one = |line: &&str| {
        let rest = line.strip_prefix("cpu");
        rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let count = stat.lines().filter(is_one).count();
    u64::try_from(count).ok().filter(|count| *count > 0)
}

/// The external interfaces in `/proc/net/dev`.
pub(crate) fn interfaces(dev: &str) -> Vec<InterfaceStats> {
    let interface = |line: &str| {
        let (name, fields) = line.split_once(':')?;
        let name = name.trim();
        if INNER.iter().any(|inner| name.starts_with(inner)) {
            return None;
        }
        let fields: Vec<u64> =
            fields.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let field = |at: usize| fields.get(at).copied();
        Some(InterfaceStats {
            name: name.to_owned(),
            rx_bytes: field(0),
            rx_errors: field(2),
            tx_bytes: field(8),
            tx_errors: field(10),
        })
    };
    // Skip the two header lines.
    dev.lines().skip(2).filter_map(interface).collect()
}

/// The number of tasks, from `/proc/loadavg`.
pub(crate) fn tasks(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// Parses a file of `/proc/pressure`, in microseconds. In older kernels that of the CPU has no `full` line.
pub(crate) fn pressure(text: &str) -> Option<Psi> {
    let line = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        let field = |name: &str| {
            let mut fields = line.split_whitespace();
            fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        let share = |name: &str| field(name)?.parse().ok();
        Some(PsiData {
            total: field("total")?.parse::<u64>().ok()?.checked_mul(1000)?,
            avg10: share("avg10")?,
            avg60: share("avg60")?,
            avg300: share("avg300")?,
        })
    };
    Some(Psi { some: line("some")?, full: line("full").unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[test]
    fn used_memory_is_total_minus_free() {
        let meminfo = "MemTotal: 1000 kB\nMemFree:  300 kB\nMemAvailable: 600 kB\nActive(file): 9 kB\n\
                       Inactive(file): 200 kB\nAnonPages: 50 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n";
        let kib = |number: u64| Some(number * 1024);
        let expected = Memory {
            total: kib(1000),
            usage: kib(700),
            working_set: kib(500),
            available: kib(500),
            rss: kib(50),
            swap_total: kib(10),
            swap_used: kib(6),
            swap_free: kib(4),
        };
        assert_eq!(memory(meminfo), expected);
        assert_eq!(memory("MemTotal: many kB\nMemFree: 1\n"), Memory::default());
    }

    #[rstest]
    #[case("cpu  1 2 3 100 50 4 5 6 7 8\ncpu0 1\n", Some(210_000_000))]
    #[case("cpu  1 2 3 100 50\n", Some(60_000_000))]
    #[case("cpu  1 2\n", None)]
    #[case("intr 5\n", None)]
    #[case("cpu  18446744073709551615 1 1 1 1\n", None)]
    fn busy_time_excludes_idle_time(#[case] stat: &str, #[case] expected: Option<u64>) {
        assert_eq!(busy(stat), expected);
    }

    #[test]
    fn stat_has_boot_time_and_processors() {
        let stat = "cpu  1 2 3\ncpu0 1\ncpu1 1\nbtime 1700000000\n";
        assert_eq!(number(stat, "btime"), Some(1_700_000_000));
        assert_eq!(number(stat, "btim"), None);
        assert_eq!((processors(stat), processors("")), (Some(2), None));
    }

    #[test]
    fn internal_interfaces_are_omitted() {
        let dev = "Inter-|   Receive      |  Transmit\n face |bytes packets errs |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n\
                   \x20 eth0: 10 2 3 4 0 0 0 0 20 5 6 7 0 0 0 0\n veth1: 1 1 1 1\n cni0:7\n";
        let eth0 = InterfaceStats {
            name: "eth0".to_owned(),
            rx_bytes: Some(10),
            rx_errors: Some(3),
            tx_bytes: Some(20),
            tx_errors: Some(6),
        };
        let cni0 = InterfaceStats {
            name: "cni0".to_owned(),
            rx_bytes: Some(7),
            ..InterfaceStats::default()
        };
        assert_eq!(interfaces(dev), [eth0, cni0]);
    }

    #[rstest]
    #[case("0.1 0.2 0.3 2/345 678\n", Some(345))]
    #[case("0.1 0.2 0.3\n", None)]
    #[case("", None)]
    fn loadavg_counts_tasks(#[case] text: &str, #[case] expected: Option<u64>) {
        assert_eq!(tasks(text), expected);
    }

    #[test]
    fn pressure_has_both_lines() {
        let text = "some avg10=1.50 avg60=0.20 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n";
        let psi = pressure(text).unwrap();
        assert_eq!((psi.some.total, psi.some.avg10, psi.full.total), (12_000, 1.5, 3000));
        let some = pressure("some avg10=1.50 avg60=0.20 avg300=0.00 total=12\n").unwrap();
        assert_eq!(some.full, PsiData::default());
        assert_eq!(pressure("some avg10=x\n"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(cpu |cpu0|some|full|:|/|=|kB|MemTotal|lo|[0-9]{1,20}|[ \n]){0,30}") {
            let _ = (memory(&text), busy(&text), processors(&text), interfaces(&text), tasks(&text), pressure(&text));
        }
    }
}
