//! ◆ Fields of a pod as values of environment variables (`fieldRef`).
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go podFieldSelectorRuntimeValue, pkg/fieldpath,
//! pkg/apis/core/pods/helpers.go.

use api::pod::Pod;
use k8s_openapi::api::core::v1::ObjectFieldSelector;

use crate::node::Node;

/// Why a field has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The path is of another version of the API.
    #[error("unsupported pod version: {version}")]
    Version {
        /// The version.
        version: String,
    },
    /// The path cannot be referred to.
    #[error("field label not supported: {path}")]
    Label {
        /// The path.
        path: String,
    },
    /// The path has a subscript, but the field is not a map.
    #[error("field label does not support subscript: {path}")]
    Subscript {
        /// The path.
        path: String,
    },
    /// The subscript is not the name of a label or annotation.
    #[error("invalid key subscript in {path}: {problem}")]
    Key {
        /// The path.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// The field has no value in the environment.
    #[error("unsupported fieldPath: {path}")]
    Path {
        /// The path.
        path: String,
    },
    /// The node has no address.
    #[error("host IP unknown; known addresses: [{addresses}]")]
    HostIp {
        /// Its other addresses.
        addresses: String,
    },
}

/// Splits `map['key']`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, key) = path.strip_suffix("']")?.split_once("['")?;
    (!map.is_empty()).then_some((map, key))
}

/// The value of a field. `ips` are the pod's addresses.
pub(super) fn value(
    pod: &Pod,
    ips: &[String],
    node: &Node,
    field: &ObjectFieldSelector,
) -> Result<String, FieldError> {
    let path = field.field_path.as_str();
    if let Some(version) = field.api_version.as_deref().filter(|version| *version != "v1") {
        let version = version.to_owned();
        return Err(FieldError::Version { version });
    }
    if let Some((map, key)) = subscript(path) {
        return entry(pod, path, map, key);
    }
    if let Some(value) = of_metadata(pod, path) {
        return Ok(value);
    }
    let own = || path.to_owned();
    let sorted = node.sort_pod_ips(ips);
    Ok(match path {
        // Clients of an old version of the API use spec.host.
        "spec.nodeName" | "spec.host" => match &pod.spec().node_name {
            Some(name) => name.clone(),
            None => node.name.clone(),
        },
        "spec.serviceAccountName" => pod.spec().service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => host_ips(node)?.swap_remove(0),
        "status.hostIPs" => host_ips(node)?.join(","),
        "status.podIP" => sorted.first().or(ips.first()).cloned().unwrap_or_default(),
        "status.podIPs" => sorted.join(","),
        "spec.restartPolicy" | "spec.schedulerName" | "status.phase" => {
            return Err(FieldError::Path { path: own() });
        }
        _ => return Err(FieldError::Label { path: own() }),
    })
}

/// The value of a field for a downwardAPI volume: only metadata.
pub(crate) fn in_volume(pod: &Pod, path: &str) -> Result<String, FieldError> {
    if let Some((map, key)) = subscript(path) {
        return entry(pod, path, map, key);
    }
    of_metadata(pod, path).ok_or_else(|| FieldError::Path { path: path.to_owned() })
}

fn of_metadata(pod: &Pod, path: &str) -> Option<String> {
    match path {
        "metadata.name" => Some(pod.name().to_owned()),
        "metadata.namespace" => Some(pod.namespace().to_owned()),
        "metadata.uid" => Some(pod.uid().to_string()),
        "metadata.labels" => Some(listed(pod.labels())),
        "metadata.annotations" => Some(listed(pod.annotations())),
        _ => None,
    }
}

/// The node's addresses, at least one.
fn host_ips(node: &Node) -> Result<Vec<String>, FieldError> {
    let ips = node.host_ips();
    if ips.is_empty() {
        let addresses = node.addresses.iter();
        let known: Vec<String> =
            addresses.map(|address| format!("{{{} {}}}", address.kind, address.address)).collect();
        let addresses = known.join(" ");
        return Err(FieldError::HostIp { addresses });
    }
    Ok(ips)
}

