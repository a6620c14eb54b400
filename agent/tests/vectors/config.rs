//! cri-sandbox-config and cri-container-config: the configurations sent to the runtime.
//!
//! Every field is compared.

use agent::observed::ContainerId;
use agent::pod_spec::spec::{
    self, ContainerInputs, ContainerSpec, HostVolume, ImageSpec, ImageUser, MountSpec,
    NamespaceMode, Namespaces, PodGrants, Propagation, Protocol, Resources, SandboxSpec,
    SecurityProfile, Selinux, UserNamespace,
};
use api::pod::Pod;
use k8s_openapi::api::core::v1::Container;
use serde_json::{Map, Value, json};

use crate::container_environment;
use crate::judge::Set;
use crate::pods;
use crate::read::{self, Case};

pub(crate) const SANDBOX: Set =
    Set::new("cri-sandbox-config", "the PodSandboxConfig sent to the runtime", sandbox_config);

fn sandbox_config(case: &Case) -> Result<(), String> {
    let pod = pods::pod(&case.input["pod"]);
    let attempt = u32::try_from(case.input["attempt"].as_u64().unwrap_or_default()).unwrap();
    let node = container_environment::node(&case.input["node"]);
    match spec::sandbox(&pod, attempt, &grants(&case.input), &node) {
        Ok((sandbox, warnings)) => {
            read::same(
                "events",
                &container_environment::events(&warnings),
                &json!(read::list(&case.expected["events"])),
            )?;
            let handler = json!(sandbox.runtime_handler);
            read::same(
                "runtime_handler",
                &handler,
                &json!(read::text(&case.expected["runtime_handler"])),
            )?;
            compare(&sandbox_words(&sandbox), &case.expected)
        }
        Err(error) => read::same("error", &json!(error.to_string()), &case.expected["error"]),
    }
}

pub(crate) const CONTAINER: Set =
    Set::new("cri-container-config", "the ContainerConfig sent to the runtime", container_config);

fn container_config(case: &Case) -> Result<(), String> {
    let pod = pods::pod(&case.input["pod"]);
    let container = container_of(case, &pod);
    let node = container_environment::node(&case.input["node"]);
    let directory =
        node.pod_dir(pod.uid()).join("containers").join(&container.name).join("<random>");
    let image = &case.input["image"];
    let inputs = ContainerInputs {
        restart_count: u32::try_from(case.input["restartCount"].as_u64().unwrap_or_default())
            .unwrap(),
        ips: pods::texts(&case.input["podIPs"]),
        image_ref: read::text(&case.input["imageRef"]).to_owned(),
        image_user: match (image["uid"].as_i64(), image["username"].as_str()) {
            (Some(uid), _) => ImageUser::Id(uid),
            (None, Some(name)) => ImageUser::Name(name.to_owned()),
            (None, None) => ImageUser::Unset,
        },
        volumes: volumes(&case.input),
        env_files: compact::Map::new(),
        grants: grants(&case.input),
        termination_log: Some(directory),
        target: case.input["targetContainerID"].as_str().map(ContainerId::new),
        assigned: spec::Assigned::default(),
    };
    let objects = container_environment::objects(&case.input);
    match spec::container(&pod, &container, &inputs, Some(&objects), &node).spec {
        Ok(container) => compare(&container_words(&container), &case.expected),
        Err(error) if case.expected.get("error").is_some() => {
            read::same("error", &json!(error.to_string()), &case.expected["error"])
        }
        Err(error) => Err(format!("refused: {error}")),
    }
}

fn container_of(case: &Case, pod: &Pod) -> Container {
    let name = read::text(&case.input["container"]);
    pod.container(name).unwrap().1.clone()
}

fn grants(input: &Value) -> PodGrants {
    let range = &input["node"]["userNamespaceRange"];
    let number = |key: &str| u32::try_from(range[key].as_u64().unwrap_or_default()).unwrap();
    let groups = read::list(&input["extraSupplementalGroups"]).iter();
    PodGrants {
        user_namespace: range.is_object().then(|| UserNamespace {
            host_id: number("hostID"),
            container_id: number("containerID"),
            length: number("length"),
        }),
        supplemental_groups: groups.map(|group| group.as_i64().unwrap()).collect(),
    }
}

/// The volumes of a case.
pub(crate) fn volumes(input: &Value) -> compact::Map<String, HostVolume> {
    let volumes = input["volumes"].as_object().into_iter().flatten();
    volumes
        .map(|(name, volume)| {
            let image = input["imageVolumes"].get(name).map(|image| ImageSpec {
                image: read::text(&image["image"]).to_owned(),
                user_specified: read::text(&image["user_specified_image"]).to_owned(),
                runtime_handler: read::text(&image["runtime_handler"]).to_owned(),
                annotations: serde_json::from_value(image["annotations"].clone())
                    .unwrap_or_default(),
            });
            let volume = HostVolume {
                host_path: read::text(&volume["hostPath"]).into(),
                readonly: volume["readOnly"] == true,
                relabel: matches!(
                    read::text(&volume["type"]),
                    "emptyDir" | "configMap" | "secret" | "projected" | "downwardAPI" | "image"
                ),
                spec_name: volume["specName"].as_str().map(str::to_owned),
                image,
                in_memory: false,
                is_device: false,
            };
            (name.clone(), volume)
        })
        .collect()
}

