//! ◆ Maps values to the properties of systemd slices, as the kubelet does. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/cgroup_manager_linux.go; opencontainers/cgroups 0.0.6, systemd: common.go, v1.go, v2.go.

use std::path::Path;

use agent::machine::cgroups::CgroupValues;
use agent::pod_spec::spec::cpu;

use crate::dbus::{Property, PropertyValue};

/// No limit.
const INFINITY: u64 = u64::MAX;
/// The granularity of systemd's CPU quotas in microseconds per second: one percent of a CPU.
const PERCENT: i64 = 10_000;
const SECOND: i64 = 1_000_000;

/// The name of a slice: the last component of its path. It includes the names of its parents.
pub(super) fn slice_of(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    name.ends_with(".slice").then_some(name)
}

/// The properties of a new slice.
pub(super) fn of_new_slice(path: &Path, name: &str, is_v2: bool) -> Vec<Property> {
    let parent = path.parent().and_then(slice_of).unwrap_or("-.slice");
    let io = if is_v2 { "IOAccounting" } else { "BlockIOAccounting" };
    let flag = |name, is_on| Property::new(name, PropertyValue::Flag(is_on));
    vec![
        Property::new("Description", PropertyValue::Text(format!("libcontainer container {name}"))),
        Property::new("Wants", PropertyValue::Texts(vec![parent.to_owned()])),
        flag("MemoryAccounting", true),
        flag("CPUAccounting", true),
        flag(io, true),
        flag("TasksAccounting", true),
        flag("DefaultDependencies", false),
    ]
}

/// The properties for values. Values that systemd does not support are written only to cgroup files.
pub(super) fn of_values(values: &CgroupValues, is_v2: bool) -> Vec<Property> {
    let mut properties = Vec::new();
    let mut add = |name, number| {
        properties.push(Property::new(name, PropertyValue::Number(number)));
    };
    // A negative value means no limit.
    let limit = |limit: i64| u64::try_from(limit).unwrap_or(INFINITY);
    if let Some(memory) = values.memory.filter(|memory| *memory != 0) {
        add(if is_v2 { "MemoryMax" } else { "MemoryLimit" }, limit(memory));
    }
    if let Some(shares) = values.cpu_shares.filter(|shares| *shares != 0) {
        match is_v2 {
            true => add("CPUWeight", limit(cpu::weight(shares))),
            false => add("CPUShares", limit(shares)),
        }
    }
    if let Some((quota, period)) = values.cpu_quota {
        add("CPUQuotaPeriodUSec", limit(period));
        add(
            "CPUQuotaPerSecUSec",
            if quota > 0 { limit(per_second(quota, period)) } else { INFINITY },
        );
    }
    if let Some(pids) = values.pids {
        // systemd rejects 0.
        add("TasksMax", if pids == 0 { 1 } else { limit(pids) });
    }
    if is_v2 {
        for (file, text) in &values.unified {
            let name = match file.as_str() {
                "memory.high" => "MemoryHigh",
                "memory.low" => "MemoryLow",
                "memory.max" => "MemoryMax",
                "memory.min" => "MemoryMin",
                "memory.swap.max" => "MemorySwapMax",
                _ => continue,
            };
            match text.trim() {
                "max" => add(name, INFINITY),
                text => text.parse().into_iter().for_each(|number| add(name, number)),
            }
        }
    }
    properties
}

/// The values for the cgroup files: systemd rounds CPU quotas up, and a child's quota must not exceed its parent's.
pub(super) fn rounded(values: &CgroupValues) -> CgroupValues {
    let quota = values.cpu_quota.map(|(quota, period)| match quota > 0 {
        true => (per_second(quota, period).saturating_mul(period) / SECOND, period),
        false => (quota, period),
    });
    CgroupValues { cpu_quota: quota, ..values.clone() }
}

