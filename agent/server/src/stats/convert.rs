//! ◆ Converts CRI statistics and measurements of the machine to the Summary API. Pure.

use agent::cri::stats as cri;
use jiff::Timestamp;

use super::proc::Load;
use super::summary::{
    CpuStats, FsStats, InterfaceStats, IoStats, MemoryStats, NetworkStats, Psi, PsiData, SwapStats,
};

/// The interface that the kubelet assumes to be a node's default interface.
const DEFAULT_INTERFACE: &str = "eth0";

pub(crate) fn cpu(from: &cri::CpuStats) -> CpuStats {
    CpuStats {
        time: from.at.into(),
        usage_nano_cores: from.nano_cores,
        usage_core_nano_seconds: from.core_nanoseconds,
        psi: from.pressure.map(psi),
    }
}

pub(crate) fn memory(from: &cri::MemoryStats) -> MemoryStats {
    MemoryStats {
        time: from.at.into(),
        available_bytes: from.available,
        usage_bytes: from.usage,
        working_set_bytes: from.working_set,
        rss_bytes: from.rss,
        page_faults: from.page_faults,
        major_page_faults: from.major_page_faults,
        psi: from.pressure.map(psi),
    }
}

pub(crate) fn io(from: &cri::IoStats) -> IoStats {
    IoStats { time: from.at.into(), psi: from.pressure.map(psi) }
}

pub(crate) fn swap(from: &cri::SwapStats) -> SwapStats {
    SwapStats {
        time: from.at.into(),
        swap_available_bytes: from.available,
        swap_usage_bytes: from.used,
    }
}

/// The usage of a layer or volume, with the size of its file system if that is on this machine.
pub(crate) fn layer(from: &cri::LayerStats, whole: Option<&FsStats>) -> FsStats {
    let whole = whole.cloned().unwrap_or_default();
    FsStats {
        time: from.at.into(),
        used_bytes: from.used_bytes,
        inodes_used: from.inodes_used,
        ..whole
    }
}

pub(crate) fn network(from: &cri::NetworkStats) -> NetworkStats {
    let interface = |from: &cri::InterfaceStats| InterfaceStats {
        name: from.name.clone(),
        rx_bytes: from.rx_bytes,
        rx_errors: from.rx_errors,
        tx_bytes: from.tx_bytes,
        tx_errors: from.tx_errors,
    };
    let default = from.default.as_ref().map(interface);
    let all = default.iter().cloned().chain(from.others.iter().map(interface));
    NetworkStats {
        time: from.at.into(),
        interfaces: all.collect(),
        default: default.unwrap_or_default(),
    }
}

/// Uses another measurement if the first is missing, or its pressure if only that is missing.
pub(crate) fn complete<T>(
    known: &mut Option<T>,
    mut other: Option<T>,
    pressure: impl Fn(&mut T) -> &mut Option<Psi>,
) {
    match (known.as_mut(), other.as_mut()) {
        (Some(known), Some(other)) => {
            let missing = pressure(other).take();
            let known = pressure(known);
            *known = known.or(missing);
        }
        (Some(_), None) => {}
        (None, _) => *known = other,
    }
}

fn psi(from: cri::Pressure) -> Psi {
    let data = |from: cri::Stall| PsiData {
        total: from.total,
        avg10: from.avg10,
        avg60: from.avg60,
        avg300: from.avg300,
    };
    Psi { full: data(from.full), some: data(from.some) }
}

/// The CPU usage of a pod as the sum of its containers, for a runtime that does not measure pods.
pub(crate) fn cpu_of_all<'c>(all: impl Iterator<Item = &'c CpuStats>) -> Option<CpuStats> {
    let sum = |sum: CpuStats, one: &CpuStats| CpuStats {
        time: sum.time.max(one.time),
        usage_nano_cores: sum_of(sum.usage_nano_cores, one.usage_nano_cores),
        usage_core_nano_seconds: sum_of(sum.usage_core_nano_seconds, one.usage_core_nano_seconds),
        // Pressure cannot be summed, because waiting times overlap.
        psi: None,
    };
    all.fold(None, |so_far, one| Some(sum(so_far.unwrap_or_default(), one)))
}

/// The memory usage of a pod as the sum of its containers. The containers' remaining limits do not determine the pod's.
pub(crate) fn memory_of_all<'c>(all: impl Iterator<Item = &'c MemoryStats>) -> Option<MemoryStats> {
    let sum = |sum: MemoryStats, one: &MemoryStats| MemoryStats {
        time: sum.time.max(one.time),
        available_bytes: None,
        usage_bytes: sum_of(sum.usage_bytes, one.usage_bytes),
        working_set_bytes: sum_of(sum.working_set_bytes, one.working_set_bytes),
        rss_bytes: sum_of(sum.rss_bytes, one.rss_bytes),
        page_faults: sum_of(sum.page_faults, one.page_faults),
        major_page_faults: sum_of(sum.major_page_faults, one.major_page_faults),
        psi: None,
    };
    all.fold(None, |so_far, one| Some(sum(so_far.unwrap_or_default(), one)))
}

/// The swap usage of a pod as the sum of its containers: the CRI has swap only for containers.
pub(crate) fn swap_of_all<'c>(all: impl Iterator<Item = &'c SwapStats>) -> Option<SwapStats> {
    let sum = |sum: SwapStats, one: &SwapStats| SwapStats {
        time: sum.time.max(one.time),
        swap_available_bytes: sum_of(sum.swap_available_bytes, one.swap_available_bytes),
        swap_usage_bytes: sum_of(sum.swap_usage_bytes, one.swap_usage_bytes),
    };
    all.fold(None, |so_far, one| Some(sum(so_far.unwrap_or_default(), one)))
}

