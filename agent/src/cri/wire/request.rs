//! Conversion of the agent's types into protobuf requests.

use std::collections::{BTreeMap, HashMap};

use api::pod::PodUid;
use cri::v1::{self, Signal};

use crate::labels;
use crate::pod_spec::spec::{
    ContainerSecurity, ContainerSpec, DeviceSpec, ImageSpec, MountSpec, NamespaceMode, Namespaces,
    PortMapping, Propagation, Protocol, Resources, SandboxSecurity, SandboxSpec, SecurityProfile,
    Selinux, UserNamespace,
};

/// The label selector of a pod.
pub(in crate::cri) fn pod_selector(uid: &PodUid) -> HashMap<String, String> {
    HashMap::from([(labels::POD_UID.to_owned(), uid.as_str().to_owned())])
}

fn map(from: &BTreeMap<String, String>) -> HashMap<String, String> {
    from.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn text(path: &std::path::Path) -> String {
    path.to_string_lossy().into_owned()
}

fn number(value: Option<i64>) -> Option<v1::Int64Value> {
    value.map(|value| v1::Int64Value { value })
}

pub(in crate::cri) fn sandbox_config(spec: &SandboxSpec) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: spec.name.clone(),
            uid: spec.uid.clone(),
            namespace: spec.namespace.clone(),
            attempt: spec.attempt,
        }),
        hostname: spec.hostname.clone(),
        log_directory: text(&spec.log_directory),
        dns_config: Some(v1::DnsConfig {
            servers: spec.dns.servers.clone(),
            searches: spec.dns.searches.clone(),
            options: spec.dns.options.clone(),
        }),
        port_mappings: spec.port_mappings.iter().map(port_mapping).collect(),
        labels: map(&spec.labels),
        annotations: map(&spec.annotations),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: spec.cgroup_parent.clone(),
            security_context: Some(sandbox_security(&spec.security)),
            sysctls: map(&spec.sysctls),
            overhead: Some(resources(&spec.overhead)),
            resources: Some(resources(&spec.resources)),
        }),
        windows: None,
    }
}

fn port_mapping(from: &PortMapping) -> v1::PortMapping {
    let protocol = match from.protocol {
        Protocol::Tcp => v1::Protocol::Tcp,
        Protocol::Udp => v1::Protocol::Udp,
        Protocol::Sctp => v1::Protocol::Sctp,
    };
    v1::PortMapping {
        protocol: protocol.into(),
        container_port: from.container_port,
        host_port: from.host_port,
        host_ip: from.host_ip.clone(),
    }
}

fn sandbox_security(from: &SandboxSecurity) -> v1::LinuxSandboxSecurityContext {
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(&from.namespaces)),
        selinux_options: from.selinux.as_ref().map(selinux),
        run_as_user: number(from.run_as_user),
        run_as_group: number(from.run_as_group),
        supplemental_groups: from.supplemental_groups.clone(),
        supplemental_groups_policy: groups_policy(from.strict_supplemental_groups),
        privileged: from.privileged,
        seccomp: from.seccomp.as_ref().map(profile),
        apparmor: from.apparmor.as_ref().map(profile),
        ..v1::LinuxSandboxSecurityContext::default()
    }
}

fn groups_policy(strict: bool) -> i32 {
    if strict {
        v1::SupplementalGroupsPolicy::Strict.into()
    } else {
        v1::SupplementalGroupsPolicy::Merge.into()
    }
}

fn namespace_mode(from: NamespaceMode) -> i32 {
    match from {
        NamespaceMode::Pod => v1::NamespaceMode::Pod,
        NamespaceMode::Container => v1::NamespaceMode::Container,
        NamespaceMode::Node => v1::NamespaceMode::Node,
        NamespaceMode::Target => v1::NamespaceMode::Target,
    }
    .into()
}