/// A quota in microseconds per second, rounded up to whole percents.
fn per_second(quota: i64, period: i64) -> i64 {
    let exact = quota.saturating_mul(SECOND) / period.max(1);
    exact.saturating_add(PERCENT - 1) / PERCENT * PERCENT
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    fn shown(properties: &[Property]) -> Vec<String> {
        let one = |property: &Property| match &property.value {
            PropertyValue::Number(INFINITY) => format!("{}=infinity", property.name),
            PropertyValue::Number(number) => format!("{}={number}", property.name),
            PropertyValue::Flag(flag) => format!("{}={flag}", property.name),
            PropertyValue::Text(text) => format!("{}={text}", property.name),
            PropertyValue::Texts(texts) => format!("{}={}", property.name, texts.join(" ")),
        };
        properties.iter().map(one).collect()
    }

    #[rstest]
    #[case("/kubepods.slice/kubepods-burstable.slice", Some("kubepods-burstable.slice"))]
    #[case("/kubepods/burstable", None)]
    #[case("/", None)]
    fn last_part_of_a_path_is_the_slice(#[case] path: &str, #[case] expected: Option<&str>) {
        assert_eq!(slice_of(Path::new(path)), expected);
    }

    #[rstest]
    #[case::top("/kubepods.slice", "-.slice")]
    #[case::below("/kubepods.slice/kubepods-pod1.slice", "kubepods.slice")]
    fn new_slice_wants_its_parent(#[case] path: &str, #[case] parent: &str) {
        let path = Path::new(path);
        let name = slice_of(path).unwrap();
        let expected = [
            format!("Description=libcontainer container {name}"),
            format!("Wants={parent}"),
            "MemoryAccounting=true".to_owned(),
            "CPUAccounting=true".to_owned(),
            "IOAccounting=true".to_owned(),
            "TasksAccounting=true".to_owned(),
            "DefaultDependencies=false".to_owned(),
        ];
        assert_eq!(shown(&of_new_slice(path, name, true)), expected);
        assert_eq!(shown(&of_new_slice(path, name, false))[4], "BlockIOAccounting=true");
    }

    #[rstest]
    #[case::v1(false, &["MemoryLimit=1000", "CPUShares=1024", "CPUQuotaPeriodUSec=100000", "CPUQuotaPerSecUSec=20000", "TasksMax=7"])]
    #[case::v2(true, &[
        "MemoryMax=1000", "CPUWeight=39", "CPUQuotaPeriodUSec=100000", "CPUQuotaPerSecUSec=20000", "TasksMax=7",
        "MemoryHigh=infinity", "MemoryMin=5",
    ])]
    fn values_map_to_properties(#[case] is_v2: bool, #[case] expected: &[&str]) {
        let texts = [("memory.min", "5"), ("memory.high", "max"), ("memory.oom.group", "1")];
        let values = CgroupValues {
            cpu_shares: Some(1024),
            // 1.1 % of a CPU.
            cpu_quota: Some((1100, 100_000)),
            memory: Some(1000),
            pids: Some(7),
            unified: texts.map(|(file, text)| (file.to_owned(), text.to_owned())).into(),
            ..CgroupValues::default()
        };
        assert_eq!(shown(&of_values(&values, is_v2)), expected);
        assert_eq!(rounded(&values).cpu_quota, Some((2000, 100_000)));
    }

    #[test]
    fn lifted_limits_are_infinity_and_absent_ones_are_omitted() {
        let lifted = CgroupValues {
            cpu_quota: Some((-1, 1000)),
            memory: Some(-1),
            pids: Some(-1),
            ..CgroupValues::default()
        };
        let expected = [
            "MemoryMax=infinity",
            "CPUQuotaPeriodUSec=1000",
            "CPUQuotaPerSecUSec=infinity",
            "TasksMax=infinity",
        ];
        assert_eq!(shown(&of_values(&lifted, true)), expected);
        assert_eq!(rounded(&lifted), lifted);
        assert!(of_values(&CgroupValues::default(), true).is_empty());
    }
}
