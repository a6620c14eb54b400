//! ◆ Converts CPU quantities to the kernel's units and back.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/helpers_linux.go and cgroup_v2_manager_linux.go.

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const SHARES_PER_CPU: i64 = 1024;

/// The kernel's minimum quota, in microseconds.
const MIN_QUOTA: i64 = 1000;

/// Greatest `cpu.weight` of cgroup v2, less one.
const WEIGHTS: i64 = 9999;

/// Millicores as cgroup v1 shares: 1024 per core, from 2 to 262144.
pub fn shares(milli: i64) -> i64 {
    (milli.saturating_mul(SHARES_PER_CPU) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// Millicores as CFS quota for this period, in microseconds: at least 1 ms; 0 for no limit.
pub fn quota(milli: i64, period: i64) -> i64 {
    if milli == 0 { 0 } else { (milli.saturating_mul(period) / 1000).max(MIN_QUOTA) }
}

/// cgroup v1 shares as `cpu.weight` of cgroup v2, from 1 to 10000; 0 for no shares.
pub fn weight(shares: i64) -> i64 {
    if shares == 0 {
        0
    } else {
        1 + (shares.clamp(MIN_SHARES, MAX_SHARES) - MIN_SHARES) * WEIGHTS
            / (MAX_SHARES - MIN_SHARES)
    }
}

/// `cpu.weight` of cgroup v2 as cgroup v1 shares.
pub fn shares_of_weight(weight: i64) -> i64 {
    weight.saturating_sub(1).saturating_mul(MAX_SHARES - MIN_SHARES) / WEIGHTS + MIN_SHARES
}

/// cgroup v1 shares as millicores, rounded up.
pub fn milli_of_shares(shares: i64) -> i64 {
    if shares < MIN_SHARES {
        return 0;
    }
    let thousands = shares.saturating_mul(1000);
    thousands / SHARES_PER_CPU + i64::from(thousands % SHARES_PER_CPU != 0)
}

/// A CFS quota as millicores; 0 for no limit (-1) or without a period.
pub fn milli_of_quota(quota: i64, period: i64) -> i64 {
    if quota == -1 {
        return 0;
    }
    quota.saturating_mul(1000).checked_div(period).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn conversions_have_limits() {
        assert_eq!((shares(0), shares(1), shares(i64::MAX)), (2, 2, 262_144));
        assert_eq!((quota(0, 100_000), quota(1, 100_000)), (0, 1000));
        assert_eq!((weight(2), weight(262_144)), (1, 10_000));
        assert_eq!((milli_of_quota(-1, 100_000), milli_of_quota(5, 0)), (0, 0));
    }

    proptest! {
        #[test]
        fn conversions_never_panic(a in any::<i64>(), b in any::<i64>()) {
            let _ = (shares(a), quota(a, b), weight(a), shares_of_weight(a), milli_of_shares(a), milli_of_quota(a, b));
        }
    }
}
