//! The environment of a container, and `$(VAR)` in its command and arguments.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go makeEnvironmentVariables and third_party/forked/golang/expansion.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector,
};

use crate::node::Node;
use crate::pod::Pod;
use crate::quantity::Quantity;

/// Why an environment cannot be built; the waiting message of a container with reason `CreateContainerConfigError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// An unsupported field path.
    #[error("environment variable {name}: unsupported field path {path:?}")]
    FieldPath {
        /// The variable.
        name: String,
        /// The field path.
        path: String,
    },
    /// An unsupported resource or an invalid quantity.
    #[error(
        "environment variable {name}: unsupported resource {resource:?} of container {container:?}"
    )]
    Resource {
        /// The variable.
        name: String,
        /// The resource.
        resource: String,
        /// The container.
        container: String,
    },
    /// A source that needs an API server or is not supported.
    #[error("environment variable {name}: {kind} is not available to static pods")]
    Unavailable {
        /// The variable, or the prefix of an `envFrom`.
        name: String,
        /// The kind of source.
        kind: &'static str,
    },
}

/// Replaces `$(NAME)` by `lookup(NAME)`; unknown references are unchanged, and `$$` is one `$`.
///
/// | text | becomes |
/// |---|---|
/// | `$(A)` | the value of `A`, or `$(A)` where there is none |
/// | `$$(A)` | `$(A)` |
/// | `$(A` , `$A`, a `$` at the end | itself |
pub fn expand<'a>(text: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        if let Some(after) = tail.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = tail
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'))
        {
            match lookup(name) {
                Some(value) => out.push_str(value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
            rest = tail;
        }
    }
    out.push_str(rest);
    out
}

/// The environment of a container: names are unique, in the order of their last definition.
///
/// `ips` are the pod's addresses, the primary one first.
pub fn environment(
    pod: &Pod,
    container: &Container,
    ips: &[String],
    node: &Node,
) -> Result<Vec<(String, String)>, EnvError> {
    for from in container.env_from.iter().flatten() {
        let (kind, optional) = if let Some(source) = &from.config_map_ref {
            ("a ConfigMap", source.optional)
        } else {
            (
                "a Secret",
                from.secret_ref.as_ref().and_then(|source| source.optional),
            )
        };
        if optional != Some(true) {
            return Err(EnvError::Unavailable {
                name: from.prefix.clone().unwrap_or_default(),
                kind,
            });
        }
    }
    let mut names: Vec<String> = Vec::new();
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    for variable in container.env.iter().flatten() {
        let name = &variable.name;
        let literal = variable.value.as_deref().unwrap_or_default();
        let value = match &variable.value_from {
            // As in the kubelet, a literal takes precedence over a source.
            Some(source) if literal.is_empty() => {
                match sourced(pod, container, ips, node, name, source)? {
                    Some(value) => value,
                    None => continue,
                }
            }
            Some(_) | None => expand(literal, |name| values.get(name).map(String::as_str)),
        };
        names.retain(|known| known != name);
        names.push(name.clone());
        values.insert(name.clone(), value);
    }
    Ok(names
        .into_iter()
        .map(|name| {
            let value = values.remove(&name).unwrap_or_default();
            (name, value)
        })
        .collect())
}

/// The value of a variable's source; `None` if an optional source is missing: the variable is not set.
fn sourced(
    pod: &Pod,
    container: &Container,
    ips: &[String],
    node: &Node,
    name: &str,
    source: &EnvVarSource,
) -> Result<Option<String>, EnvError> {
    let unavailable = |kind, optional: Option<bool>| match optional {
        Some(true) => Ok(None),
        Some(false) | None => Err(EnvError::Unavailable {
            name: name.to_owned(),
            kind,
        }),
    };
    if let Some(field) = &source.field_ref {
        self::field(pod, ips, node, name, field).map(Some)
    } else if let Some(resource) = &source.resource_field_ref {
        self::resource(pod, container, node, name, resource).map(Some)
    } else if let Some(key) = &source.config_map_key_ref {
        unavailable("a ConfigMap", key.optional)
    } else if let Some(key) = &source.secret_key_ref {
        unavailable("a Secret", key.optional)
    } else if let Some(key) = &source.file_key_ref {
        unavailable("a file of a volume", key.optional)
    } else {
        Ok(Some(String::new()))
    }
}

