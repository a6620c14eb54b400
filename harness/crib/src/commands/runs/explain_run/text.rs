//! ◆ The explanation as human-readable text.

use std::fmt::Write;

use super::model::{Explained, ExplainedContainer, ExplainedMount, ExplainedPod};
use super::services::{ExplainedPort, ExplainedService};

/// The text, without a final newline.
pub(super) fn of(explained: &Explained) -> String {
    let mut lines = Vec::new();
    for pod in &explained.pods {
        of_pod(&mut lines, pod);
        lines.push(String::new());
    }
    for service in &explained.services {
        of_service(&mut lines, service);
        lines.push(String::new());
    }
    list(&mut lines, "objects", &explained.objects);
    let places = explained
        .no_effect
        .iter()
        .map(|at| format!("{}:{}:{}: {}: {}", at.file, at.line, at.column, at.path, at.reason));
    list(&mut lines, "no effect", &places.collect::<Vec<_>>());
    list(&mut lines, "warnings", &explained.warnings);
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines.join("\n")
}

/// A heading and its lines, if there are lines.
fn list(lines: &mut Vec<String>, heading: &str, entries: &[String]) {
    if entries.is_empty() {
        return;
    }
    lines.push(heading.to_owned());
    let each = entries.iter().flat_map(|entry| entry.lines());
    lines.extend(each.map(|line| format!("  {line}")));
    lines.push(String::new());
}

fn of_pod(lines: &mut Vec<String>, pod: &ExplainedPod) {
    let what = match (&pod.controller, pod.count) {
        (None, _) => format!("pod {}/{}", pod.namespace, pod.name),
        (Some(controller), 1) => format!("{controller}: 1 pod"),
        (Some(controller), count) => format!("{controller}: {count} pods"),
    };
    lines.push(format!("{what} from {}", pod.file));
    if let Some(schedule) = &pod.schedule {
        lines.push(format!("  a Job on schedule {schedule}"));
    }
    let network = if pod.host_network { "the host's network" } else { "its own network" };
    lines.push(format!(
        "  restart policy {}, grace period {} s, QoS class {}, {network}",
        pod.restart_policy, pod.grace_seconds, pod.qos_class
    ));
    for volume in &pod.volumes {
        let mut line = format!("  volume {}: {}", volume.name, volume.source);
        if let Some(bound_to) = &volume.bound_to {
            let _ = write!(line, ", bound to {bound_to}");
        }
        lines.push(line);
    }
    for container in &pod.containers {
        of_container(lines, container);
    }
}

fn of_container(lines: &mut Vec<String>, container: &ExplainedContainer) {
    let kind = match container.kind {
        "app" => "container",
        "init" => "init container",
        other => other,
    };
    lines.push(format!("  {kind} {}", container.name));
    let pulled = match container.image_pull_policy.as_str() {
        "Always" => "always pulled",
        "Never" => "never pulled",
        _ => "pulled if not present",
    };
    let mut row = |name: &str, text: String| {
        if !text.is_empty() {
            lines.push(format!("    {name:<9} {text}"));
        }
    };
    row("image", format!("{}, {pulled}", container.image));
    row("command", words(&container.command));
    row("arguments", words(&container.args));
    row("ports", container.ports.join(", "));
    row("env", container.env.join(", "));
    for mount in &container.mounts {
        row("mount", of_mount(mount));
    }
    row("requests", pairs(&container.requests));
    row("limits", pairs(&container.limits));
    for (name, probe) in &container.probes {
        row(name, probe.clone());
    }
}

fn of_service(lines: &mut Vec<String>, service: &ExplainedService) {
    let ExplainedService { namespace, name, kind, address, ports, backends } = service;
    lines.push(format!("service {namespace}/{name} ({kind})"));
    lines.push(format!("  address   {address}"));
    lines.extend(ports.iter().map(|port| format!("  port      {}", of_port(port))));
    if !backends.is_empty() {
        lines.push(format!("  backends  {}", backends.join(", ")));
    }
}

fn of_port(port: &ExplainedPort) -> String {
    let mut text = format!("{}/{} to {}", port.port, port.protocol, port.target_port);
    if let Some(name) = &port.name {
        text = format!("{name} {text}");
    }
    match port.node_port {
        Some(number) => {
            let _ = write!(text, ", at port {number} of this machine");
        }
        None if port.is_published => {
            text.push_str(", at a free port of this machine, chosen at the start");
        }
        None => {}
    }
    text
}

fn of_mount(mount: &ExplainedMount) -> String {
    let mut text = format!("{} from {}", mount.path, mount.volume);
    if let Some(part) = &mount.sub_path {
        let _ = write!(text, "/{part}");
    }
    if mount.read_only {
        text.push_str(", read-only");
    }
    text
}

fn pairs(amounts: &std::collections::BTreeMap<String, String>) -> String {
    let each: Vec<String> =
        amounts.iter().map(|(name, amount)| format!("{name} {amount}")).collect();
    each.join(", ")
}

/// Words quoted for a shell, on one line.
fn words(words: &[String]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
    quoted.join(" ")
}

fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if word.chars().any(char::is_control) {
        return format!("{word:?}");
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}
