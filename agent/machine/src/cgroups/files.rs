//! ◆ Maps values to the files of a cgroup, on cgroup v1 and v2. Pure.
//!
//! Source: kernel documentation, admin-guide/cgroup-v1 and admin-guide/cgroup-v2.rst; Kubernetes 1.36, pkg/kubelet/cm
//! cgroup_manager_linux.go toResources.

use agent::machine::cgroups::CgroupValues;
use agent::pod_spec::spec::cpu;

/// The controllers that limit pods. `hugetlb` may be missing: the machine then has no huge pages to limit.
pub(super) const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];

/// Limits from this value on mean unlimited: cgroup v1 rounds a limit down to whole pages.
const UNLIMITED: i64 = i64::MAX - 4096;

/// A write of a cgroup file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileWrite {
    /// The file name.
    pub(super) file: String,
    /// The text.
    pub(super) text: String,
    /// Whether a failure is ignored, because a later write repeats it.
    pub(super) optional: bool,
}

impl FileWrite {
    /// A write that must succeed.
    pub(super) fn new(file: impl Into<String>, text: impl ToString) -> Self {
        Self { file: file.into(), text: text.to_string(), optional: false }
    }
}

/// The writes of values, in order, for the controllers of a hierarchy.
pub(super) fn texts(
    values: &CgroupValues,
    is_v2: bool,
    has: impl Fn(&str) -> bool,
) -> Vec<FileWrite> {
    let mut writes = Vec::new();
    if has("cpu") {
        writes.extend(cpu_texts(values, is_v2));
    }
    if has("memory")
        && let Some(limit) = values.memory
    {
        let none = !(0..UNLIMITED).contains(&limit);
        writes.push(match is_v2 {
            true if none => FileWrite::new("memory.max", "max"),
            true => FileWrite::new("memory.max", limit),
            false if none => FileWrite::new("memory.limit_in_bytes", -1),
            false => FileWrite::new("memory.limit_in_bytes", limit),
        });
    }
    if has("pids")
        && let Some(limit) = values.pids
    {
        writes.push(match limit {
            0.. => FileWrite::new("pids.max", limit),
            _ => FileWrite::new("pids.max", "max"),
        });
    }
    if has("hugetlb") {
        for (size, limit) in &values.huge_pages {
            // Kernels before 5.7 have no reservation limits.
            for kind in ["", "rsvd."] {
                let end = if is_v2 { "max" } else { "limit_in_bytes" };
                writes.push(FileWrite::new(format!("hugetlb.{size}.{kind}{end}"), limit));
            }
        }
    }
    if is_v2 {
        let is_of = |file: &str| file.split('.').next().is_some_and(&has);
        let files = values.unified.iter().filter(|(file, _)| is_of(file));
        writes.extend(files.map(|(file, text)| FileWrite::new(file, text)));
    }
    writes
}

fn cpu_texts(values: &CgroupValues, is_v2: bool) -> Vec<FileWrite> {
    let mut writes = Vec::new();
    if let Some(shares) = values.cpu_shares {
        writes.push(match is_v2 {
            true => FileWrite::new("cpu.weight", cpu::weight(shares)),
            false => FileWrite::new("cpu.shares", shares),
        });
    }
    let Some((quota, period)) = values.cpu_quota else {
        return writes;
    };
    if is_v2 {
        let quota = if quota > 0 { quota.to_string() } else { "max".to_owned() };
        writes.push(FileWrite::new("cpu.max", format!("{quota} {period}")));
    } else {
        let quota = if quota > 0 { quota } else { -1 };
        let period = FileWrite::new("cpu.cfs_period_us", period);
        // The kernel rejects a period with which the old quota would exceed the parent's, so the period is written again after
        // the new quota.
        writes.push(FileWrite { optional: true, ..period.clone() });
        writes.push(FileWrite::new("cpu.cfs_quota_us", quota));
        writes.push(period);
    }
    writes
}

#[cfg(test)]
mod tests {
    use compact::Map;
    use rstest::rstest;

    use super::*;

    fn all() -> CgroupValues {
        CgroupValues {
            cpu_shares: Some(1024),
            cpu_quota: Some((50_000, 100_000)),
            memory: Some(1 << 20),
            pids: Some(7),
            huge_pages: Map::from([("2MB".to_owned(), 0)]),
            unified: std::collections::BTreeMap::from([
                ("memory.low".to_owned(), "5".to_owned()),
                ("io.weight".to_owned(), "1".to_owned()),
            ]),
        }
    }

    fn lines(values: &CgroupValues, is_v2: bool, controllers: &[&str]) -> Vec<String> {
        let writes = texts(values, is_v2, |name| controllers.contains(&name));
        writes.iter().map(|it| format!("{}={}", it.file, it.text)).collect()
    }

    #[rstest]
    #[case::v1(false, &["cpu", "memory", "pids", "hugetlb"], &[
        "cpu.shares=1024", "cpu.cfs_period_us=100000", "cpu.cfs_quota_us=50000", "cpu.cfs_period_us=100000",
        "memory.limit_in_bytes=1048576", "pids.max=7", "hugetlb.2MB.limit_in_bytes=0", "hugetlb.2MB.rsvd.limit_in_bytes=0",
    ])]
    #[case::v2(true, &["cpu", "memory", "pids", "hugetlb"], &[
        "cpu.weight=39", "cpu.max=50000 100000", "memory.max=1048576", "pids.max=7", "hugetlb.2MB.max=0",
        "hugetlb.2MB.rsvd.max=0", "memory.low=5",
    ])]
    #[case::one_controller(false, &["pids"], &["pids.max=7"])]
    #[case::hybrid_without_controllers(true, &[], &[])]
    fn files_depend_on_version_and_controllers(
        #[case] is_v2: bool,
        #[case] controllers: &[&str],
        #[case] expected: &[&str],
    ) {
        assert_eq!(lines(&all(), is_v2, controllers), expected);
        assert!(lines(&CgroupValues::default(), is_v2, controllers).is_empty());
    }

    #[rstest]
    #[case::v1(false, &["cpu.cfs_period_us=1000", "cpu.cfs_quota_us=-1", "cpu.cfs_period_us=1000", "memory.limit_in_bytes=-1", "pids.max=max"])]
    #[case::v2(true, &["cpu.max=max 1000", "memory.max=max", "pids.max=max"])]
    fn lifted_limits_are_max(#[case] is_v2: bool, #[case] expected: &[&str]) {
        let lifted = CgroupValues {
            cpu_quota: Some((-1, 1000)),
            memory: Some(i64::MAX - 4095),
            pids: Some(-1),
            ..CgroupValues::default()
        };
        let controllers = ["cpu", "memory", "pids"];
        assert_eq!(lines(&lifted, is_v2, &controllers), expected);
        let lifted = CgroupValues { memory: Some(-1), ..lifted };
        assert_eq!(lines(&lifted, is_v2, &controllers), expected);
    }
}
