//! ◆ The metrics of pods and containers, with cAdvisor's names and labels.
//!
//! Each descriptor's function returns all its values for one [`MetricSource`], with the labels after the common ones.

use super::{
    parse::{DeviceIo, PressureLine, Traffic},
    usage::{Disk, HugePages, Usage},
};

/// The labels that every metric has, in this order.
pub(crate) const COMMON: [&str; 6] = ["container", "id", "image", "name", "namespace", "pod"];

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Goes up only.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// The subject of measurements: a container, or a pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct MetricSource {
    /// Its usage.
    pub(crate) usage: Usage,
    /// The device and the usage of its writable layer; `None` for pods.
    pub(crate) disk: Option<(String, Disk)>,
    /// Its interfaces; empty for containers.
    pub(crate) network: Vec<Traffic>,
    /// When its program started, in seconds since 1970; 0 is never.
    pub(crate) started: u64,
    /// When it was measured, in seconds since 1970.
    pub(crate) seen: u64,
    /// The requested CPU limits: period and quota in microseconds, shares. 0 is none.
    pub(crate) cpu_limits: [i64; 3],
}

/// A value, with its labels after the common ones. Values are integers: seconds are rounded.
pub(crate) type Value = (Vec<String>, u64);

/// One metric.
pub(crate) struct Descriptor {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its help text.
    pub(crate) help: &'static str,
    /// Counter or gauge.
    pub(crate) kind: Kind,
    /// Its labels after the common ones.
    pub(crate) labels: &'static [&'static str],
    /// Its values.
    pub(crate) values: fn(&MetricSource) -> Vec<Value>,
}

const fn counter(
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    values: fn(&MetricSource) -> Vec<Value>,
) -> Descriptor {
    let kind = Kind::Counter;
    Descriptor { name, help, kind, labels, values }
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    values: fn(&MetricSource) -> Vec<Value>,
) -> Descriptor {
    let kind = Kind::Gauge;
    Descriptor { name, help, kind, labels, values }
}

fn one(value: Option<u64>) -> Vec<Value> {
    value.map(|value| (Vec::new(), value)).into_iter().collect()
}

fn labelled<const N: usize>(labels: [&str; N], value: Option<u64>) -> Vec<Value> {
    value.map(|value| (labels.map(str::to_owned).to_vec(), value)).into_iter().collect()
}

fn seconds(nanoseconds: Option<u64>) -> Option<u64> {
    nanoseconds.map(|n| n / 1_000_000_000)
}

fn stalled(stall: Option<PressureLine>) -> Vec<Value> {
    one(seconds(stall.map(|s| s.total)))
}

fn disk(source: &MetricSource, value: fn(&Disk) -> u64) -> Vec<Value> {
    let disk = source.disk.as_ref();
    disk.map(|(device, disk)| (vec![device.clone()], value(disk))).into_iter().collect()
}

fn devices(source: &MetricSource, value: fn(&DeviceIo) -> u64) -> Vec<Value> {
    let devices = source.usage.io.devices.iter();
    devices.map(|io| (vec![io.device.clone()], value(io))).collect()
}

fn interfaces(source: &MetricSource, value: fn(&Traffic) -> u64) -> Vec<Value> {
    let interfaces = source.network.iter();
    interfaces.map(|t| (vec![t.name.clone()], value(t))).collect()
}

fn block_devices(source: &MetricSource) -> Vec<Value> {
    let all = source.usage.io.devices.iter();
    all.flat_map(|io| {
        let (major, minor) = io.device.split_once(':').unwrap_or((&io.device, ""));
        [("Read", io.read_bytes), ("Write", io.write_bytes)].map(|(operation, bytes)| {
            let labels = [io.device.as_str(), major, minor, operation];
            (labels.map(str::to_owned).to_vec(), bytes)
        })
    })
    .collect()
}

fn memory_failures(source: &MetricSource) -> Vec<Value> {
    let memory = &source.usage.memory;
    let mut values = labelled(["pgfault", "container"], memory.faults);
    values.extend(labelled(["pgmajfault", "container"], memory.major_faults));
    values
}

