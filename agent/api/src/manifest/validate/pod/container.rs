//! Containers: names, images, ports, restart rules.

use compact::Set;
use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec};

use crate::manifest::validate::pod::Volumes;
use crate::manifest::validate::pod::env;
use crate::manifest::validate::pod::lifecycle;
use crate::manifest::validate::pod::mounts;
use crate::manifest::validate::pod::probe;
use crate::manifest::validate::pod::resources;
use crate::manifest::validate::pod::security;
use crate::manifest::validate::{Check, Rule, duplicate, names};
use crate::pod::is_sidecar;

/// All containers of a pod.
pub(crate) fn all(check: &mut Check, spec: &PodSpec, volumes: &Volumes<'_>) {
    if spec.containers.is_empty() {
        check.required("spec.containers", "a pod must have at least one container");
    }
    let mut container_names = Set::new();
    let mut host_ports = Set::new();
    for (index, container) in spec.containers.iter().enumerate() {
        let field = format!("spec.containers[{index}]");
        one(check, &field, container, spec, volumes);
        let name = format!("{field}.name");
        duplicate(check, &mut container_names, name, &container.name);
        restart(check, &field, container);
        long_running(check, &field, container, spec);
        self::host_ports(check, &field, container, &mut host_ports);
        if spec.host_network == Some(true) {
            node_ports(check, &field, container);
        }
    }
    for (index, init) in spec.init_containers.iter().flatten().enumerate() {
        let field = format!("spec.initContainers[{index}]");
        one(check, &field, init, spec, volumes);
        if !init.name.is_empty() || container_names.contains("") {
            let name = format!("{field}.name");
            duplicate(check, &mut container_names, name, &init.name);
        }
        self::init(check, &field, init, spec);
    }
}

/// Rules for init containers only.
fn init(check: &mut Check, field: &str, init: &Container, spec: &PodSpec) {
    let has_rules = init.restart_policy_rules.as_ref().is_some_and(|rules| !rules.is_empty());
    if init.restart_policy.is_some() {
        restart(check, field, init);
    } else if has_rules {
        let detail = "must be given when restartPolicyRules is given";
        check.required(format!("{field}.restartPolicy"), detail);
    }
    // Init containers run one by one; the API server checks each alone, and reports the first one's path.
    host_ports(check, "spec.initContainers[0]", init, &mut Set::new());
    if is_sidecar(init) {
        long_running(check, field, init, spec);
        return;
    }
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
    for (place, policy) in init.resize_policy.iter().flatten().enumerate() {
        if policy.restart_policy == "RestartContainer" {
            check.invalid(
                format!("{field}.resizePolicy[{place}].restartPolicy"),
                &policy.restart_policy,
                "must not be RestartContainer for init containers without restartPolicy=Always",
            );
        }
    }
}

/// Rules for app containers and sidecars.
fn long_running(check: &mut Check, field: &str, container: &Container, spec: &PodSpec) {
    probe::of_container(check, field, container);
    if let Some(hooks) = &container.lifecycle {
        lifecycle::check(check, &format!("{field}.lifecycle"), hooks, spec);
    }
}

/// Rules for every container.
fn one(
    check: &mut Check,
    field: &str,
    container: &Container,
    spec: &PodSpec,
    volumes: &Volumes<'_>,
) {
    check.nonempty_formed(format!("{field}.name"), &container.name, names::dns_label);
    let image = container.image.as_deref().unwrap_or_default();
    if image.is_empty() {
        check.required(format!("{field}.image"), "");
    } else if image.trim() != image {
        let detail = "must not have leading or trailing whitespace";
        check.invalid(format!("{field}.image"), image, detail);
    }
    pull_policy(check, format!("{field}.imagePullPolicy"), container.image_pull_policy.as_deref());
    let policy = container.termination_message_policy.as_deref().unwrap_or_default();
    let known = ["File", "FallbackToLogsOnError"];
    check.one_of(format!("{field}.terminationMessagePolicy"), policy, &known);
    ports(check, field, container.ports.as_deref().unwrap_or_default());
    for (index, variable) in container.env.iter().flatten().enumerate() {
        env::variable(check, &format!("{field}.env[{index}]"), variable, spec);
    }
    for (index, from) in container.env_from.iter().flatten().enumerate() {
        env::from(check, &format!("{field}.envFrom"), index, from);
    }
    mounts::check(check, field, container, volumes);
    resources::of_container(check, field, container, spec);
    security::of_container(check, field, container, spec);
}

/// The pull policy of an image, also of image volumes.
pub(crate) fn pull_policy(check: &mut Check, field: String, policy: Option<&str>) {
    match policy.unwrap_or_default() {
        "" => check.required(field, ""),
        policy => check.one_of(field, policy, &["Always", "IfNotPresent", "Never"]),
    }
}

fn ports(check: &mut Check, field: &str, ports: &[ContainerPort]) {
    let mut port_names = Set::new();
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
            check.range(format!("{field}.containerPort"), i64::from(port.container_port), 1, 65535);
        }
        if let Some(host) = port.host_port.filter(|host| *host != 0) {
            check.range(format!("{field}.hostPort"), i64::from(host), 1, 65535);
        }
        let protocol = port.protocol.as_deref().unwrap_or_default();
        check.one_of(format!("{field}.protocol"), protocol, &["TCP", "UDP", "SCTP"]);
    }
}

/// Two containers cannot publish the same host port.
fn host_ports(check: &mut Check, field: &str, container: &Container, taken: &mut Set<String>) {
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let Some(host) = port.host_port.filter(|host| *host != 0) else {
            continue;
        };
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let key = format!("{}/{}/{host}", text(&port.protocol), text(&port.host_ip));
        duplicate(check, taken, format!("{field}.ports[{index}].hostPort"), &key);
    }
}

/// With `hostNetwork`, a container's ports are the node's.
fn node_ports(check: &mut Check, field: &str, container: &Container) {
    for (place, port) in container.ports.iter().flatten().enumerate() {
        let host = port.host_port.unwrap_or_default();
        if host != port.container_port {
            let detail = "must match `containerPort` when `hostNetwork` is true";
            check.invalid(format!("{field}.ports[{place}].hostPort"), host, detail);
        }
    }
}

fn restart(check: &mut Check, field: &str, container: &Container) {
    let policy = container.restart_policy.as_deref();
    check.maybe_one_of(format!("{field}.restartPolicy"), policy, &["Always", "OnFailure", "Never"]);
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    let list = format!("{field}.restartPolicyRules");
    if !rules.is_empty() && policy.is_none() {
        let detail = "must be given when restartPolicyRules is given";
        check.required(format!("{field}.restartPolicy"), detail);
    }
    if rules.len() > 20 {
        check.error(Rule::TooMany, &list, rules.len(), "must have at most 20 rules");
    }
    for (index, rule) in rules.iter().enumerate() {
        let field = format!("{list}[{index}]");
        check.one_of(format!("{field}.action"), &rule.action, &["Restart", "RestartAllContainers"]);
        let Some(codes) = &rule.exit_codes else {
            check.required(format!("{field}.exitCodes"), "must be specified");
            continue;
        };
        check.one_of(format!("{field}.exitCodes.operator"), &codes.operator, &["In", "NotIn"]);
        if codes.values.as_ref().is_some_and(|values| values.len() > 255) {
            let detail = "must have at most 255 values";
            check.error(Rule::TooMany, format!("{field}.exitCodes.values"), "", detail);
        }
    }
}