fn field(
    pod: &Pod,
    ips: &[String],
    node: &Node,
    name: &str,
    field: &ObjectFieldSelector,
) -> Result<String, EnvError> {
    let path = field.field_path.as_str();
    let unsupported = || EnvError::FieldPath {
        name: name.to_owned(),
        path: path.to_owned(),
    };
    if let Some((map, key)) = path
        .strip_suffix("']")
        .and_then(|path| path.split_once("['"))
    {
        let metadata = &pod.api().metadata;
        let map = match map {
            "metadata.labels" => &metadata.labels,
            "metadata.annotations" => &metadata.annotations,
            _ => return Err(unsupported()),
        };
        return Ok(map
            .as_ref()
            .and_then(|map| map.get(key))
            .cloned()
            .unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => pod.name().to_owned(),
        "metadata.namespace" => pod.namespace().to_owned(),
        "metadata.labels" => listed(pod.labels()),
        "metadata.annotations" => listed(pod.annotations()),
        "metadata.uid" => pod.uid().to_string(),
        "spec.nodeName" => pod
            .spec()
            .node_name
            .clone()
            .unwrap_or_else(|| node.name.clone()),
        "spec.serviceAccountName" => pod.spec().service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => node.ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => node.ips.join(","),
        "status.podIP" => ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => ips.join(","),
        _ => return Err(unsupported()),
    })
}

/// A map as the downward API writes it: `key="value"` lines with Go's escapes.
fn listed<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let lines: Vec<String> = pairs
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    lines.join("\n")
}

fn resource(
    pod: &Pod,
    container: &Container,
    node: &Node,
    name: &str,
    wanted: &ResourceFieldSelector,
) -> Result<String, EnvError> {
    let about = match wanted.container_name.as_deref() {
        None | Some("") => Some(container),
        Some(other) => pod.container(other).map(|(_, container)| container),
    };
    let fail = || EnvError::Resource {
        name: name.to_owned(),
        resource: wanted.resource.clone(),
        container: wanted.container_name.clone().unwrap_or_default(),
    };
    let (list, resource) = wanted.resource.split_once('.').ok_or_else(fail)?;
    let resources = about.ok_or_else(fail)?.resources.as_ref();
    let listed = match list {
        "limits" => resources.and_then(|resources| resources.limits.as_ref()),
        "requests" => resources.and_then(|resources| resources.requests.as_ref()),
        _ => return Err(fail()),
    };
    let known = matches!(resource, "cpu" | "memory" | "ephemeral-storage")
        || resource.starts_with("hugepages-");
    if !known {
        return Err(fail());
    }
    let parse = |text: &str| Quantity::parse(text).map_err(|_| fail());
    let quantity = match listed.and_then(|list| list.get(resource)) {
        Some(quantity) => parse(&quantity.0)?,
        // Without a limit the node's capacity applies.
        None if list == "limits" => match node.allocatable.get(resource) {
            Some(whole) => parse(whole)?,
            None => Quantity::ZERO,
        },
        None => Quantity::ZERO,
    };
    let divisor = match wanted.divisor.as_ref().map(|divisor| divisor.0.as_str()) {
        None | Some("" | "0") => Quantity::ONE,
        Some(divisor) => parse(divisor)?,
    };
    // Rounded up; CPUs are counted in thousandths so that a divisor of 1m is exact.
    let (value, divisor) = if resource == "cpu" {
        (quantity.milli_value(), divisor.milli_value())
    } else {
        (quantity.value(), divisor.value())
    };
    let quotient = value.checked_div(divisor).ok_or_else(fail)?;
    Ok((quotient + i64::from(value % divisor != 0)).to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::expand;

    fn known(name: &str) -> Option<&'static str> {
        match name {
            "A" => Some("1"),
            "" => Some("empty"),
            _ => None,
        }
    }

    proptest! {
        #[test]
        fn text_without_dollar_is_unchanged(text in "[^$]*") {
            prop_assert_eq!(expand(&text, known), text);
        }

        #[test]
        fn doubled_dollars_escape_references(text in ".*") {
            prop_assert_eq!(expand(&text.replace('$', "$$"), known), text);
        }

        #[test]
        fn unknown_references_are_unchanged(text in "([^$]|\\$\\([a-z]+\\))*") {
            prop_assert_eq!(expand(&text, |_| None), text);
        }
    }
}