fn huge_pages(source: &MetricSource, value: fn(&HugePages) -> Option<u64>) -> Vec<Value> {
    let sizes = source.usage.huge_pages.iter();
    sizes.filter_map(|(size, pages)| Some((vec![size.clone()], value(pages)?))).collect()
}

fn of_limit(value: i64) -> Vec<Value> {
    one(u64::try_from(value).ok().filter(|value| *value > 0))
}

/// No limit is reported as 0, as in cAdvisor.
fn or_none(limit: Option<u64>) -> Vec<Value> {
    one(Some(limit.unwrap_or(0)))
}

/// Every metric, by name.
pub(crate) const ALL: &[Descriptor] = &[
    counter(
        "container_blkio_device_usage_total",
        "Bytes read and written, by block device.",
        &["device", "major", "minor", "operation"],
        block_devices,
    ),
    counter(
        "container_cpu_cfs_periods_total",
        "Periods of the processor quota that were begun.",
        &[],
        |s| one(s.usage.cpu.periods),
    ),
    counter(
        "container_cpu_cfs_throttled_periods_total",
        "Periods in which the processor quota was used up.",
        &[],
        |s| one(s.usage.cpu.throttled_periods),
    ),
    counter(
        "container_cpu_cfs_throttled_seconds_total",
        "Seconds spent waiting for the next period of the quota.",
        &[],
        |s| one(seconds(s.usage.cpu.throttled)),
    ),
    counter(
        "container_cpu_system_seconds_total",
        "Seconds of processor time in kernel mode.",
        &[],
        |s| one(seconds(s.usage.cpu.system)),
    ),
    counter(
        "container_cpu_usage_seconds_total",
        "Seconds of processor time, over all processors.",
        &["cpu"],
        |s| labelled(["total"], seconds(s.usage.cpu.total)),
    ),
    counter(
        "container_cpu_user_seconds_total",
        "Seconds of processor time in user mode.",
        &[],
        |s| one(seconds(s.usage.cpu.user)),
    ),
    gauge("container_file_descriptors", "Open file descriptors.", &[], |s| {
        one(Some(s.usage.tasks.descriptors))
    }),
    gauge(
        "container_fs_inodes_free",
        "Free inodes of the file system of the writable layer.",
        &["device"],
        |s| disk(s, |d| d.inodes_free),
    ),
    gauge(
        "container_fs_inodes_total",
        "Inodes of the file system of the writable layer.",
        &["device"],
        |s| disk(s, |d| d.inodes_total),
    ),
    gauge(
        "container_fs_limit_bytes",
        "Size of the file system of the writable layer.",
        &["device"],
        |s| disk(s, |d| d.limit),
    ),
    counter("container_fs_reads_bytes_total", "Bytes read.", &["device"], |s| {
        devices(s, |d| d.read_bytes)
    }),
    counter("container_fs_reads_total", "Reads.", &["device"], |s| devices(s, |d| d.reads)),
    gauge("container_fs_usage_bytes", "Bytes that the writable layer takes.", &["device"], |s| {
        disk(s, |d| d.used)
    }),
    counter("container_fs_writes_bytes_total", "Bytes written.", &["device"], |s| {
        devices(s, |d| d.write_bytes)
    }),
    counter("container_fs_writes_total", "Writes.", &["device"], |s| devices(s, |d| d.writes)),
    counter(
        "container_hugetlb_max_usage_bytes",
        "The most bytes of huge pages so far.",
        &["pagesize"],
        |s| huge_pages(s, |pages| pages.most),
    ),
    gauge("container_hugetlb_usage_bytes", "Bytes of huge pages in use.", &["pagesize"], |s| {
        huge_pages(s, |pages| pages.now)
    }),
    gauge("container_last_seen", "When this was measured, in seconds since 1970.", &[], |s| {
        one(Some(s.seen))
    }),
    gauge("container_memory_cache", "Bytes of the page cache.", &[], |s| one(s.usage.memory.cache)),
    counter("container_memory_failcnt", "How often the memory limit was met.", &[], |s| {
        one(s.usage.memory.failures)
    }),
    counter(
        "container_memory_failures_total",
        "Page faults, by kind.",
        &["failure_type", "scope"],
        memory_failures,
    ),
    gauge("container_memory_kernel_usage", "Bytes of kernel memory.", &[], |s| {
        one(s.usage.memory.kernel)
    }),
    gauge("container_memory_mapped_file", "Bytes of mapped files.", &[], |s| {
        one(s.usage.memory.mapped_file)
    }),
    gauge("container_memory_max_usage_bytes", "The most memory so far.", &[], |s| {
        one(s.usage.memory.max_usage)
    }),
    gauge("container_memory_rss", "Bytes of memory that belong to no file.", &[], |s| {
        one(s.usage.memory.rss)
    }),
    gauge("container_memory_swap", "Bytes on swap.", &[], |s| one(s.usage.memory.swap)),
    gauge("container_memory_usage_bytes", "Bytes of memory, caches included.", &[], |s| {
        one(s.usage.memory.usage)
    }),
    gauge(
        "container_memory_working_set_bytes",
        "Bytes of memory that cannot be freed under pressure.",
        &[],
        |s| one(s.usage.memory.working_set()),
    ),
    counter("container_network_receive_bytes_total", "Bytes received.", &["interface"], |s| {
        interfaces(s, |t| t.received[0])
    }),
    counter(
        "container_network_receive_errors_total",
        "Errors while receiving.",
        &["interface"],
        |s| interfaces(s, |t| t.received[2]),
    ),
    counter(
        "container_network_receive_packets_dropped_total",
        "Received packets that were dropped.",
        &["interface"],
        |s| interfaces(s, |t| t.received[3]),
    ),
    counter("container_network_receive_packets_total", "Packets received.", &["interface"], |s| {
        interfaces(s, |t| t.received[1])
    }),
    counter("container_network_transmit_bytes_total", "Bytes sent.", &["interface"], |s| {
        interfaces(s, |t| t.sent[0])
    }),
    counter(
        "container_network_transmit_errors_total",
        "Errors while sending.",
        &["interface"],
        |s| interfaces(s, |t| t.sent[2]),
    ),
    counter(
        "container_network_transmit_packets_dropped_total",
        "Packets that were dropped instead of sent.",
        &["interface"],
        |s| interfaces(s, |t| t.sent[3]),
    ),
    counter("container_network_transmit_packets_total", "Packets sent.", &["interface"], |s| {
        interfaces(s, |t| t.sent[1])
    }),
    counter("container_oom_events_total", "Processes killed for want of memory.", &[], |s| {
        one(s.usage.memory.oom_kills)
    }),
    counter(
        "container_pressure_cpu_stalled_seconds_total",
        "Seconds in which all processes waited for a processor.",
        &[],
        |s| stalled(s.usage.cpu.pressure.map(|p| p.full)),
    ),
    counter(
        "container_pressure_cpu_waiting_seconds_total",
        "Seconds in which some process waited for a processor.",
        &[],
        |s| stalled(s.usage.cpu.pressure.map(|p| p.some)),
    ),
    counter(
        "container_pressure_io_stalled_seconds_total",
        "Seconds in which all processes waited for input or output.",
        &[],
        |s| stalled(s.usage.io.pressure.map(|p| p.full)),
    ),
    counter(
        "container_pressure_io_waiting_seconds_total",
        "Seconds in which some process waited for input or output.",
        &[],
        |s| stalled(s.usage.io.pressure.map(|p| p.some)),
    ),
    counter(
        "container_pressure_memory_stalled_seconds_total",
        "Seconds in which all processes waited for memory.",
        &[],
        |s| stalled(s.usage.memory.pressure.map(|p| p.full)),
    ),
    counter(
        "container_pressure_memory_waiting_seconds_total",
        "Seconds in which some process waited for memory.",
        &[],
        |s| stalled(s.usage.memory.pressure.map(|p| p.some)),
    ),
    gauge("container_processes", "Processes.", &[], |s| one(Some(s.usage.tasks.processes))),
    gauge("container_sockets", "Open sockets.", &[], |s| one(Some(s.usage.tasks.sockets))),
    gauge(
        "container_spec_cpu_period",
        "The period of the processor quota, in microseconds.",
        &[],
        |s| of_limit(s.cpu_limits[0]),
    ),
    gauge(
        "container_spec_cpu_quota",
        "The processor quota of a period, in microseconds.",
        &[],
        |s| of_limit(s.cpu_limits[1]),
    ),
    gauge(
        "container_spec_cpu_shares",
        "The weight among those who want the processor.",
        &[],
        |s| of_limit(s.cpu_limits[2]),
    ),
    gauge("container_spec_memory_limit_bytes", "The memory limit; 0 is none.", &[], |s| {
        or_none(s.usage.memory.limit)
    }),
    gauge(
        "container_spec_memory_reservation_limit_bytes",
        "The soft memory limit; 0 is none.",
        &[],
        |s| or_none(s.usage.memory.reservation),
    ),
    gauge(
        "container_spec_memory_swap_limit_bytes",
        "The limit of memory on swap; 0 is none.",
        &[],
        |s| or_none(s.usage.memory.swap_limit),
    ),
    gauge(
        "container_start_time_seconds",
        "When the program began to run, in seconds since 1970.",
        &[],
        |s| one(Some(s.started)),
    ),
    gauge("container_threads", "Threads.", &[], |s| one(Some(s.usage.tasks.threads))),
    gauge("container_threads_max", "How many threads there may be; 0 is no limit.", &[], |s| {
        or_none(s.usage.tasks.threads_max)
    }),
    gauge("container_ulimits_soft", "Soft limits of the first process.", &["ulimit"], |s| {
        labelled(["max_open_files"], s.usage.tasks.max_descriptors)
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_are_sorted_and_unique() {
        let names: Vec<_> = ALL.iter().map(|d| d.name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        assert_eq!(names.len(), 56);
    }

    #[test]
    fn metric_values_carry_descriptor_labels() {
        let mut source = MetricSource {
            disk: Some(("/dev/vda".to_owned(), Disk::default())),
            network: vec![Traffic::default()],
            cpu_limits: [1, 1, 1],
            ..MetricSource::default()
        };
        let some = Some(1);
        let pressure = Some(Default::default());
        source.usage.io.devices =
            vec![DeviceIo { device: "8:0".to_owned(), ..DeviceIo::default() }];
        source.usage.huge_pages.insert("2Mi".to_owned(), HugePages { now: some, most: some });
        let (cpu, memory) = (&mut source.usage.cpu, &mut source.usage.memory);
        (cpu.total, cpu.user, cpu.system, cpu.periods) = (some, some, some, some);
        (cpu.throttled, cpu.throttled_periods, cpu.pressure) = (some, some, pressure);
        (memory.usage, memory.max_usage, memory.rss, memory.cache) = (some, some, some, some);
        (memory.mapped_file, memory.kernel, memory.swap) = (some, some, some);
        (memory.failures, memory.faults, memory.major_faults) = (some, some, some);
        (memory.oom_kills, memory.pressure) = (some, pressure);
        source.usage.io.pressure = pressure;
        source.usage.tasks.max_descriptors = some;
        for descriptor in ALL {
            let values = (descriptor.values)(&source);
            assert!(!values.is_empty(), "{}", descriptor.name);
            for (labels, _) in values {
                assert_eq!(labels.len(), descriptor.labels.len(), "{}", descriptor.name);
            }
        }
    }

    #[test]
    fn unavailable_metrics_are_omitted() {
        let told: Vec<_> = ALL
            .iter()
            .filter(|d| !(d.values)(&MetricSource::default()).is_empty())
            .map(|d| d.name)
            .collect();
        assert!(!told.contains(&"container_memory_rss"), "{told:?}");
        assert!(!told.contains(&"container_network_receive_bytes_total"), "{told:?}");
    }
}
