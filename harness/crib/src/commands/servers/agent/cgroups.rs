//! Flags and configuration of `crib agent` for cgroups: the cgroups of pods, and their CPU limits.

use std::io;
use std::path::Path;
use std::sync::Arc;

use agent::local_node::kubelet_config::{KubeletConfiguration, reserved_memory};
use agent::machine::cgroups::ControlGroups;
use agent::pod_spec::spec::cgroup::root_path;
use agent::{
    CgroupConfig, CgroupDriver, Config, MemoryQos, MemoryReservation, NodeAllocatable,
    ReservedCgroup,
};
use clap::{Args, ValueEnum};
use machine::cgroups::{HostCgroups, SystemdSlices};
use machine::dbus::system_bus;

/// The mount point of the hierarchy.
pub(super) const MOUNT: &str = "/sys/fs/cgroup";

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Cgroups")]
pub(crate) struct CgroupArgs {
    /// As the kubelet does, create a cgroup with each pod's limits below the cgroup of its QoS class, and pass the pod's cgroup
    /// to the runtime as cgroup_parent. Without permission to create cgroups, the agent logs a warning, and leaves cgroups to the
    /// runtime; only crib's runtime then sets pods' limits. false: the runtime chooses each pod's cgroup [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    cgroups_per_qos: Option<bool>,
    /// Cgroup driver to assume if the runtime reports none. With cgroupfs, a sandbox's cgroup_parent is a path; with systemd, a
    /// sandbox's cgroup_parent is a slice, which crib's runtime rejects [default: cgroupfs]
    #[arg(long, value_name = "DRIVER")]
    cgroup_driver: Option<Driver>,
    /// Parent of kubepods, the cgroup of all pods; use / on a node without another kubelet [default: /crib-ID, with the agent's
    /// id]
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
    /// Applies the flags, or else the file. Without a given root, the agent uses its own root cgroup, so that it does not interfere
    /// with a kubelet on the machine. With a given root, and unless the agent adopts the node, the root may also contain other
    /// agents' pods.
    pub(super) fn apply(
        &self,
        file: &KubeletConfiguration,
        agent_id: &str,
        adopts_node: bool,
        config: &mut CgroupConfig,
    ) {
        if let Some(per_qos) = self.cgroups_per_qos.or(file.cgroups_per_qos) {
            config.per_qos = per_qos;
        }
        let driver = self.cgroup_driver.map(CgroupDriver::from);
        if let Some(driver) = driver.or(driver_of(file)) {
            config.driver = driver;
        }
        let named = self.cgroup_root.as_ref().or(file.cgroup_root.as_ref());
        let named = named.filter(|root| !root.is_empty());
        config.root = named.cloned().unwrap_or_else(|| format!("/crib-{agent_id}"));
        config.owns_root = named.is_none();
        config.shares_root = named.is_some() && !adopts_node;
        config.pod_pids_limit = file.pod_pids_limit.filter(|most| *most > 0);
        config.enforced = enforced(file);
        let reserved = reserved_memory(file).unwrap_or_default();
        if file.gates().enabled("QOSReserved") {
            config.qos_reserved_memory = reserved;
        } else if reserved.is_some() {
            tracing::warn!(
                "qosReserved has no effect: it needs featureGates: {{QOSReserved: true}}"
            );
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

/// The enforced limits of node allocatable. The file was validated.
fn enforced(file: &KubeletConfiguration) -> NodeAllocatable {
    let Some(levels) = &file.enforce_node_allocatable else {
        return NodeAllocatable::default();
    };
    let has = |level: &str| levels.iter().any(|given| given == level);
    let cgroup = |level: &str, path: &Option<String>| {
        let compressible = has(&format!("{level}-compressible"));
        let path = path.clone().filter(|_| compressible || has(level))?;
        Some(ReservedCgroup { path, compressible })
    };
    NodeAllocatable {
        pods: has("pods"),
        system_reserved: cgroup("system-reserved", &file.system_reserved_cgroup),
        kube_reserved: cgroup("kube-reserved", &file.kube_reserved_cgroup),
    }
}

/// The cgroups in which the agent limits pods, if cgroupsPerQOS is set. The agent changes no other cgroups.
pub(super) fn cgroups(config: &Config) -> Result<Option<Arc<dyn ControlGroups>>, String> {
    let cgroups = &config.cgroups;
    if !cgroups.per_qos {
        return Ok(None);
    }
    let own = root_path(cgroups.driver, &cgroups.root);
    let enforced = &cgroups.enforced;
    let reserved = [&enforced.system_reserved, &enforced.kube_reserved];
    let reserved = reserved.into_iter().flatten().map(|cgroup| cgroup.path.as_str());
    let failed = |field: &str, error: io::Error| format!("{field}: {error}");
    let groups =
        HostCgroups::new(Path::new(MOUNT), &own).map_err(|error| failed("cgroupRoot", error))?;
    let groups = groups.with_named(reserved);
    let groups = groups.map_err(|error| failed("enforceNodeAllocatable", error))?;
    Ok(Some(match cgroups.driver {
        CgroupDriver::Cgroupfs => Arc::new(groups),
        CgroupDriver::Systemd => Arc::new(SystemdSlices::new(&system_bus(), groups)),
    }))
}

/// The cgroup driver in the file, which was validated.
fn driver_of(file: &KubeletConfiguration) -> Option<CgroupDriver> {
    file.cgroup_driver.as_ref().map(|driver| match driver.as_str() {
        "systemd" => CgroupDriver::Systemd,
        _ => CgroupDriver::Cgroupfs,
    })
}

/// The memory QoS settings in the file, which was validated.
fn memory_qos(file: &KubeletConfiguration) -> Option<MemoryQos> {
    let factor = file.memory_throttling_factor;
    file.gates().enabled("MemoryQoS").then(|| MemoryQos {
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
        let file = kubelet_config::check(&document).unwrap().config;
        flags.apply(&file, "id", false, &mut config);
        config
    }

    #[test]
    fn flags_win_over_fields_of_file() {
        let usual = CgroupConfig {
            root: "/crib-id".to_owned(),
            owns_root: true,
            ..CgroupConfig::default()
        };
        assert_eq!(applied(&NONE, ""), usual);
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
            shares_root: true,
            ..CgroupConfig::default()
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

    #[test]
    fn enforcement_names_what_is_limited() {
        let fields = "cgroupsPerQOS: true\nenforceNodeAllocatable: [system-reserved, kube-reserved-compressible]\n\
                      systemReservedCgroup: /s\nkubeReservedCgroup: /k\npodPidsLimit: 9\nqosReserved: {memory: 50%}";
        let cgroup =
            |path: &str, compressible| ReservedCgroup { path: path.to_owned(), compressible };
        let of_file = applied(&NONE, fields);
        let expected = NodeAllocatable {
            pods: false,
            system_reserved: Some(cgroup("/s", false)),
            kube_reserved: Some(cgroup("/k", true)),
        };
        assert_eq!((of_file.enforced, of_file.pod_pids_limit), (expected, Some(9)));
        assert_eq!(of_file.qos_reserved_memory, None, "without its gate");
        let gate = format!("{fields}\nfeatureGates: {{QOSReserved: true}}");
        assert_eq!(applied(&NONE, &gate).qos_reserved_memory, Some(50));
        let none = "enforceNodeAllocatable: [none]\npodPidsLimit: -1";
        let none = applied(&NONE, none);
        assert_eq!((none.enforced.pods, none.pod_pids_limit), (false, None));
    }

    #[test]
    fn cgroups_are_made_below_the_root_that_is_configured() {
        let mut config = Config::new("/r".into(), "/l".into());
        assert!(cgroups(&config).unwrap().is_none(), "nobody asked for them");
        config.cgroups.per_qos = true;
        for driver in [CgroupDriver::Systemd, CgroupDriver::Cgroupfs] {
            config.cgroups.driver = driver;
            assert!(cgroups(&config).unwrap().is_some());
        }
        config.cgroups.root = "/a/../b".to_owned();
        let problem = cgroups(&config).err().unwrap();
        assert!(problem.starts_with("cgroupRoot: invalid cgroup path \"/a/../b\""), "{problem}");
    }

    #[rstest]
    #[case::off("memoryThrottlingFactor: 0.5", None)]
    #[case::defaults("featureGates: {MemoryQoS: true}", Some((0.9, MemoryReservation::None)))]
    #[case::of_all("featureGates: {AllAlpha: true}", Some((0.9, MemoryReservation::None)))]
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