/// Conversion of mappings of user or group ids.
fn id_mappings(from: Option<&UserNamespace>) -> Vec<v1::IdMapping> {
    let mapping = |ids: &UserNamespace| v1::IdMapping {
        host_id: ids.host_id,
        container_id: ids.container_id,
        length: ids.length,
    };
    from.map(mapping).into_iter().collect()
}

/// The deprecated AppArmor profile name, for older runtimes.
fn apparmor_name(from: &SecurityProfile) -> String {
    match from {
        SecurityProfile::RuntimeDefault => "runtime/default".to_owned(),
        SecurityProfile::Unconfined => "unconfined".to_owned(),
        SecurityProfile::Localhost(name) => format!("localhost/{name}"),
    }
}

fn namespaces(from: &Namespaces) -> v1::NamespaceOption {
    let mode = match &from.user {
        None => v1::NamespaceMode::Node,
        Some(_) => v1::NamespaceMode::Pod,
    };
    let user = v1::UserNamespace {
        mode: mode.into(),
        uids: id_mappings(from.user.as_ref()),
        gids: id_mappings(from.user.as_ref()),
    };
    v1::NamespaceOption {
        network: namespace_mode(from.network),
        pid: namespace_mode(from.pid),
        ipc: namespace_mode(from.ipc),
        target_id: from.target_id.clone(),
        userns_options: Some(user),
    }
}

fn selinux(from: &Selinux) -> v1::SeLinuxOption {
    v1::SeLinuxOption {
        user: from.user.clone(),
        role: from.role.clone(),
        r#type: from.kind.clone(),
        level: from.level.clone(),
    }
}

fn profile(from: &SecurityProfile) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType;
    let (kind, localhost_ref) = match from {
        SecurityProfile::RuntimeDefault => (ProfileType::RuntimeDefault, String::new()),
        SecurityProfile::Unconfined => (ProfileType::Unconfined, String::new()),
        SecurityProfile::Localhost(name) => (ProfileType::Localhost, name.clone()),
    };
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref }
}

pub(super) fn resources(from: &Resources) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        cpu_period: from.cpu_period,
        cpu_quota: from.cpu_quota,
        cpu_shares: from.cpu_shares,
        memory_limit_in_bytes: from.memory_limit,
        memory_swap_limit_in_bytes: from.memory_swap_limit,
        oom_score_adj: from.oom_score_adj,
        hugepage_limits: from
            .hugepage_limits
            .iter()
            .map(|(page_size, limit)| v1::HugepageLimit {
                page_size: page_size.clone(),
                limit: *limit,
            })
            .collect(),
        unified: map(&from.unified),
        cpuset_cpus: from.cpuset_cpus.clone(),
        cpuset_mems: from.cpuset_mems.clone(),
    }
}

pub(in crate::cri) fn image_spec(from: &ImageSpec) -> v1::ImageSpec {
    v1::ImageSpec {
        image: from.image.clone(),
        annotations: map(&from.annotations),
        user_specified_image: from.user_specified.clone(),
        runtime_handler: from.runtime_handler.clone(),
        ..v1::ImageSpec::default()
    }
}

fn mount(from: &MountSpec) -> v1::Mount {
    let propagation = match from.propagation {
        Propagation::Private => v1::MountPropagation::PropagationPrivate,
        Propagation::HostToContainer => v1::MountPropagation::PropagationHostToContainer,
        Propagation::Bidirectional => v1::MountPropagation::PropagationBidirectional,
    };
    v1::Mount {
        container_path: from.container_path.clone(),
        host_path: text(&from.host_path),
        readonly: from.readonly,
        recursive_read_only: from.recursive_read_only,
        selinux_relabel: from.selinux_relabel,
        propagation: propagation.into(),
        uid_mappings: id_mappings(from.user_namespace.as_ref()),
        gid_mappings: id_mappings(from.user_namespace.as_ref()),
        image: from.image.as_ref().map(image_spec),
        image_sub_path: from.image_sub_path.clone(),
        ..v1::Mount::default()
    }
}

