//! cri-sandbox-config and cri-container-config: the configurations sent to the runtime.
//!
//! Every field is compared except the cgroup settings that a kubelet with its own cgroups adds (`cgroup_parent`,
//! `unified`, `hugepage_limits`) and deprecated fields. Out of scope: user namespaces, image volumes, volume subpaths,
//! hooks, and everything from an API server.

use std::collections::BTreeMap;

use agent::observed::ContainerId;
use agent::pod::Pod;
use agent::spec::{
    self, ContainerInputs, ContainerSpec, HostVolume, ImageUser, MountSpec, NamespaceMode,
    Namespaces, Propagation, Protocol, Resources, SandboxSpec, SecurityProfile, Selinux,
};
use k8s_openapi::api::core::v1::Container;
use serde_json::{Map, Value, json};

use crate::inside;
use crate::support::{self, Case};

#[test]
fn sandbox_config_matches_kubernetes() {
    let in_scope = |case: &Case| {
        let facts = &case.input["pod"]["spec"];
        facts["hostUsers"] != false && case.input.get("extraSupplementalGroups").is_none()
    };
    support::check_within("cri-sandbox-config", in_scope, |case| {
        let pod = support::pod(&case.input["pod"]);
        let attempt = u32::try_from(case.input["attempt"].as_u64().unwrap_or_default()).unwrap();
        match spec::sandbox(&pod, attempt, &inside::node(&case.input["node"])) {
            Ok((sandbox, _)) => {
                let handler = json!(sandbox.runtime_handler);
                support::same(
                    "runtime_handler",
                    &handler,
                    &json!(support::text(&case.expected["runtime_handler"])),
                )?;
                compare(&sandbox_words(&sandbox), &case.expected)
            }
            Err(error) => {
                support::same("error", &json!(error.to_string()), &case.expected["error"])
            }
        }
    });
}

#[test]
fn container_config_matches_kubernetes() {
    support::check_within("cri-container-config", container_in_scope, |case| {
        let pod = support::pod(&case.input["pod"]);
        let container = container_of(case, &pod);
        let node = inside::node(&case.input["node"]);
        let directory = node
            .pod_dir(pod.uid())
            .join("containers")
            .join(&container.name)
            .join("<random>");
        let image = &case.input["image"];
        let inputs = ContainerInputs {
            restart_count: u32::try_from(case.input["restartCount"].as_u64().unwrap_or_default())
                .unwrap(),
            ips: support::texts(&case.input["podIPs"]),
            image_ref: support::text(&case.input["imageRef"]).to_owned(),
            image_user: match (image["uid"].as_i64(), image["username"].as_str()) {
                (Some(uid), _) => ImageUser::Id(uid),
                (None, Some(name)) => ImageUser::Name(name.to_owned()),
                (None, None) => ImageUser::Unset,
            },
            volumes: volumes(&case.input["volumes"]),
            termination_log: Some(directory),
            target: case.input["targetContainerID"]
                .as_str()
                .map(ContainerId::new),
        };
        match spec::container(&pod, &container, &inputs, &node) {
            Ok(container) => compare(&container_words(&container), &case.expected),
            Err(error) if case.expected.get("error").is_some() => {
                support::same("error", &json!(error.to_string()), &case.expected["error"])
            }
            Err(error) => Err(format!("refused: {error}")),
        }
    });
}

fn container_of(case: &Case, pod: &Pod) -> Container {
    let name = support::text(&case.input["container"]);
    pod.container(name).unwrap().1.clone()
}

/// Whether crib has every feature that the case uses.
fn container_in_scope(case: &Case) -> bool {
    let pod = support::pod(&case.input["pod"]);
    let container = container_of(case, &pod);
    let from_server = |container: &Container| {
        let mut sources = container
            .env
            .iter()
            .flatten()
            .filter_map(|variable| variable.value_from.as_ref());
        container
            .env_from
            .as_ref()
            .is_some_and(|from| !from.is_empty())
            || sources.any(|source| {
                source.config_map_key_ref.is_some()
                    || source.secret_key_ref.is_some()
                    || source.file_key_ref.is_some()
            })
    };
    let part = |path: &Option<String>| path.as_ref().is_some_and(|path| !path.is_empty());
    let mut mounts = container.volume_mounts.iter().flatten();
    let special = mounts.any(|mount| {
        part(&mount.sub_path) || part(&mount.sub_path_expr) || mount.recursive_read_only.is_some()
    });
    let input = &case.input;
    !(from_server(&container)
        || special
        || pod.spec().host_users == Some(false)
        || container.lifecycle.is_some()
        || container.volume_devices.is_some()
        || input.get("imageVolumes").is_some()
        || !support::list(&input["services"]).is_empty())
}

