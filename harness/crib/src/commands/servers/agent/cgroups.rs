//! Flags and settings of `crib agent` about cgroups: where those of pods are, and how CPU is limited in them.

use agent::local_node::kubelet_config::KubeletConfiguration;
use agent::{CgroupConfig, CgroupDriver, MemoryQos, MemoryReservation};
use clap::{Args, ValueEnum};

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Cgroups")]
pub(crate) struct CgroupArgs {
    /// Give each pod a cgroup below that of its QoS class, named to the runtime as the sandbox's cgroup_parent. A kubelet
    /// makes it and limits the pod there; the agent leaves both to the runtime: crib's does them, another one makes the
    /// cgroup without limits of the pod as a whole. False: the runtime chooses [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    cgroups_per_qos: Option<bool>,
    /// Form of cgroup_parent: a path, or a slice of systemd, which crib's runtime refuses [default: cgroupfs]
    #[arg(long, value_name = "DRIVER")]
    cgroup_driver: Option<Driver>,
    /// Cgroup above kubepods, the one of all pods [default: /]
    #[arg(long, value_name = "PATH")]
    cgroup_root: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Driver {
    Cgroupfs,
    Systemd,
}

impl From<Driver> for CgroupDriver {
    fn from(driver: Driver) -> Self {
        match driver {
            Driver::Cgroupfs => Self::Cgroupfs,
            Driver::Systemd => Self::Systemd,
        }
    }
}

impl CgroupArgs {
    /// Sets what the flags say, or else the file.
    pub(super) fn apply(&self, file: &KubeletConfiguration, config: &mut CgroupConfig) {
        if let Some(per_qos) = self.cgroups_per_qos.or(file.cgroups_per_qos) {
            config.per_qos = per_qos;
        }
        let driver = self.cgroup_driver.map(CgroupDriver::from);
        if let Some(driver) = driver.or(driver_of(file)) {
            config.driver = driver;
        }
        if let Some(root) = self.cgroup_root.as_ref().or(file.cgroup_root.as_ref()) {
            config.root.clone_from(root);
        }
        if let Some(limited) = file.cpu_cfs_quota {
            config.cpu_quota = limited;
        }
        if let Some(period) = file.cpu_cfs_quota_period {
            config.cpu_quota_period = period.get();
        }
        if let Some(single) = file.single_process_oom_kill {
            config.single_process_oom_kill = single;
        }
        config.memory_qos = memory_qos(file);
    }
}

/// The driver that the file names; it was checked.
fn driver_of(file: &KubeletConfiguration) -> Option<CgroupDriver> {
    file.cgroup_driver.as_ref().map(|driver| match driver.as_str() {
        "systemd" => CgroupDriver::Systemd,
        _ => CgroupDriver::Cgroupfs,
    })
}

/// What the file says of memory QoS; it was checked.
fn memory_qos(file: &KubeletConfiguration) -> Option<MemoryQos> {
    let gate = file.feature_gates.as_ref().and_then(|gates| gates.get("MemoryQoS").copied());
    let factor = file.memory_throttling_factor;
    (gate == Some(true)).then(|| MemoryQos {
        throttling_factor: factor.unwrap_or(MemoryQos::THROTTLING_FACTOR),
        reservation: match file.memory_reservation_policy.as_deref() {
            Some("TieredReservation") => MemoryReservation::TieredReservation,
            Some(_) | None => MemoryReservation::None,
        },
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use agent::local_node::kubelet_config;
    use rstest::rstest;

    use super::*;

    const NONE: CgroupArgs =
        CgroupArgs { cgroups_per_qos: None, cgroup_driver: None, cgroup_root: None };

    fn applied(flags: &CgroupArgs, fields: &str) -> CgroupConfig {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let file = kubelet_config::parse(&format!("{head}{fields}\n")).unwrap();
        let document = kubelet_config::normalized(&file.document).unwrap();
        let mut config = CgroupConfig::default();
        flags.apply(&kubelet_config::check(&document).unwrap().config, &mut config);
        config
    }

    #[test]
    fn flags_win_over_fields_of_file() {
        assert_eq!(applied(&NONE, ""), CgroupConfig::default());
        let fields = "{cgroupsPerQOS: true, cgroupDriver: systemd, cgroupRoot: /x, cpuCFSQuota: false, \
                      cpuCFSQuotaPeriod: 5ms, singleProcessOOMKill: false}";
        let fields = fields.trim_matches(['{', '}']).replace(", ", "\n");
        let of_file = CgroupConfig {
            per_qos: true,
            driver: CgroupDriver::Systemd,
            root: "/x".to_owned(),
            cpu_quota: false,
            cpu_quota_period: Duration::from_millis(5),
            single_process_oom_kill: false,
            memory_qos: None,
        };
        assert_eq!(applied(&NONE, &fields), of_file);
        let flags = CgroupArgs {
            cgroups_per_qos: Some(false),
            cgroup_driver: Some(Driver::Cgroupfs),
            cgroup_root: Some("/y".to_owned()),
        };
        let expected = CgroupConfig {
            per_qos: false,
            driver: CgroupDriver::Cgroupfs,
            root: "/y".to_owned(),
            ..of_file
        };
        assert_eq!(applied(&flags, &fields), expected);
    }

    #[rstest]
    #[case::off("memoryThrottlingFactor: 0.5", None)]
    #[case::defaults("featureGates: {MemoryQoS: true}", Some((0.9, MemoryReservation::None)))]
    #[case::given(
        "featureGates: {MemoryQoS: true}\nmemoryThrottlingFactor: 0.5\nmemoryReservationPolicy: TieredReservation",
        Some((0.5, MemoryReservation::TieredReservation))
    )]
    fn gate_switches_memory_qos_on(
        #[case] fields: &str,
        #[case] expected: Option<(f64, MemoryReservation)>,
    ) {
        let seen = applied(&NONE, fields).memory_qos;
        let seen = seen.map(|qos| (qos.throttling_factor, qos.reservation));
        assert_eq!(seen, expected);
    }
}