fn device(from: &DeviceSpec) -> v1::Device {
    v1::Device {
        container_path: from.container_path.clone(),
        host_path: from.host_path.clone(),
        permissions: from.permissions.clone(),
    }
}

pub(in crate::cri) fn container_config(spec: &ContainerSpec) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: spec.name.clone(), attempt: spec.attempt }),
        image: Some(image_spec(&spec.image)),
        command: spec.command.clone(),
        args: spec.args.clone(),
        working_dir: spec.working_dir.clone(),
        envs: spec
            .envs
            .iter()
            .map(|(key, value)| v1::KeyValue { key: key.clone(), value: value.clone() })
            .collect(),
        mounts: spec.mounts.iter().map(mount).collect(),
        devices: spec.devices.iter().map(device).collect(),
        cdi_devices: spec
            .cdi_devices
            .iter()
            .map(|name| v1::CdiDevice { name: name.clone() })
            .collect(),
        labels: map(&spec.labels),
        annotations: map(&spec.annotations),
        log_path: text(&spec.log_path),
        stdin: spec.stdin,
        stdin_once: spec.stdin_once,
        tty: spec.tty,
        stop_signal: signal_to_wire(&spec.stop_signal),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources(&spec.resources)),
            security_context: Some(container_security(&spec.security)),
        }),
        ..v1::ContainerConfig::default()
    }
}

/// `None` for a container that changes no capability.
fn capabilities(from: &ContainerSecurity) -> Option<v1::Capability> {
    let changed = !from.add_capabilities.is_empty() || !from.drop_capabilities.is_empty();
    changed.then(|| v1::Capability {
        add_capabilities: from.add_capabilities.clone(),
        drop_capabilities: from.drop_capabilities.clone(),
        add_ambient_capabilities: Vec::new(),
    })
}

#[expect(deprecated, reason = "kubelets still name the AppArmor profile for older runtimes")]
fn container_security(from: &ContainerSecurity) -> v1::LinuxContainerSecurityContext {
    v1::LinuxContainerSecurityContext {
        capabilities: capabilities(from),
        privileged: from.privileged,
        namespace_options: Some(namespaces(&from.namespaces)),
        selinux_options: from.selinux.as_ref().map(selinux),
        run_as_user: number(from.run_as_user),
        run_as_group: number(from.run_as_group),
        run_as_username: from.run_as_username.clone(),
        readonly_rootfs: from.readonly_rootfs,
        supplemental_groups: from.supplemental_groups.clone(),
        supplemental_groups_policy: groups_policy(from.strict_supplemental_groups),
        no_new_privs: from.no_new_privs,
        masked_paths: from.masked_paths.clone(),
        readonly_paths: from.readonly_paths.clone(),
        seccomp: from.seccomp.as_ref().map(profile),
        apparmor: from.apparmor.as_ref().map(profile),
        apparmor_profile: from.apparmor.as_ref().map(apparmor_name).unwrap_or_default(),
        ..v1::LinuxContainerSecurityContext::default()
    }
}

/// The parts of stop signal names that differ between the CRI and Kubernetes (`SIGRTMIN+1`).
const SIGNAL_PARTS: [(&str, &str); 2] =
    [("SIGRTMINPLUS", "SIGRTMIN+"), ("SIGRTMAXMINUS", "SIGRTMAX-")];

/// The CRI's signal for a name in Kubernetes; an unknown name stands for the image's signal.
pub(super) fn signal_to_wire(name: &str) -> i32 {
    let name = SIGNAL_PARTS
        .iter()
        .fold(name.to_owned(), |name, (of_cri, of_kubernetes)| name.replace(of_kubernetes, of_cri));
    Signal::from_str_name(&name).unwrap_or(Signal::RuntimeDefault).into()
}