fn volumes(volumes: &Value) -> BTreeMap<String, HostVolume> {
    let volumes = volumes.as_object().into_iter().flatten();
    volumes
        .map(|(name, volume)| {
            let host_path = support::text(&volume["hostPath"]).into();
            (
                name.clone(),
                HostVolume {
                    host_path,
                    readonly: volume["readOnly"] == true,
                },
            )
        })
        .collect()
}

fn compare(ours: &Value, expected: &Value) -> Result<(), String> {
    let Some(config) = expected.get("config") else {
        return Err(format!("made, but expected {expected}"));
    };
    let (ours, theirs) = (tidy(ours.clone()), tidy(config.clone()));
    let keys: std::collections::BTreeSet<&String> = [&ours, &theirs]
        .into_iter()
        .flat_map(|side| side.as_object().unwrap().keys())
        .collect();
    for key in keys {
        support::same(key, &ours[key], &theirs[key])?;
    }
    Ok(())
}

/// Removes zeroes, empty strings, lists and objects, and the fields that are not compared.
fn tidy(value: Value) -> Value {
    const NOT_COMPARED: [&str; 7] = [
        "cgroup_parent",
        "unified",
        "hugepage_limits",
        "apparmor_profile",
        "seccomp_profile_path",
        "stop_signal",
        "userns_options",
    ];
    match value {
        Value::Object(map) => {
            // An Int64Value of 0 differs from an absent one.
            let is_wrapper = map.len() == 1 && map.contains_key("value");
            let kept = map
                .into_iter()
                .map(|(key, value)| (key, tidy(value)))
                .filter(|(key, value)| {
                    let empty = value.is_null()
                        || *value == json!("")
                        || *value == json!(false)
                        || *value == json!([])
                        || *value == json!({})
                        || (*value == json!(0) && !is_wrapper);
                    !empty && !NOT_COMPARED.contains(&key.as_str())
                });
            Value::Object(kept.collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(tidy).collect()),
        scalar @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => scalar,
    }
}

fn sandbox_words(sandbox: &SandboxSpec) -> Value {
    let mut options = sandbox.dns.options.clone();
    options.sort();
    let ports: Vec<Value> = sandbox
        .port_mappings
        .iter()
        .map(|port| {
            let protocol = match port.protocol {
                Protocol::Tcp => "TCP",
                Protocol::Udp => "UDP",
                Protocol::Sctp => "SCTP",
            };
            json!({"protocol": protocol, "container_port": port.container_port, "host_port": port.host_port,
                "host_ip": port.host_ip})
        })
        .collect();
    let security = &sandbox.security;
    json!({
        "metadata": {"name": sandbox.name, "namespace": sandbox.namespace, "uid": sandbox.uid, "attempt": sandbox.attempt},
        "hostname": sandbox.hostname,
        "log_directory": sandbox.log_directory,
        "dns_config": {"servers": sandbox.dns.servers, "searches": sandbox.dns.searches, "options": options},
        "port_mappings": ports,
        "labels": sandbox.labels,
        "annotations": sandbox.annotations,
        "linux": {
            "sysctls": sandbox.sysctls,
            "overhead": resources(&sandbox.overhead),
            "resources": resources(&sandbox.resources),
            "security_context": {
                "namespace_options": namespaces(&security.namespaces),
                "run_as_user": wrapped(security.run_as_user),
                "run_as_group": wrapped(security.run_as_group),
                "supplemental_groups": security.supplemental_groups,
                "supplemental_groups_policy": groups_policy(security.strict_supplemental_groups),
                "privileged": security.privileged,
                "selinux_options": security.selinux.as_ref().map(selinux),
                "seccomp": security.seccomp.as_ref().map(profile),
                "apparmor": security.apparmor.as_ref().map(profile),
            },
        },
    })
}

fn container_words(container: &ContainerSpec) -> Value {
    let security = &container.security;
    let mut envs: Vec<Value> = container
        .envs
        .iter()
        .map(|(key, value)| json!({"key": key, "value": value}))
        .collect();
    envs.sort_by_key(|env| env["key"].as_str().unwrap().to_owned());
    json!({
        "metadata": {"name": container.name, "attempt": container.attempt},
        "image": {"image": container.image.image, "user_specified_image": container.image.user_specified,
            "runtime_handler": container.image.runtime_handler},
        "command": container.command,
        "args": container.args,
        "working_dir": container.working_dir,
        "envs": envs,
        "mounts": container.mounts.iter().map(mount).collect::<Vec<_>>(),
        "labels": container.labels,
        "annotations": container.annotations,
        "log_path": container.log_path,
        "stdin": container.stdin,
        "stdin_once": container.stdin_once,
        "tty": container.tty,
        "linux": {
            "resources": resources(&container.resources),
            "security_context": {
                "capabilities": {"add_capabilities": security.add_capabilities,
                    "drop_capabilities": security.drop_capabilities},
                "privileged": security.privileged,
                "namespace_options": namespaces(&security.namespaces),
                "selinux_options": security.selinux.as_ref().map(selinux),
                "run_as_user": wrapped(security.run_as_user),
                "run_as_group": wrapped(security.run_as_group),
                "run_as_username": security.run_as_username,
                "readonly_rootfs": security.readonly_rootfs,
                "supplemental_groups": security.supplemental_groups,
                "supplemental_groups_policy": groups_policy(security.strict_supplemental_groups),
                "no_new_privs": security.no_new_privs,
                "masked_paths": security.masked_paths,
                "readonly_paths": security.readonly_paths,
                "seccomp": security.seccomp.as_ref().map(profile),
                "apparmor": security.apparmor.as_ref().map(profile),
            },
        },
    })
}

fn mount(mount: &MountSpec) -> Value {
    let propagation = match mount.propagation {
        Propagation::Private => "PROPAGATION_PRIVATE",
        Propagation::HostToContainer => "PROPAGATION_HOST_TO_CONTAINER",
        Propagation::Bidirectional => "PROPAGATION_BIDIRECTIONAL",
    };
    json!({"container_path": mount.container_path, "host_path": mount.host_path, "readonly": mount.readonly,
        "recursive_read_only": mount.recursive_read_only, "propagation": propagation})
}

fn wrapped(value: Option<i64>) -> Value {
    value.map_or(Value::Null, |value| json!({"value": value}))
}

fn groups_policy(strict: bool) -> &'static str {
    if strict { "Strict" } else { "Merge" }
}