fn compare(ours: &Value, expected: &Value) -> Result<(), String> {
    let Some(config) = expected.get("config") else {
        return Err(format!("made, but expected {expected}"));
    };
    let (ours, theirs) = (tidy(ours.clone()), tidy(config.clone()));
    let keys: std::collections::BTreeSet<&String> =
        [&ours, &theirs].into_iter().flat_map(|side| side.as_object().unwrap().keys()).collect();
    for key in keys {
        read::same(key, &ours[key], &theirs[key])?;
    }
    Ok(())
}

/// Removes zeroes, empty strings, lists and objects.
fn tidy(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            // An Int64Value of 0 differs from an absent one.
            let is_wrapper = map.len() == 1 && map.contains_key("value");
            let kept =
                map.into_iter().map(|(key, value)| (key, tidy(value))).filter(|(_, value)| {
                    let empty = value.is_null()
                        || *value == json!("")
                        || *value == json!(false)
                        || *value == json!([])
                        || *value == json!({})
                        || (*value == json!(0) && !is_wrapper);
                    !empty
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
            "cgroup_parent": sandbox.cgroup_parent,
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
    let env = |(key, value): &(String, Vec<u8>)| json!({"key": key, "value": std::str::from_utf8(value).unwrap()});
    let mut envs: Vec<Value> = container.envs.iter().map(env).collect();
    envs.sort_by_key(|env| env["key"].as_str().unwrap().to_owned());
    json!({
        "metadata": {"name": container.name, "attempt": container.attempt},
        "image": image(&container.image),
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
        "stop_signal": signal(&container.stop_signal),
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
                "apparmor_profile": security.apparmor.as_ref().map(apparmor_name),
            },
        },
    })
}

fn image(image: &ImageSpec) -> Value {
    json!({"image": image.image, "user_specified_image": image.user_specified,
        "runtime_handler": image.runtime_handler, "annotations": image.annotations})
}

fn signal(name: &str) -> String {
    match name {
        "" => "RUNTIME_DEFAULT".to_owned(),
        name => name.replace('+', "PLUS").replace('-', "MINUS"),
    }
}

fn apparmor_name(profile: &SecurityProfile) -> String {
    match profile {
        SecurityProfile::RuntimeDefault => "runtime/default".to_owned(),
        SecurityProfile::Unconfined => "unconfined".to_owned(),
        SecurityProfile::Localhost(name) => format!("localhost/{name}"),
    }
}

fn mappings(user: Option<&UserNamespace>) -> Value {
    let mapping = |ids: &UserNamespace| json!({"host_id": ids.host_id, "container_id": ids.container_id, "length": ids.length});
    user.map_or(Value::Null, |ids| json!([mapping(ids)]))
}

/// The name of a propagation in the CRI.
pub(crate) fn propagation(propagation: Propagation) -> &'static str {
    match propagation {
        Propagation::Private => "PROPAGATION_PRIVATE",
        Propagation::HostToContainer => "PROPAGATION_HOST_TO_CONTAINER",
        Propagation::Bidirectional => "PROPAGATION_BIDIRECTIONAL",
    }
}

fn mount(mount: &MountSpec) -> Value {
    json!({"container_path": mount.container_path, "host_path": mount.host_path, "readonly": mount.readonly,
        "recursive_read_only": mount.recursive_read_only, "propagation": propagation(mount.propagation),
        "selinux_relabel": mount.selinux_relabel, "image": mount.image.as_ref().map(image),
        "image_sub_path": mount.image_sub_path, "uidMappings": mappings(mount.user_namespace.as_ref()),
        "gidMappings": mappings(mount.user_namespace.as_ref())})
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
        "target_id": namespaces.target_id, "userns_options": {
            "mode": if namespaces.user.is_some() { "POD" } else { "NODE" },
            "uids": mappings(namespaces.user.as_ref()), "gids": mappings(namespaces.user.as_ref())}})
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
    let mut pages: Vec<Value> = resources
        .hugepage_limits
        .iter()
        .map(|(size, limit)| json!({"page_size": size, "limit": limit}))
        .collect();
    // Their order is not significant.
    pages.sort_by_key(|page| std::cmp::Reverse(page["page_size"].to_string()));
    words.insert("hugepage_limits".to_owned(), json!(pages));
    words.insert("unified".to_owned(), json!(resources.unified));
    Value::Object(words)
}