/// A label or annotation; empty if the pod does not have it.
fn entry(pod: &Pod, path: &str, map: &str, key: &str) -> Result<String, FieldError> {
    let metadata = &pod.api().metadata;
    let (map, checked) = match map {
        "metadata.labels" => (&metadata.labels, key.to_owned()),
        "metadata.annotations" => (&metadata.annotations, key.to_lowercase()),
        _ => {
            let path = path.to_owned();
            return Err(FieldError::Subscript { path });
        }
    };
    if let Some(problem) = key_problems(&checked) {
        let path = path.to_owned();
        return Err(FieldError::Key { path, problem });
    }
    let value = map.as_ref().and_then(|map| map.get(key));
    Ok(value.cloned().unwrap_or_default())
}

/// Why a text is not a valid key of a label or annotation (validation.IsQualifiedName).
fn key_problems(key: &str) -> Option<String> {
    const NAME: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
        alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
        '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let well_formed = |text: &str, inside: &str, letter: fn(&char) -> bool| {
        let ends = |c: Option<char>| c.is_some_and(|c| letter(&c));
        ends(text.chars().next())
            && ends(text.chars().next_back())
            && text.chars().all(|c| letter(&c) || inside.contains(c))
    };
    let (prefix, name) = match key.split_once('/') {
        None => (None, key),
        Some((prefix, name)) if !name.contains('/') => (Some(prefix), name),
        Some(_) => {
            return Some(format!(
                "a valid label key {NAME} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ));
        }
    };
    let mut problems = Vec::new();
    let lower = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit();
    match prefix {
        Some("") => problems.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            if prefix.len() > 253 {
                problems.push("prefix part must be no more than 253 bytes".to_owned());
            }
            if !prefix.split('.').all(|label| well_formed(label, "-", lower)) {
                problems.push(
                    "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
                     '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
                     validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                        .to_owned(),
                );
            }
        }
        None => {}
    }
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        problems.push("name part must be no more than 63 bytes".to_owned());
    }
    if !well_formed(name, "-_.", char::is_ascii_alphanumeric) {
        problems.push(format!("name part {NAME}"));
    }
    (!problems.is_empty()).then(|| problems.join(";"))
}

/// A map as the downward API formats it: `key="value"` lines with Go's escapes.
fn listed<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let lines: Vec<String> = pairs.map(|(key, value)| format!("{key}={}", quoted(value))).collect();
    lines.join("\n")
}

/// A string literal of Go. Unprintable characters are escaped by number.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if c == '\u{7f}' || c < ' ' => {
                out.push_str(&format!("\\x{:02x}", u32::from(c)));
            }
            c if is_shown(c) => out.push(c),
            c if u32::from(c) > 0xffff => out.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// Whether Rust treats a character as printable, which agrees with Go except for quotes and other characters handled above.
fn is_shown(c: char) -> bool {
    c == '\'' || !c.escape_debug().to_string().starts_with("\\u")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("app", None)]
    #[case("example.com/app_1.x", None)]
    #[case("", Some("name part must be non-empty;name part must consist of"))]
    #[case("/app", Some("prefix part must be non-empty"))]
    #[case("a/b/c", Some("a valid label key must consist of alphanumeric characters"))]
    #[case("Example.com/app", Some("prefix part a lowercase RFC 1123 subdomain must"))]
    #[case(
        "-app",
        Some("name part must consist of alphanumeric characters, '-', '_' or '.', and must start")
    )]
    fn key_problems_are_those_of_the_api(#[case] key: &str, #[case] start: Option<&str>) {
        let problems = key_problems(key);
        assert_eq!(problems.is_some(), start.is_some(), "{problems:?}");
        assert!(problems.unwrap_or_default().starts_with(start.unwrap_or_default()));
    }

    #[test]
    fn quoted_text_has_escapes_of_go() {
        assert_eq!(
            quoted("a'\"\\\n\u{1}\u{7f}\u{85}\u{feff}ä😀"),
            "\"a'\\\"\\\\\\n\\x01\\x7f\\u0085\\ufeffä😀\""
        );
    }
}
