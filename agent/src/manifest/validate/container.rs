//! Containers: names, images, ports, environment, mounts, restart rules, lifecycle.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvFromSource, EnvVar, EnvVarSource, Lifecycle, LifecycleHandler,
    PodSpec, VolumeMount,
};

use super::volume::Kind;
use super::{Check, Rule, duplicate, names, probe, resources, security};

type Volumes = BTreeMap<String, Kind>;

/// All containers of a pod.
pub(super) fn all(check: &mut Check, spec: &PodSpec, volumes: &Volumes) {
    if spec.containers.is_empty() {
        check.required("spec.containers", "a pod has at least one container");
    }
    let mut container_names = BTreeSet::new();
    let mut host_ports = BTreeSet::new();
    for (index, container) in spec.containers.iter().enumerate() {
        let field = format!("spec.containers[{index}]");
        one(check, &field, container, spec, volumes);
        if !container.name.is_empty() {
            duplicate(
                check,
                &mut container_names,
                format!("{field}.name"),
                &container.name,
            );
        }
        restart(check, &field, container, false);
        self::host_ports(check, &field, container, &mut host_ports);
        if spec.host_network == Some(true) {
            for (place, port) in container.ports.iter().flatten().enumerate() {
                let host = port.host_port.unwrap_or_default();
                if host != port.container_port {
                    let field = format!("{field}.ports[{place}].hostPort");
                    check.invalid(
                        field,
                        host,
                        "must match `containerPort` when `hostNetwork` is true",
                    );
                }
            }
        }
    }
    for (index, init) in spec.init_containers.iter().flatten().enumerate() {
        let field = format!("spec.initContainers[{index}]");
        one(check, &field, init, spec, volumes);
        if !init.name.is_empty() {
            duplicate(
                check,
                &mut container_names,
                format!("{field}.name"),
                &init.name,
            );
        }
        restart(check, &field, init, true);
        if init.restart_policy.as_deref() == Some("Always") {
            self::host_ports(check, &field, init, &mut host_ports);
        } else {
            let why = "may not be set for init containers without restartPolicy=Always";
            for (name, set) in [
                ("lifecycle", init.lifecycle.is_some()),
                ("livenessProbe", init.liveness_probe.is_some()),
                ("readinessProbe", init.readiness_probe.is_some()),
                ("startupProbe", init.startup_probe.is_some()),
            ] {
                if set {
                    check.forbidden(format!("{field}.{name}"), why);
                }
            }
        }
    }
}

fn one(check: &mut Check, field: &str, container: &Container, spec: &PodSpec, volumes: &Volumes) {
    if container.name.is_empty() {
        check.required(format!("{field}.name"), "");
    } else {
        check.formed(format!("{field}.name"), &container.name, names::dns_label);
    }
    let image = container.image.as_deref().unwrap_or_default();
    if image.is_empty() {
        check.required(format!("{field}.image"), "");
    } else if image.trim() != image {
        check.invalid(
            format!("{field}.image"),
            image,
            "must not have leading or trailing whitespace",
        );
    }
    let policy = container.image_pull_policy.as_deref().unwrap_or_default();
    check.one_of(
        format!("{field}.imagePullPolicy"),
        policy,
        &["Always", "IfNotPresent", "Never"],
    );
    let policy = container
        .termination_message_policy
        .as_deref()
        .unwrap_or_default();
    check.one_of(
        format!("{field}.terminationMessagePolicy"),
        policy,
        &["File", "FallbackToLogsOnError"],
    );
    ports(check, field, container.ports.as_deref().unwrap_or_default());
    for (index, variable) in container.env.iter().flatten().enumerate() {
        env(check, &format!("{field}.env[{index}]"), variable, volumes);
    }
    for (index, from) in container.env_from.iter().flatten().enumerate() {
        env_from(check, &format!("{field}.envFrom"), index, from);
    }
    mounts(check, field, container, volumes);
    let is_init = field.starts_with("spec.init");
    if !is_init || container.restart_policy.as_deref() == Some("Always") {
        probe::of_container(
            check,
            field,
            container,
            spec.termination_grace_period_seconds,
        );
        if let Some(lifecycle) = &container.lifecycle {
            self::lifecycle(check, &format!("{field}.lifecycle"), lifecycle, spec);
        }
    }
    resources::of_container(check, field, container);
    security::of_container(check, field, container, spec);
}

