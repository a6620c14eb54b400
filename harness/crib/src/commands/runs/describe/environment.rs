//! ◆ The environment of a container in the format of `kubectl describe`. Pure.

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, EnvVarSource, ResourceFieldSelector,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::lines::{Lines, NONE};

/// Adds the environment of a container. `pod` is the metadata of its pod.
pub(super) fn add(lines: &mut Lines, container: &Container, pod: &ObjectMeta) {
    let sources = container.env_from.as_deref().unwrap_or_default();
    if !sources.is_empty() {
        lines.line(4, "Environment Variables from:");
        sources.iter().for_each(|source| lines.row(6, env_source(source)));
    }
    match container.env.as_deref().unwrap_or_default() {
        [] => lines.field(4, "Environment", NONE),
        variables => {
            lines.line(4, "Environment:");
            variables.iter().for_each(|of| variable(lines, of, container, pod));
        }
    }
}

/// The name, the kind, and whether the source is optional.
fn env_source(source: &EnvFromSource) -> [String; 3] {
    let (name, kind, optional) = if let Some(map) = &source.config_map_ref {
        (map.name.as_str(), "ConfigMap", map.optional)
    } else if let Some(secret) = &source.secret_ref {
        (secret.name.as_str(), "Secret", secret.optional)
    } else {
        ("", "<unknown>", None)
    };
    let prefix = source.prefix.as_deref().filter(|prefix| !prefix.is_empty());
    let kind = match prefix {
        Some(prefix) => format!("{kind} with prefix '{prefix}'"),
        None => kind.to_owned(),
    };
    let optional = format!("Optional: {}", optional.unwrap_or_default());
    [name.to_owned(), kind, optional]
}

/// Adds a variable, with a line for each line of its value.
fn variable(lines: &mut Lines, variable: &EnvVar, container: &Container, pod: &ObjectMeta) {
    let name = format!("{}:", variable.name);
    if let Some(source) = &variable.value_from {
        let mut cells = vec![name];
        cells.extend(variable_source(source, container, pod));
        return lines.row(6, cells);
    }
    let mut values = variable.value.as_deref().unwrap_or_default().split('\n');
    lines.row(6, [name, values.next().unwrap_or_default().to_owned()]);
    values.for_each(|value| lines.row(6, [String::new(), value.to_owned()]));
}

fn variable_source(source: &EnvVarSource, container: &Container, pod: &ObjectMeta) -> Vec<String> {
    let key = |what: &str, name: &str, key: &str, optional: Option<bool>| {
        let optional = format!("Optional: {}", optional.unwrap_or_default());
        vec![format!("<set to the key '{key}' {what} '{name}'>"), optional]
    };
    if let Some(map) = &source.config_map_key_ref {
        key("of config map", &map.name, &map.key, map.optional)
    } else if let Some(secret) = &source.secret_key_ref {
        key("in secret", &secret.name, &secret.key, secret.optional)
    } else if let Some(file) = &source.file_key_ref {
        let name = format!("{}/{}", file.volume_name, file.path);
        key("in file", &name, &file.key, file.optional)
    } else if let Some(field) = &source.field_ref {
        let version = field.api_version.as_deref().unwrap_or("v1");
        let path = &field.field_path;
        vec![format!("{} ({version}:{path})", field_value(pod, path))]
    } else if let Some(field) = &source.resource_field_ref {
        let amount = amount(container, field).unwrap_or_default();
        let value = match (amount.as_str(), field.resource.as_str()) {
            ("0", "limits.cpu" | "limits.memory") => "node allocatable",
            (amount, _) => amount,
        };
        vec![format!("{value} ({})", field.resource)]
    } else {
        vec!["(unknown)".to_owned()]
    }
}

/// The value of a field of the metadata. As with kubectl, other fields, such as addresses, are shown without a value.
fn field_value(pod: &ObjectMeta, path: &str) -> String {
    let entry = path.strip_suffix("']").and_then(|path| path.split_once("['"));
    let value = match (entry, path) {
        (Some(("metadata.labels", key)), _) => pod.labels.as_ref().and_then(|all| all.get(key)),
        (Some(("metadata.annotations", key)), _) => {
            pod.annotations.as_ref().and_then(|all| all.get(key))
        }
        (None, "metadata.name") => pod.name.as_ref(),
        (None, "metadata.namespace") => pod.namespace.as_ref(),
        (None, "metadata.uid") => pod.uid.as_ref(),
        _ => None,
    };
    value.cloned().unwrap_or_default()
}

/// The limit or request of a container in units of the divisor, rounded up; 0 if it has none.
fn amount(container: &Container, field: &ResourceFieldSelector) -> Option<String> {
    let (list, name) = field.resource.split_once('.')?;
    let resources = container.resources.as_ref();
    let amounts = match list {
        "limits" => resources.and_then(|of| of.limits.as_ref()),
        "requests" => resources.and_then(|of| of.requests.as_ref()),
        _ => return None,
    };
    let is_known = matches!(name, "cpu" | "memory" | "ephemeral-storage");
    if !is_known && !name.starts_with("hugepages-") {
        return None;
    }
    // CPUs are divided in thousandths.
    let (one, is_cpu) = if name == "cpu" { (1000, true) } else { (1, false) };
    let units = |text: &str| {
        let quantity = Quantity::parse(text).ok();
        quantity.map(|of| if is_cpu { of.milli_value() } else { of.value() })
    };
    let divisor = field.divisor.as_ref().and_then(|divisor| units(&divisor.0));
    let divisor = divisor.filter(|divisor| *divisor > 0).unwrap_or(one);
    let amount = amounts.and_then(|all| all.get(name)).and_then(|amount| units(&amount.0));
    Some((amount.unwrap_or_default().saturating_add(divisor - 1) / divisor).to_string())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::text(json!({"value": "b"}), &["      A:  b"])]
    #[case::lines(json!({"value": "b\n\nc"}), &["      A:  b", "", "          c"])]
    #[case::name(
        json!({"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}), &["      A:  web (v1:metadata.name)"]
    )]
    #[case::label(
        json!({"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['x/y']"}}}),
        &["      A:  z (v1:metadata.labels['x/y'])"]
    )]
    #[case::missing_annotation(
        json!({"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['n']"}}}),
        &["      A:   (v1:metadata.annotations['n'])"]
    )]
    #[case::address(
        json!({"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}), &["      A:   (v1:status.podIP)"]
    )]
    #[case::limit(
        json!({"valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}), &["      A:  2 (limits.cpu)"]
    )]
    #[case::divisor(
        json!({"valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}}),
        &["      A:  1500 (limits.cpu)"]
    )]
    #[case::memory(
        json!({"valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}}),
        &["      A:  1024 (requests.memory)"]
    )]
    #[case::no_limit(
        json!({"valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}),
        &["      A:  node allocatable (limits.memory)"]
    )]
    #[case::no_request(
        json!({"valueFrom": {"resourceFieldRef": {"resource": "requests.cpu"}}}), &["      A:  0 (requests.cpu)"]
    )]
    fn variables_have_values_of_kubectl(#[case] mut variable: Value, #[case] expected: &[&str]) {
        variable["name"] = json!("A");
        let container = json!({
            "name": "c", "env": [variable],
            "resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "1Gi"}},
        });
        let pod = json!({"name": "web", "labels": {"x/y": "z"}});
        let mut lines = Lines::default();
        let container = serde_json::from_value(container).unwrap();
        add(&mut lines, &container, &serde_json::from_value(pod).unwrap());
        assert_eq!(lines.aligned()[1..], *expected);
    }
}
