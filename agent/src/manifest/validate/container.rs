//! Containers: names, images, ports, mounts, restart rules.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec, VolumeMount};

use super::declared::{Kind, Volumes};
use super::{Check, Rule, duplicate, env, lifecycle, names, probe, resources, security};

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
        restart(check, &field, container);
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
        restart(check, &field, init);
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
        env::variable(check, &format!("{field}.env[{index}]"), variable, volumes);
    }
    for (index, from) in container.env_from.iter().flatten().enumerate() {
        env::from(check, &format!("{field}.envFrom"), index, from);
    }
    mounts(check, field, container, volumes);
    let is_init = field.starts_with("spec.init");
    if !is_init || container.restart_policy.as_deref() == Some("Always") {
        probe::of_container(check, field, container);
        if let Some(hooks) = &container.lifecycle {
            lifecycle::check(check, &format!("{field}.lifecycle"), hooks, spec);
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

/// Two containers cannot publish the same host port.
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

fn mounts(check: &mut Check, field: &str, container: &Container, volumes: &Volumes) {
    let mut paths = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        // The API server omits the index of some of these paths; do the same.
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
                None => check.error(Rule::NotFound, format!("{item}.name"), &device.name, ""),
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
        check.error(
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

fn restart(check: &mut Check, field: &str, container: &Container) {
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
        check.error(
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
                    check.error(
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