fn ports(check: &mut Check, field: &str, ports: &[ContainerPort]) {
    let mut port_names = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let field = format!("{field}.ports[{index}]");
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            match names::port_name(name) {
                Some(expected) => check.invalid(format!("{field}.name"), name, expected),
                None => duplicate(check, &mut port_names, format!("{field}.name"), name),
            }
        }
        if port.container_port == 0 {
            check.required(format!("{field}.containerPort"), "");
        } else {
            check.range(
                format!("{field}.containerPort"),
                i64::from(port.container_port),
                1,
                65535,
            );
        }
        if let Some(host) = port.host_port.filter(|host| *host != 0) {
            check.range(format!("{field}.hostPort"), i64::from(host), 1, 65535);
        }
        let protocol = port.protocol.as_deref().unwrap_or_default();
        check.one_of(
            format!("{field}.protocol"),
            protocol,
            &["TCP", "UDP", "SCTP"],
        );
    }
}

/// Two containers cannot publish the same port of the node.
fn host_ports(check: &mut Check, field: &str, container: &Container, taken: &mut BTreeSet<String>) {
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let Some(host) = port.host_port.filter(|host| *host != 0) else {
            continue;
        };
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let key = format!("{}/{}/{host}", text(&port.protocol), text(&port.host_ip));
        duplicate(
            check,
            taken,
            format!("{field}.ports[{index}].hostPort"),
            &key,
        );
    }
}

fn env(check: &mut Check, field: &str, variable: &EnvVar, volumes: &Volumes) {
    if variable.name.is_empty() {
        check.required(format!("{field}.name"), "");
    } else {
        check.formed(format!("{field}.name"), &variable.name, names::env_name);
    }
    let Some(source) = &variable.value_from else {
        return;
    };
    let field = format!("{field}.valueFrom");
    let given = [
        source.field_ref.is_some(),
        source.resource_field_ref.is_some(),
        source.config_map_key_ref.is_some(),
        source.secret_key_ref.is_some(),
        source.file_key_ref.is_some(),
    ];
    let count = given.iter().filter(|given| **given).count();
    if count == 0 {
        check.invalid(&field, "", "must name one of fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef, fileKeyRef");
    } else if variable
        .value
        .as_deref()
        .is_some_and(|value| !value.is_empty())
    {
        check.invalid(&field, "", "may not be specified when `value` is not empty");
    } else if count > 1 {
        check.invalid(
            &field,
            "",
            "may not have more than one field specified at a time",
        );
    }
    env_source(check, &field, source, volumes);
}

