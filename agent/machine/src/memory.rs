//! ◆ Parses the kernel's statistics of memory and tasks. Pure.
//!
//! Source: cAdvisor 0.56, container/libcontainer/handler.go setMemoryStats, and runc, cgroups/fs2/memory.go rootStatsFromMeminfo:
//! the working set is the usage without inactive page cache. The root of the unified hierarchy has no `memory.current`, so its
//! usage comes from `/proc/meminfo`.

use agent::machine::MemoryUse;

/// The machine's memory from `/proc/meminfo`, and from `memory.stat` of the root of the unified hierarchy if it exists.
pub(crate) fn of_meminfo(meminfo: &str, stat: Option<&str>) -> Option<MemoryUse> {
    let capacity = kilobytes(meminfo, "MemTotal:")?;
    let usage = capacity.saturating_sub(kilobytes(meminfo, "MemFree:")?);
    let inactive = stat.and_then(|stat| number(stat, "inactive_file "));
    let inactive = inactive.or_else(|| kilobytes(meminfo, "Inactive(file):"));
    let working_set = usage.saturating_sub(inactive.unwrap_or_default());
    Some(MemoryUse { capacity, usage, working_set })
}

/// The machine's memory from the root cgroup of the cgroup v1 memory controller.
pub(crate) fn of_root_cgroup(meminfo: &str, usage: &str, stat: &str) -> Option<MemoryUse> {
    let capacity = kilobytes(meminfo, "MemTotal:")?;
    let usage: u64 = usage.trim().parse().ok()?;
    let inactive = number(stat, "total_inactive_file ").unwrap_or_default();
    Some(MemoryUse { capacity, usage, working_set: usage.saturating_sub(inactive) })
}

/// Limits from this value on mean unlimited: the kernel's maximum depends on the page size.
const UNLIMITED: u64 = 1 << 62;

/// The memory of a cgroup from its usage, its limit and its `memory.stat`, whose field `inactive` is reclaimable. The inner
/// `None` means that the cgroup has no limit.
pub(crate) fn of_cgroup(
    usage: &str,
    limit: &str,
    stat: &str,
    inactive: &str,
) -> Option<Option<MemoryUse>> {
    let usage: u64 = usage.trim().parse().ok()?;
    let working_set = usage.saturating_sub(number(stat, inactive)?);
    let capacity = match limit.trim() {
        "max" => u64::MAX,
        limit => limit.parse().ok()?,
    };
    Some((capacity < UNLIMITED).then_some(MemoryUse { capacity, usage, working_set }))
}

/// The number of tasks, from `/proc/loadavg`.
pub(crate) fn tasks(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// An amount in `/proc/meminfo`, in bytes.
pub(crate) fn kilobytes(meminfo: &str, name: &str) -> Option<u64> {
    let amount = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = amount.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("MemTotal: 10 kB\nMemFree: 4 kB\n", Some((10, 6)))]
    #[case("MemTotal: 10 kB\nMemFree: 4 kB\nInactive(file): 1 kB\n", Some((10, 5)))]
    #[case("MemTotal: 10 kB\nMemFree: 40 kB\nInactive(file): 1 kB\n", Some((10, 0)))]
    #[case("MemTotal: 10 kB\n", None)]
    #[case("MemTotal: many kB\nMemFree: 4 kB\n", None)]
    #[case("", None)]
    fn meminfo_is_read(#[case] text: &str, #[case] expected: Option<(u64, u64)>) {
        let found = of_meminfo(text, None);
        let found = found.map(|found| (found.capacity / 1024, found.working_set / 1024));
        assert_eq!(found, expected);
    }

    #[rstest]
    #[case::limited("600\n", "1000\n", "inactive_file 100\n", Some(Some((1000, 600, 500))))]
    #[case::unlimited("600\n", "max\n", "inactive_file 100\n", Some(None))]
    #[case::unlimited_on_v1("600\n", "9223372036854771712\n", "inactive_file 100\n", Some(None))]
    #[case::malformed("many\n", "max\n", "inactive_file 100\n", None)]
    #[case::without_what_can_be_reclaimed("600\n", "max\n", "", None)]
    fn cgroup_has_memory_if_it_has_a_limit(
        #[case] usage: &str,
        #[case] limit: &str,
        #[case] stat: &str,
        #[case] expected: Option<Option<(u64, u64, u64)>>,
    ) {
        let found = of_cgroup(usage, limit, stat, "inactive_file ");
        let numbers = |found: MemoryUse| (found.capacity, found.usage, found.working_set);
        assert_eq!(found.map(|found| found.map(numbers)), expected);
    }

    #[rstest]
    #[case("0.1 0.2 0.3 2/345 678\n", Some(345))]
    #[case("0.1 0.2 0.3\n", None)]
    fn loadavg_counts_tasks(#[case] text: &str, #[case] expected: Option<u64>) {
        assert_eq!(tasks(text), expected);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(MemTotal:|MemFree:|total_|inactive_file |/|kB|[0-9]{1,20}|[ \n]){0,30}") {
            let _ = (of_meminfo(&text, Some(&text)), of_root_cgroup(&text, &text, &text), tasks(&text), of_cgroup(&text, &text, &text, "inactive_file "));
        }
    }
}
