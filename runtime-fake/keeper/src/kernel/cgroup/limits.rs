//! ◆ A client's limits, checked before anything is made.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The least memory of a container: the set-up before its program needs about this much.
pub const LEAST_MEMORY: i64 = 1 << 20;
/// The bounds of a CPU period in microseconds, and the least quota: the kernel's own.
const PERIODS: std::ops::RangeInclusive<i64> = 1000..=1_000_000;
const LEAST_QUOTA: i64 = 1000;

/// The limits of a container (CRI v1, LinuxContainerResources). 0 and empty mean none, or, in an update, unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Microseconds.
    pub cpu_period: i64,
    /// Microseconds per period; -1 is unlimited.
    pub cpu_quota: i64,
    /// 2 to 262144, as on v1.
    pub cpu_shares: i64,
    /// Bytes; -1 is unlimited.
    pub memory: i64,
    /// Bytes of memory and swap together; -1 is unlimited.
    pub memory_and_swap: i64,
    /// A list of processors.
    pub cpus: String,
    /// A list of memory nodes.
    pub mems: String,
    /// Bytes by page size (`2MB`).
    pub hugepages: BTreeMap<String, u64>,
    /// Names of v2 files with the values to write.
    pub unified: BTreeMap<String, String>,
}

/// Why a limit is invalid, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidCgroup(pub String);

pub(crate) fn invalid<T>(sentence: impl Into<String>) -> Result<T, InvalidCgroup> {
    Err(InvalidCgroup(sentence.into()))
}

impl Limits {
    /// Checks that the limits are valid.
    pub fn check(&self) -> Result<(), InvalidCgroup> {
        self.check_cpu()?;
        self.check_memory()?;
        check_list("cpuset_cpus", &self.cpus)?;
        check_list("cpuset_mems", &self.mems)?;
        for size in self.hugepages.keys() {
            let unit = size.trim_start_matches(|c: char| c.is_ascii_digit());
            if unit.len() == size.len() || !["KB", "MB", "GB"].contains(&unit) {
                return invalid(format!(
                    "hugepage_limits: {size:?} is not a page size: one is written as in 2MB or 1GB"
                ));
            }
        }
        for (file, value) in &self.unified {
            check_file(file, value)?;
        }
        Ok(())
    }

    fn check_cpu(&self) -> Result<(), InvalidCgroup> {
        if self.cpu_period != 0 && !PERIODS.contains(&self.cpu_period) {
            return invalid(format!(
                "cpu_period {} is out of bounds: {} to {} microseconds",
                self.cpu_period,
                PERIODS.start(),
                PERIODS.end()
            ));
        }
        if self.cpu_quota < -1 || (1..LEAST_QUOTA).contains(&self.cpu_quota) {
            return invalid(format!(
                "cpu_quota {} is out of bounds: at least {LEAST_QUOTA} microseconds, or -1 for no limit",
                self.cpu_quota
            ));
        }
        if self.cpu_shares < 0 {
            return invalid(format!("cpu_shares {} is negative: 2 to 262144", self.cpu_shares));
        }
        Ok(())
    }

    fn check_memory(&self) -> Result<(), InvalidCgroup> {
        if self.memory < -1 {
            return invalid(format!(
                "memory_limit_in_bytes {} is negative: give a limit, or -1 for no limit",
                self.memory
            ));
        }
        if (1..LEAST_MEMORY).contains(&self.memory) {
            return invalid(format!(
                "memory_limit_in_bytes {} is too low: a container needs at least {LEAST_MEMORY} bytes to be started",
                self.memory
            ));
        }
        let swap = self.memory_and_swap;
        if swap < -1 {
            return invalid(format!(
                "memory_swap_limit_in_bytes {swap} is negative: give a limit, or -1 for no limit"
            ));
        }
        if swap > 0 && self.memory <= 0 {
            return invalid(
                "memory_swap_limit_in_bytes is of memory and swap together: give memory_limit_in_bytes too",
            );
        }
        if (1..self.memory).contains(&swap) {
            return invalid(format!(
                "memory_swap_limit_in_bytes {swap} is below memory_limit_in_bytes {}: it is of memory and swap together",
                self.memory
            ));
        }
        Ok(())
    }
}

/// Checks a list of numbers as in cpuset(7): `0-3,7`. The kernel checks whether the host has them.
fn check_list(field: &str, list: &str) -> Result<(), InvalidCgroup> {
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    let fits = |part: &str| match part.split_once('-') {
        Some((from, to)) => {
            matches!((from.parse::<u32>(), to.parse::<u32>()), (Ok(from), Ok(to)) if from <= to)
        }
        None => is_number(part),
    };
    if list.is_empty() || list.split(',').all(|part| fits(part.trim())) {
        return Ok(());
    }
    invalid(format!("{field} {list:?} is not a list of numbers as in 0-3,7"))
}