fn namespaces(namespaces: &Namespaces) -> Value {
    let mode = |mode: NamespaceMode| match mode {
        NamespaceMode::Pod => "POD",
        NamespaceMode::Container => "CONTAINER",
        NamespaceMode::Node => "NODE",
        NamespaceMode::Target => "TARGET",
    };
    json!({"network": mode(namespaces.network), "pid": mode(namespaces.pid), "ipc": mode(namespaces.ipc),
        "target_id": namespaces.target_id})
}

fn selinux(label: &Selinux) -> Value {
    json!({"user": label.user, "role": label.role, "type": label.kind, "level": label.level})
}

fn profile(profile: &SecurityProfile) -> Value {
    match profile {
        SecurityProfile::RuntimeDefault => json!({"profile_type": "RuntimeDefault"}),
        SecurityProfile::Unconfined => json!({"profile_type": "Unconfined"}),
        SecurityProfile::Localhost(name) => {
            json!({"profile_type": "Localhost", "localhost_ref": name})
        }
    }
}

fn resources(resources: &Resources) -> Value {
    let mut words = Map::new();
    for (name, value) in [
        ("cpu_period", resources.cpu_period),
        ("cpu_quota", resources.cpu_quota),
        ("cpu_shares", resources.cpu_shares),
        ("memory_limit_in_bytes", resources.memory_limit),
        ("memory_swap_limit_in_bytes", resources.memory_swap_limit),
        ("oom_score_adj", resources.oom_score_adj),
    ] {
        words.insert(name.to_owned(), json!(value));
    }
    Value::Object(words)
}