fn env_source(check: &mut Check, field: &str, source: &EnvVarSource, volumes: &Volumes) {
    if let Some(from) = &source.field_ref {
        if let Some(version) = from
            .api_version
            .as_deref()
            .filter(|version| *version != "v1")
        {
            check.invalid(
                format!("{field}.fieldRef.fieldPath"),
                version,
                "apiVersion must be v1",
            );
        }
        field_ref(
            check,
            &format!("{field}.fieldRef"),
            &from.field_path,
            &ENV_FIELDS,
            true,
        );
    }
    if let Some(from) = &source.resource_field_ref {
        let field = format!("{field}.resourceFieldRef");
        resources::field_ref(check, &field, from, true);
    }
    let keys = [
        (
            "configMapKeyRef",
            source
                .config_map_key_ref
                .as_ref()
                .map(|from| (&from.name, &from.key)),
        ),
        (
            "secretKeyRef",
            source
                .secret_key_ref
                .as_ref()
                .map(|from| (&from.name, &from.key)),
        ),
    ];
    for (kind, from) in keys {
        let Some((name, key)) = from else { continue };
        check.formed(format!("{field}.{kind}.name"), name, names::dns_subdomain);
        if key.is_empty() {
            check.required(format!("{field}.{kind}.key"), "");
        } else {
            check.formed(format!("{field}.{kind}.key"), key, names::config_key);
        }
    }
    if let Some(from) = &source.file_key_ref {
        let field = format!("{field}.fileKeyRef");
        if from.key.is_empty() {
            check.required(format!("{field}.key"), "");
        } else {
            check.formed(format!("{field}.key"), &from.key, names::env_name);
        }
        if from.path.is_empty() {
            check.required(format!("{field}.path"), "");
        } else {
            check.formed(format!("{field}.path"), &from.path, names::inner_path);
        }
        if from.volume_name.is_empty() {
            check.required(format!("{field}.volumeName"), "");
        } else if !volumes.contains_key(&from.volume_name) {
            check.say(
                Rule::NotFound,
                format!("{field}.volumeName"),
                &from.volume_name,
                "",
            );
        }
    }
}

const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Fields of a pod that can be converted at all, some of which are of no use in an environment.
const KNOWN_FIELDS: [&str; 12] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.podIP",
];

/// A field of the pod. `known` are those that may be asked for here.
pub(super) fn field_ref(check: &mut Check, field: &str, path: &str, known: &[&str], env: bool) {
    if path.is_empty() {
        check.required(format!("{field}.fieldPath"), "");
        return;
    }
    if let Some((map, key)) = path
        .strip_suffix("']")
        .and_then(|path| path.split_once("['"))
    {
        match map {
            "metadata.annotations" => {
                if let Some(expected) = names::qualified(&key.to_lowercase()) {
                    check.invalid(field, key, expected);
                }
            }
            "metadata.labels" => check.formed(field, key, names::qualified),
            _ => check.invalid(field, path, "does not support subscript"),
        }
        return;
    }
    let convertible = known.contains(&path)
        || KNOWN_FIELDS.contains(&path)
        || matches!(path, "status.hostIPs" | "status.podIPs");
    if !convertible {
        check.invalid(
            format!("{field}.fieldPath"),
            path,
            "no such field of a pod can be asked for",
        );
    } else {
        check.one_of(format!("{field}.fieldPath"), path, known);
    }
    let _ = env;
}

fn env_from(check: &mut Check, list: &str, index: usize, from: &EnvFromSource) {
    let field = format!("{list}[{index}]");
    if let Some(prefix) = from.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        check.formed(format!("{field}.prefix"), prefix, names::env_name);
    }
    let sources = [
        (
            "configMapRef",
            from.config_map_ref
                .as_ref()
                .map(|source| source.name.as_str()),
        ),
        (
            "secretRef",
            from.secret_ref.as_ref().map(|source| source.name.as_str()),
        ),
    ];
    for (kind, name) in sources {
        match name {
            Some("") => check.required(format!("{field}.{kind}.name"), ""),
            Some(name) => check.formed(format!("{field}.{kind}.name"), name, names::dns_subdomain),
            None => {}
        }
    }
    match sources.iter().filter(|(_, name)| name.is_some()).count() {
        0 => check.invalid(
            list,
            "",
            "must specify one of: `configMapRef` or `secretRef`",
        ),
        1 => {}
        _ => check.invalid(
            list,
            "",
            "may not have more than one field specified at a time",
        ),
    }
}

