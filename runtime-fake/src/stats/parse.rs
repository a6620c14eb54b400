//! ◆ Parses the kernel's accounting files.

/// The value of `key` in a file of `key value` lines (`cpu.stat`, `memory.stat`, `memory.events`, …).
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == key).then(|| words.next()?.parse().ok())?
    })
}

/// The only number of a file; `None` for `max` and anything else.
pub(super) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// A limit; `None` if it is so large that it is unreachable (v1 writes the largest multiple of a page).
pub(super) fn limit(text: &str) -> Option<u64> {
    number(text).filter(|limit| *limit < i64::MAX as u64 / 4096 * 4096)
}

/// One line of a pressure file, `some` or `full` (Documentation/accounting/psi.rst).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct PressureLine {
    /// Nanoseconds of stalls since the cgroup was created.
    pub(crate) total: u64,
    /// Percentages over the last 10, 60 and 300 seconds.
    pub(crate) averages: [f64; 3],
}

/// Both lines of a pressure file.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Pressure {
    /// At least one process was stalled.
    pub(crate) some: PressureLine,
    /// All processes were stalled.
    pub(crate) full: PressureLine,
}

/// A pressure file.
pub(super) fn pressure(text: &str) -> Option<Pressure> {
    let line = |kind: &str| {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        let field = |name: &str| {
            line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        let average = |name| field(name).and_then(|v| v.parse().ok()).unwrap_or(0.0);
        let microseconds: u64 = field("total")?.parse().ok()?;
        Some(PressureLine {
            total: microseconds.saturating_mul(1000),
            averages: [average("avg10"), average("avg60"), average("avg300")],
        })
    };
    Some(Pressure {
        some: line("some")?,
        // The CPU file has no `full` line on older kernels.
        full: line("full").unwrap_or_default(),
    })
}

/// I/O of one block device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeviceIo {
    /// `MAJOR:MINOR`.
    pub(crate) device: String,
    /// Bytes read.
    pub(crate) read_bytes: u64,
    /// Bytes written.
    pub(crate) write_bytes: u64,
    /// Reads.
    pub(crate) reads: u64,
    /// Writes.
    pub(crate) writes: u64,
}

/// Parses `io.stat` of v2.
pub(super) fn io_stat(text: &str) -> Vec<DeviceIo> {
    text.lines()
        .filter_map(|line| {
            let (device, fields) = line.split_once(' ')?;
            let field = |name: &str| {
                fields
                    .split_whitespace()
                    .find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
                    .unwrap_or(0)
            };
            Some(DeviceIo {
                device: device.to_owned(),
                read_bytes: field("rbytes"),
                write_bytes: field("wbytes"),
                reads: field("rios"),
                writes: field("wios"),
            })
        })
        .collect()
}

/// Parses `blkio.throttle.io_service_bytes` and `blkio.throttle.io_serviced` of v1.
pub(super) fn blkio(bytes: &str, counts: &str) -> Vec<DeviceIo> {
    let value = |text: &str, device: &str, kind: &str| {
        text.lines()
            .find_map(|line| {
                let mut words = line.split_whitespace();
                let fits = words.next()? == device && words.next()? == kind;
                fits.then(|| words.next()?.parse().ok())?
            })
            .unwrap_or(0)
    };
    bytes
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let device = words.next()?;
            (words.next()? == "Read").then(|| DeviceIo {
                device: device.to_owned(),
                read_bytes: value(bytes, device, "Read"),
                write_bytes: value(bytes, device, "Write"),
                reads: value(counts, device, "Read"),
                writes: value(counts, device, "Write"),
            })
        })
        .collect()
}

/// Traffic of an interface, from inside its namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// The interface.
    pub(crate) name: String,
    /// Received bytes, packets, errors and dropped packets.
    pub(crate) received: [u64; 4],
    /// Sent bytes, packets, errors and dropped packets.
    pub(crate) sent: [u64; 4],
}

/// `/proc/PID/net/dev`, without the loopback.
pub(super) fn net_dev(text: &str) -> Vec<Traffic> {
    text.lines()
        .filter_map(|line| {
            let (name, numbers) = line.split_once(':')?;
            let numbers: Vec<u64> =
                numbers.split_whitespace().map_while(|n| n.parse().ok()).collect();
            let four = |from: usize| numbers.get(from..from + 4)?.try_into().ok();
            Some(Traffic { name: name.trim().to_owned(), received: four(0)?, sent: four(8)? })
        })
        .filter(|traffic| traffic.name != "lo")
        .collect()
}