/// Allows only files of controllers: files of the cgroup itself (`cgroup.procs`) are the runtime's.
fn check_file(file: &str, value: &str) -> Result<(), InvalidCgroup> {
    let word = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    };
    let parts: Vec<&str> = file.split('.').collect();
    if parts.len() < 2 || !parts.iter().all(|part| word(part)) {
        return invalid(format!(
            "unified: {file:?} is not a file of a cgroup: one is named as memory.high is"
        ));
    }
    if parts.first() == Some(&"cgroup") {
        return invalid(format!(
            "unified: {file:?} belongs to the runtime: only files of controllers can be written"
        ));
    }
    if value.is_empty() || value.contains('\0') {
        return invalid(format!("unified: nothing to be written into {file:?}"));
    }
    Ok(())
}

/// Converts v1 shares to a v2 weight: 1024 is 100, both are the default, and the ends of both scales meet. runc and
/// crun adopted this curve in 2025, because the earlier straight line gave small shares next to nothing.
pub fn weight(shares: i64) -> i64 {
    match shares {
        ..=2 => 1,
        262_144.. => 10_000,
        shares => {
            // Exact up to 2^53, far above the highest share.
            let log = (shares as f64).log2();
            let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
            // Rounds down a whole number that is slightly too high by floating-point error.
            (10f64.powf(exponent) - 1e-9).ceil() as i64
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn limits() -> Limits {
        Limits::default()
    }

    #[rstest]
    #[case::nothing(limits(), "")]
    #[case::usual(Limits { cpu_period: 100_000, cpu_quota: 50_000, cpu_shares: 512, memory: 64 << 20, ..limits() }, "")]
    #[case::unlimited(Limits { cpu_quota: -1, memory: 1 << 30, memory_and_swap: -1, ..limits() }, "")]
    #[case::swap(Limits { memory: 1 << 30, memory_and_swap: 2 << 30, ..limits() }, "")]
    #[case::lists(Limits { cpus: "0-2,7".into(), mems: "0".into(), ..limits() }, "")]
    #[case::unlimited_memory(Limits { memory: -1, memory_and_swap: -1, ..limits() }, "")]
    #[case::negative_memory(Limits { memory: -2, ..limits() }, "memory_limit_in_bytes -2 is negative")]
    #[case::swap_without_limit(Limits { memory: -1, memory_and_swap: 5 << 20, ..limits() }, "give memory_limit_in_bytes too")]
    #[case::least_number(Limits { memory: i64::MIN, ..limits() }, "is negative")]
    #[case::little_memory(Limits { memory: 2000, ..limits() }, "memory_limit_in_bytes 2000 is too low")]
    #[case::swap_alone(Limits { memory_and_swap: 5 << 20, ..limits() }, "give memory_limit_in_bytes too")]
    #[case::little_swap(Limits { memory: 5 << 20, memory_and_swap: 4 << 20, ..limits() }, "is below memory_limit_in_bytes")]
    #[case::negative_swap(Limits { memory: 5 << 20, memory_and_swap: -2, ..limits() }, "memory_swap_limit_in_bytes -2")]
    #[case::period(Limits { cpu_period: 10, ..limits() }, "cpu_period 10 is out of bounds: 1000 to 1000000")]
    #[case::negative_period(Limits { cpu_period: -1, ..limits() }, "out of bounds")]
    #[case::quota(Limits { cpu_quota: 999, ..limits() }, "cpu_quota 999 is out of bounds")]
    #[case::negative_quota(Limits { cpu_quota: -2, ..limits() }, "cpu_quota -2 is out of bounds")]
    #[case::shares(Limits { cpu_shares: -5, ..limits() }, "cpu_shares -5 is negative")]
    #[case::list(Limits { cpus: "a".into(), ..limits() }, "cpuset_cpus \"a\" is not a list")]
    #[case::backwards(Limits { cpus: "3-1".into(), ..limits() }, "is not a list")]
    #[case::lines(Limits { mems: "0\n1".into(), ..limits() }, "cpuset_mems \"0\\n1\"")]
    #[case::page(Limits { hugepages: [("../x".into(), 1)].into(), ..limits() }, "is not a page size")]
    #[case::unit(Limits { hugepages: [("2048".into(), 1)].into(), ..limits() }, "is not a page size")]
    #[case::file(Limits { unified: [("../memory.high".into(), "1".into())].into(), ..limits() }, "is not a file of a cgroup")]
    #[case::processes(Limits { unified: [("cgroup.procs".into(), "1".into())].into(), ..limits() }, "belongs to the runtime")]
    #[case::no_value(Limits { unified: [("memory.high".into(), "".into())].into(), ..limits() }, "nothing to be written")]
    fn limits_reject_invalid_values(#[case] limits: Limits, #[case] complaint: &str) {
        let said = limits.check().err().map(|wrong| wrong.0).unwrap_or_default();
        assert_eq!(complaint.is_empty(), said.is_empty(), "{said}");
        assert!(said.contains(complaint), "{said}");
    }

    #[rstest]
    #[case(0, 1)]
    #[case(2, 1)]
    #[case(3, 2)]
    #[case(100, 17)]
    #[case(512, 59)]
    #[case(1024, 100)]
    #[case(2048, 174)]
    #[case(10_000, 627)]
    #[case(262_144, 10_000)]
    #[case(i64::MAX, 10_000)]
    #[case(i64::MIN, 1)]
    fn cpu_shares_convert_to_weights(#[case] shares: i64, #[case] expected: i64) {
        assert_eq!(weight(shares), expected);
    }
}