fn mounts(check: &mut Check, field: &str, container: &Container, volumes: &Volumes) {
    let mut paths = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        // The API server names some of these without their index, and so does this.
        let (item, list) = (
            format!("{field}.volumeMounts[{index}]"),
            format!("{field}.volumeMounts"),
        );
        one_mount(check, &item, &list, mount, volumes, container);
        if !mount.mount_path.is_empty() && !paths.insert(mount.mount_path.clone()) {
            check.invalid(
                format!("{item}.mountPath"),
                &mount.mount_path,
                "must be unique",
            );
        }
    }
    for (index, device) in container.volume_devices.iter().flatten().enumerate() {
        let item = format!("{field}.volumeDevices[{index}]");
        if device.name.is_empty() {
            check.required(format!("{item}.name"), "");
        } else {
            match volumes.get(&device.name) {
                None => check.say(Rule::NotFound, format!("{item}.name"), &device.name, ""),
                Some(Kind::Claim) => {}
                Some(Kind::Other) => {
                    check.invalid(
                        format!("{item}.name"),
                        &device.name,
                        "can only use volumes of a persistentVolumeClaim",
                    );
                }
            }
        }
        if device.device_path.is_empty() {
            check.required(format!("{item}.devicePath"), "");
        } else {
            check.formed(
                format!("{item}.devicePath"),
                &device.device_path,
                names::no_backsteps,
            );
        }
    }
}

fn one_mount(
    check: &mut Check,
    item: &str,
    list: &str,
    mount: &VolumeMount,
    volumes: &Volumes,
    container: &Container,
) {
    if mount.name.is_empty() {
        check.required(format!("{item}.name"), "");
    }
    if !volumes.contains_key(&mount.name) {
        check.say(
            Rule::NotFound,
            format!("{item}.name"),
            &mount.name,
            "no volume of that name is in spec.volumes",
        );
    }
    if mount.mount_path.is_empty() {
        check.required(format!("{item}.mountPath"), "");
    }
    let (part, expression) = (
        mount.sub_path.as_deref().unwrap_or_default(),
        mount.sub_path_expr.as_deref().unwrap_or_default(),
    );
    if !part.is_empty() {
        check.formed(format!("{list}.subPath"), part, names::inner_path);
    }
    if !expression.is_empty() {
        if !part.is_empty() {
            check.invalid(
                format!("{item}.subPathExpr"),
                expression,
                "subPathExpr and subPath are mutually exclusive",
            );
        }
        check.formed(format!("{list}.subPathExpr"), expression, names::inner_path);
    }
    if let Some(propagation) = mount.mount_propagation.as_deref() {
        let known = ["Bidirectional", "HostToContainer", "None"];
        check.one_of(format!("{list}.mountPropagation"), propagation, &known);
        let privileged = container
            .security_context
            .as_ref()
            .is_some_and(|own| own.privileged == Some(true));
        if propagation == "Bidirectional" && !privileged {
            check.forbidden(
                format!("{list}.mountPropagation"),
                "Bidirectional is available only to privileged containers",
            );
        }
    }
    if let Some(recursive) = mount.recursive_read_only.as_deref() {
        let field = format!("{list}.recursiveReadOnly");
        check.one_of(&field, recursive, &["Disabled", "IfPossible", "Enabled"]);
        if matches!(recursive, "IfPossible" | "Enabled") {
            if mount.read_only != Some(true) {
                check.forbidden(&field, "may only be specified when readOnly is true");
            }
            if mount
                .mount_propagation
                .as_deref()
                .is_some_and(|propagation| propagation != "None")
            {
                check.forbidden(
                    &field,
                    "may only be specified when mountPropagation is None or not specified",
                );
            }
        }
    }
}