/// The times and faults of a process in `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ProcessTimes {
    /// Clock ticks in user and in kernel mode, including those of reaped children.
    pub(super) user: u64,
    pub(super) system: u64,
    pub(super) minor_faults: u64,
    pub(super) major_faults: u64,
}

/// Parses `/proc/PID/stat` (proc_pid_stat(5)). The name in it may contain anything, so fields are counted after
/// its last parenthesis.
pub(super) fn process_stat(text: &str) -> Option<ProcessTimes> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // The first after the name is field 3 of the manual page.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    // Saturate rather than wrap: a kernel's counters do not reach this within centuries.
    let sum = |one, other| Some(field(one)?.saturating_add(field(other)?));
    Some(ProcessTimes {
        minor_faults: sum(10, 11)?,
        major_faults: sum(12, 13)?,
        user: sum(14, 16)?,
        system: sum(15, 17)?,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("user_usec 5\nusage_usec 17\n", "usage_usec", Some(17))]
    #[case("usage_usec_x 5\n", "usage_usec", None)]
    #[case("usage_usec max\n", "usage_usec", None)]
    #[case("", "usage_usec", None)]
    fn flat_keyed_file_yields_value(
        #[case] text: &str,
        #[case] key: &str,
        #[case] expected: Option<u64>,
    ) {
        assert_eq!(keyed(text, key), expected);
    }

    #[rstest]
    #[case("67108864\n", Some(67_108_864))]
    #[case("max\n", None)]
    #[case("9223372036854771712\n", None)]
    #[case("", None)]
    fn limit_file_yields_number_unless_unlimited(
        #[case] text: &str,
        #[case] expected: Option<u64>,
    ) {
        assert_eq!(limit(text), expected);
    }

    #[test]
    fn pressure_file_yields_some_and_full() {
        let text = "some avg10=1.50 avg60=0.20 avg300=0.01 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let pressure = pressure(text).unwrap();
        assert_eq!(pressure.some.total, 1_234_000);
        assert_eq!(pressure.some.averages, [1.5, 0.2, 0.01]);
        assert_eq!(pressure.full.total, 7_000);
    }

    #[rstest]
    #[case::nothing("")]
    #[case::no_total("some avg10=1.50\n")]
    fn invalid_pressure_file_yields_none(#[case] text: &str) {
        assert_eq!(pressure(text), None);
    }

    #[test]
    fn io_statistics_parse_for_both_versions() {
        let expected = [DeviceIo {
            device: "254:0".to_owned(),
            read_bytes: 4096,
            write_bytes: 8192,
            reads: 1,
            writes: 2,
        }];
        assert_eq!(
            io_stat("254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n"),
            expected
        );
        let bytes =
            "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 0\n254:0 Total 12288\nTotal 12288\n";
        let counts = "254:0 Read 1\n254:0 Write 2\n254:0 Total 3\nTotal 3\n";
        assert_eq!(blkio(bytes, counts), expected);
        assert_eq!(blkio("Total 0\n", "Total 0\n"), []);
    }

    #[test]
    fn network_statistics_exclude_loopback() {
        let text = "Inter-|   Receive                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    lo:  1 1 0 0 0 0 0 0  1 1 0 0 0 0 0 0\n  eth0: 100 2 3 4 0 0 0 0 500 6 7 8 0 0 0 0\n";
        assert_eq!(
            net_dev(text),
            [Traffic { name: "eth0".to_owned(), received: [100, 2, 3, 4], sent: [500, 6, 7, 8] }]
        );
    }

    #[test]
    fn process_name_with_parentheses_is_parsed() {
        let text = "17 (a) b (c) S 1 17 17 0 -1 4194560 10 11 12 13 14 15 16 17 20 0 1 0 5 0 0";
        assert_eq!(
            process_stat(text).unwrap(),
            ProcessTimes { minor_faults: 21, major_faults: 25, user: 30, system: 32 }
        );
        assert_eq!(process_stat("17 (a"), None);
    }
}