/// The name of a signal in Kubernetes; `None` if the runtime does not report it.
pub(super) fn signal_name(signal: i32) -> Option<Box<str>> {
    let signal = Signal::try_from(signal).ok()?;
    if signal == Signal::RuntimeDefault {
        return None;
    }
    let name = signal.as_str_name().to_owned();
    let name = SIGNAL_PARTS
        .iter()
        .fold(name, |name, (of_cri, of_kubernetes)| name.replace(of_cri, of_kubernetes));
    Some(name.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    #[test]
    fn namespaces_are_converted_with_user_mapping() {
        let shared = namespaces(&Namespaces {
            network: NamespaceMode::Node,
            pid: NamespaceMode::Container,
            ..Namespaces::default()
        });
        assert_eq!(shared.network(), v1::NamespaceMode::Node);
        assert_eq!(shared.pid(), v1::NamespaceMode::Container);
        assert_eq!(
            shared.userns_options.unwrap().mode(),
            v1::NamespaceMode::Node,
            "no user namespace is the node's"
        );
        let own = UserNamespace { host_id: 100_000, container_id: 0, length: 65_536 };
        let own = namespaces(&Namespaces { user: Some(own), ..Namespaces::default() })
            .userns_options
            .unwrap();
        assert_eq!((own.mode(), own.uids.len(), own.gids.len()), (v1::NamespaceMode::Pod, 1, 1));
        assert_eq!(own.uids[0].host_id, 100_000);
    }

    #[test]
    fn container_config_keeps_order_devices_and_absent_user() {
        let spec = ContainerSpec {
            name: "app".to_owned(),
            attempt: 3,
            envs: vec![("B".to_owned(), b"2".to_vec()), ("A".to_owned(), b"1".to_vec())],
            mounts: vec![MountSpec {
                container_path: "/data".to_owned(),
                host_path: "/host".into(),
                ..MountSpec::default()
            }],
            devices: vec![DeviceSpec {
                container_path: "/dev/in".to_owned(),
                host_path: "/dev/out".to_owned(),
                permissions: "r".to_owned(),
            }],
            cdi_devices: vec!["vendor.com/gpu=1".to_owned()],
            resources: Resources {
                cpuset_cpus: "1-2".to_owned(),
                cpuset_mems: "0".to_owned(),
                ..Resources::default()
            },
            ..ContainerSpec::default()
        };
        let config = container_config(&spec);
        assert_eq!(config.metadata.unwrap().attempt, 3);
        let names: Vec<_> = config.envs.iter().map(|env| env.key.as_str()).collect();
        assert_eq!(names, ["B", "A"]);
        assert_eq!(config.mounts[0].host_path, "/host");
        let device = &config.devices[0];
        let device = [&device.container_path, &device.host_path, &device.permissions];
        assert_eq!(device, ["/dev/in", "/dev/out", "r"]);
        assert_eq!(config.cdi_devices[0].name, "vendor.com/gpu=1");
        let linux = config.linux.unwrap();
        assert_eq!(linux.security_context.unwrap().run_as_user, None);
        let resources = linux.resources.unwrap();
        assert_eq!([resources.cpuset_cpus, resources.cpuset_mems], ["1-2", "0"]);
    }

    #[rstest]
    #[case("SIGTERM", Signal::Sigterm)]
    #[case("SIGRTMIN", Signal::Sigrtmin)]
    #[case("SIGRTMIN+1", Signal::Sigrtminplus1)]
    #[case("SIGRTMAX-14", Signal::Sigrtmaxminus14)]
    fn signal_has_its_name_in_both_directions(#[case] name: &str, #[case] signal: Signal) {
        assert_eq!(signal_to_wire(name), i32::from(signal));
        assert_eq!(signal_name(signal.into()).as_deref(), Some(name));
    }

    #[test]
    fn signal_of_image_has_no_name() {
        assert_eq!(signal_to_wire(""), i32::from(Signal::RuntimeDefault));
        assert_eq!(signal_name(Signal::RuntimeDefault.into()), None);
        assert_eq!(signal_name(10_000), None);
    }
}