fn restart(check: &mut Check, field: &str, container: &Container, init: bool) {
    let _ = init;
    let policy = container.restart_policy.as_deref();
    check.maybe_one_of(
        format!("{field}.restartPolicy"),
        policy,
        &["Always", "OnFailure", "Never"],
    );
    let rules = container
        .restart_policy_rules
        .as_deref()
        .unwrap_or_default();
    let list = format!("{field}.restartPolicyRules");
    if !rules.is_empty() && policy.is_none() {
        check.required(
            format!("{field}.restartPolicy"),
            "must be given when restartPolicyRules are",
        );
    }
    if rules.len() > 20 {
        check.say(
            Rule::TooLong,
            &list,
            rules.len(),
            "must have at most 20 rules",
        );
    }
    for (index, rule) in rules.iter().enumerate() {
        let field = format!("{list}[{index}]");
        check.one_of(
            format!("{field}.action"),
            &rule.action,
            &["Restart", "RestartAllContainers"],
        );
        match &rule.exit_codes {
            None => check.required(format!("{field}.exitCodes"), "must be specified"),
            Some(codes) => {
                check.one_of(
                    format!("{field}.exitCodes.operator"),
                    &codes.operator,
                    &["In", "NotIn"],
                );
                if codes
                    .values
                    .as_ref()
                    .is_some_and(|values| values.len() > 255)
                {
                    check.say(
                        Rule::TooLong,
                        format!("{field}.exitCodes.values"),
                        "",
                        "must have at most 255 values",
                    );
                }
            }
        }
    }
}

fn lifecycle(check: &mut Check, field: &str, lifecycle: &Lifecycle, spec: &PodSpec) {
    for (name, hook) in [
        ("postStart", &lifecycle.post_start),
        ("preStop", &lifecycle.pre_stop),
    ] {
        if let Some(hook) = hook {
            self::hook(check, &format!("{field}.{name}"), hook, spec);
        }
    }
    if let Some(signal) = lifecycle.stop_signal.as_deref() {
        let field = format!("{field}.stopSignal");
        if spec.os.as_ref().is_none_or(|os| os.name.is_empty()) {
            check.forbidden(
                &field,
                "may not be set for containers with empty `spec.os.name`",
            );
        }
        if !is_signal(signal) {
            check.say(
                Rule::NotSupported,
                &field,
                signal,
                "expected the name of a signal, such as SIGTERM",
            );
        }
    }
}

fn is_signal(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("SIG") else {
        return false;
    };
    const PLAIN: [&str; 31] = [
        "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT",
        "KILL", "PIPE", "POLL", "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM",
        "TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1", "USR2", "WINCH",
    ];
    let real_time = |prefix: &str, most: u32| {
        rest.strip_prefix(prefix)
            .is_some_and(|n| n.parse().is_ok_and(|n: u32| (1..=most).contains(&n)))
    };
    PLAIN.contains(&rest)
        || matches!(rest, "VTALRM" | "XCPU" | "XFSZ" | "RTMIN" | "RTMAX")
        || real_time("RTMIN+", 15)
        || real_time("RTMAX-", 14)
}

fn hook(check: &mut Check, field: &str, hook: &LifecycleHandler, spec: &PodSpec) {
    let mut handlers = 0;
    let mut count = |check: &mut Check, name: &str, given: bool| {
        if given {
            if handlers > 0 {
                check.forbidden(
                    format!("{field}.{name}"),
                    "may not specify more than 1 handler type",
                );
            }
            handlers += 1;
        }
        given && handlers == 1
    };
    if count(check, "exec", hook.exec.is_some())
        && let Some(exec) = &hook.exec
    {
        probe::exec(check, &format!("{field}.exec"), exec);
    }
    if count(check, "httpGet", hook.http_get.is_some())
        && let Some(http) = &hook.http_get
    {
        probe::http(check, &format!("{field}.httpGet"), http);
    }
    if count(check, "tcpSocket", hook.tcp_socket.is_some())
        && let Some(tcp) = &hook.tcp_socket
    {
        probe::port(check, &format!("{field}.tcpSocket.port"), &tcp.port);
    }
    if count(check, "sleep", hook.sleep.is_some())
        && let Some(sleep) = &hook.sleep
    {
        let grace = spec.termination_grace_period_seconds.unwrap_or(30);
        if sleep.seconds < 0 || sleep.seconds > grace {
            check.invalid(
                format!("{field}.sleep"),
                sleep.seconds,
                format!(
                    "must be non-negative and not more than terminationGracePeriodSeconds ({grace})"
                ),
            );
        }
    }
    if handlers == 0 {
        check.required(field, "must specify a handler type");
    }
}