/// The usage of a file system as a sum.
pub(crate) fn fs_of_all<'c>(
    all: impl Iterator<Item = &'c FsStats>,
    whole: Option<&FsStats>,
    now: Timestamp,
) -> FsStats {
    let whole = whole.cloned().unwrap_or_default();
    let none = FsStats { time: now.into(), used_bytes: None, inodes_used: None, ..whole };
    all.fold(none, |sum, one| FsStats {
        used_bytes: sum_of(sum.used_bytes, one.used_bytes),
        inodes_used: sum_of(sum.inodes_used, one.inodes_used),
        ..sum
    })
}

fn sum_of(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}

/// The machine's CPU usage.
pub(crate) fn cpu_of_machine(load: &Load, nano_cores: Option<u64>) -> Option<CpuStats> {
    Some(CpuStats {
        time: load.at.into(),
        usage_nano_cores: nano_cores,
        usage_core_nano_seconds: Some(load.busy?),
        psi: load.cpu_pressure,
    })
}

/// The machine's memory usage.
pub(crate) fn memory_of_machine(load: &Load) -> Option<MemoryStats> {
    let memory = &load.memory;
    Some(MemoryStats {
        time: load.at.into(),
        available_bytes: memory.available,
        usage_bytes: Some(memory.usage?),
        working_set_bytes: memory.working_set,
        rss_bytes: memory.rss,
        page_faults: load.page_faults,
        major_page_faults: load.major_page_faults,
        psi: load.memory_pressure,
    })
}

/// The machine's swap usage.
pub(crate) fn swap_of_machine(load: &Load) -> Option<SwapStats> {
    Some(SwapStats {
        time: load.at.into(),
        swap_available_bytes: load.memory.swap_free,
        swap_usage_bytes: Some(load.memory.swap_used?),
    })
}

/// The machine's network usage; `None` if it has no interfaces.
pub(crate) fn network_of_machine(
    interfaces: Vec<InterfaceStats>,
    now: Timestamp,
) -> Option<NetworkStats> {
    let default = interfaces.iter().find(|one| one.name == DEFAULT_INTERFACE);
    let default = default.cloned().unwrap_or_default();
    let some = !interfaces.is_empty();
    some.then(|| NetworkStats { time: now.into(), default, interfaces })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(&[], None)]
    #[case(&[None], Some(None))]
    #[case(&[None, Some(1)], Some(Some(1)))]
    #[case(&[Some(1), Some(2)], Some(Some(3)))]
    #[case(&[Some(u64::MAX), Some(2)], Some(Some(u64::MAX)))]
    fn sums_skip_unknown_values(
        #[case] values: &[Option<u64>],
        #[case] expected: Option<Option<u64>>,
    ) {
        let cpu = |value: &Option<u64>| CpuStats {
            usage_core_nano_seconds: *value,
            ..CpuStats::default()
        };
        let memory = |value: &Option<u64>| MemoryStats {
            working_set_bytes: *value,
            available_bytes: Some(1),
            ..MemoryStats::default()
        };
        let swap =
            |value: &Option<u64>| SwapStats { swap_usage_bytes: *value, ..SwapStats::default() };
        let cpus: Vec<_> = values.iter().map(cpu).collect();
        let memories: Vec<_> = values.iter().map(memory).collect();
        let swaps: Vec<_> = values.iter().map(swap).collect();
        assert_eq!(cpu_of_all(cpus.iter()).map(|it| it.usage_core_nano_seconds), expected);
        let memory = memory_of_all(memories.iter());
        assert_eq!(memory.as_ref().map(|it| it.working_set_bytes), expected);
        assert_eq!(memory.and_then(|it| it.available_bytes), None);
        assert_eq!(swap_of_all(swaps.iter()).map(|it| it.swap_usage_bytes), expected);
    }

    #[test]
    fn layer_has_its_own_use_and_the_size_of_the_file_system() {
        let whole = FsStats {
            capacity_bytes: Some(100),
            used_bytes: Some(50),
            inodes: Some(10),
            inodes_used: Some(5),
            ..FsStats::default()
        };
        let from = cri::LayerStats { used_bytes: Some(7), ..cri::LayerStats::default() };
        let fs = layer(&from, Some(&whole));
        assert_eq!((fs.capacity_bytes, fs.used_bytes), (Some(100), Some(7)));
        assert_eq!((fs.inodes, fs.inodes_used), (Some(10), None));
        let two = [fs.clone(), fs];
        let sum = fs_of_all(two.iter(), Some(&whole), Timestamp::UNIX_EPOCH);
        assert_eq!((sum.capacity_bytes, sum.used_bytes), (Some(100), Some(14)));
        assert_eq!(layer(&from, None).capacity_bytes, None);
    }

    #[test]
    fn default_interface_is_among_all() {
        let eth0 = cri::InterfaceStats {
            name: "eth0".to_owned(),
            rx_bytes: Some(1),
            ..cri::InterfaceStats::default()
        };
        let stats = cri::NetworkStats { default: Some(eth0), ..cri::NetworkStats::default() };
        let stats = network(&stats);
        assert_eq!((stats.default.rx_bytes, stats.interfaces.len()), (Some(1), 1));
        let other = InterfaceStats { name: "ens3".to_owned(), ..InterfaceStats::default() };
        let machine = network_of_machine(vec![other], Timestamp::UNIX_EPOCH);
        assert_eq!(machine.map(|it| it.default.name), Some(String::new()));
        assert_eq!(network_of_machine(Vec::new(), Timestamp::UNIX_EPOCH), None);
    }

    #[test]
    fn machine_without_data_has_no_values() {
        let load = Load::default();
        assert_eq!((cpu_of_machine(&load, None), memory_of_machine(&load)), (None, None));
        assert_eq!(swap_of_machine(&load), None);
    }
}
