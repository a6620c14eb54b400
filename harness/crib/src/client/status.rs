//! The statuses of containers, pods and images in crictl's format.

use std::collections::{BTreeMap, HashMap};

use cri::v1;
use serde_json::{Map, Value};

use super::document::Rendered;
use super::output::{escape_control, json, message_fields, now};
use super::{CallError, Cri, human};

/// The status of a container; with `verbose`, including the runtime's additional information.
pub(crate) async fn container(cri: &Cri, id: &str, verbose: bool) -> Result<Rendered, CallError> {
    let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("ContainerStatus", client.container_status(request));
    let answer = answer.await?.into_inner();
    let status = answer.status.unwrap_or_default();
    let mut document = with_nulls("ContainerStatus", json("ContainerStatus", &status)?)?;
    let started = status.state() != v1::ContainerState::ContainerCreated;
    let finished = match status.state() {
        v1::ContainerState::ContainerExited => true,
        v1::ContainerState::ContainerUnknown => status.finished_at > 0,
        v1::ContainerState::ContainerCreated | v1::ContainerState::ContainerRunning => false,
    };
    document.insert("createdAt".to_owned(), time(true, status.created_at));
    document.insert("startedAt".to_owned(), time(started, status.started_at));
    document.insert("finishedAt".to_owned(), time(finished, status.finished_at));
    Ok(Rendered {
        document: merge(document, answer.info.clone())?,
        lines: container_lines(&status, &answer.info),
    })
}

/// The status of a pod.
pub(crate) async fn pod(cri: &Cri, id: &str, verbose: bool) -> Result<Rendered, CallError> {
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("PodSandboxStatus", client.pod_sandbox_status(request));
    let answer = answer.await?.into_inner();
    let status = answer.status.unwrap_or_default();
    let mut document = with_nulls("PodSandboxStatus", json("PodSandboxStatus", &status)?)?;
    document.insert("createdAt".to_owned(), time(true, status.created_at));
    Ok(Rendered {
        document: merge(document, answer.info.clone())?,
        lines: pod_lines(&status, &answer.info),
    })
}

/// The status of an image; `None` if it does not exist.
pub(crate) async fn image(
    cri: &Cri,
    id: &str,
    verbose: bool,
) -> Result<Option<Rendered>, CallError> {
    let request = v1::ImageStatusRequest {
        image: Some(v1::ImageSpec { image: id.to_owned(), ..Default::default() }),
        verbose,
    };
    let mut client = cri.images.images.clone();
    let answer = cri.call("ImageStatus", client.image_status(request));
    let answer = answer.await?.into_inner();
    let Some(image) = answer.image else {
        return Ok(None);
    };
    let mut lines = vec![format!("ID: {}", image.id)];
    lines.extend(image.repo_tags.iter().map(|tag| format!("Tag: {tag}")));
    lines.extend(image.repo_digests.iter().map(|name| format!("Digest: {name}")));
    lines.push(format!("Size: {}", human::size(image.size)));
    lines.extend(info_line(&answer.info));
    Ok(Some(Rendered {
        document: merge(json("Image", &image)?, answer.info)?,
        lines: escaped(lines),
    }))
}

/// Adds the runtime's additional information to the status: JSON objects as objects, other values as text.
pub(crate) fn merge(
    status: impl Into<Value>,
    info: HashMap<String, String>,
) -> Result<Value, CallError> {
    let mut all = Map::from_iter([("status".to_owned(), status.into())]);
    all.extend(extra(info)?);
    Ok(Value::Object(all))
}

/// The runtime's additional information (verbose info).
pub(crate) fn extra(info: HashMap<String, String>) -> Result<Map<String, Value>, CallError> {
    let read = |(key, text): (String, String)| match text.starts_with('{') {
        true => {
            let value = serde_json::from_str(&text).map_err(|error| CallError::Io {
                doing: format!("parse {key:?} of the runtime's response as JSON"),
                source: std::io::Error::other(error),
            });
            Ok((key, value?))
        }
        false => Ok((key, Value::from(text.trim_matches('"')))),
    };
    info.into_iter().map(read).collect()
}

/// Adds unset message fields as null, as in crictl's output.
fn with_nulls(name: &str, message: Value) -> Result<Map<String, Value>, CallError> {
    let mut fields: Map<String, Value> =
        message_fields(name)?.into_iter().map(|field| (field, Value::Null)).collect();
    if let Value::Object(set) = message {
        fields.extend(set);
    }
    Ok(fields)
}

/// A CRI timestamp in Go's format RFC3339Nano. If the event has not happened, Go's zero time.
fn time(has_come: bool, nanos: i64) -> Value {
    let time = jiff::Timestamp::from_nanosecond(nanos.into());
    match time {
        Ok(time) if has_come => time.to_string(),
        Ok(_) | Err(_) => "0001-01-01T00:00:00Z".to_owned(),
    }
    .into()
}

fn container_lines(status: &v1::ContainerStatus, info: &HashMap<String, String>) -> Vec<String> {
    let metadata = status.metadata.clone().unwrap_or_default();
    let ago = |nanos| human::ago(nanos, now());
    let exited = status.state() == v1::ContainerState::ContainerExited;
    let mut lines = vec![format!("ID: {}", status.id)];
    lines.extend((!metadata.name.is_empty()).then(|| format!("Name: {}", metadata.name)));
    lines.extend((metadata.attempt != 0).then(|| format!("Attempt: {}", metadata.attempt)));
    lines.push(format!("State: {}", status.state().as_str_name()));
    lines.push(format!("Created: {}", ago(status.created_at)));
    let started = status.state() != v1::ContainerState::ContainerCreated;
    lines.extend(started.then(|| format!("Started: {}", ago(status.started_at))));
    lines.extend(
        (exited && status.finished_at > 0)
            .then(|| format!("Finished: {}", ago(status.finished_at))),
    );
    lines.extend(exited.then(|| format!("Exit Code: {}", status.exit_code)));
    lines.extend(pairs("Labels:", &status.labels));
    lines.extend(pairs("Annotations:", &status.annotations));
    lines.extend(info_line(info));
    escaped(lines)
}

fn pod_lines(status: &v1::PodSandboxStatus, info: &HashMap<String, String>) -> Vec<String> {
    let metadata = status.metadata.clone().unwrap_or_default();
    let mut lines = vec![format!("ID: {}", status.id)];
    for (name, value) in
        [("Name", &metadata.name), ("UID", &metadata.uid), ("Namespace", &metadata.namespace)]
    {
        lines.extend((!value.is_empty()).then(|| format!("{name}: {value}")));
    }
    lines.push(format!("Attempt: {}", metadata.attempt));
    lines.push(format!("Status: {}", status.state().as_str_name()));
    lines.push(format!("Created: {}", human::timestamp(status.created_at)));
    if let Some(network) = &status.network {
        lines.push(format!("IP Addresses: {}", network.ip));
        let more = network.additional_ips.iter();
        lines.extend(more.map(|ip| format!("Additional IP: {}", ip.ip)));
    }
    lines.extend(pairs("Labels:", &status.labels));
    lines.extend(pairs("Annotations:", &status.annotations));
    lines.extend(info_line(info));
    escaped(lines)
}

/// Labels or annotations under a heading; empty without any.
pub(crate) fn pairs(heading: &str, all: &HashMap<String, String>) -> Vec<String> {
    if all.is_empty() {
        return Vec::new();
    }
    let sorted: BTreeMap<&String, &String> = all.iter().collect();
    let pairs = sorted.into_iter().map(|(key, value)| format!("\t{key} -> {value}"));
    std::iter::once(heading.to_owned()).chain(pairs).collect()
}

fn info_line(info: &HashMap<String, String>) -> Option<String> {
    if info.is_empty() {
        return None;
    }
    let sorted: BTreeMap<&String, &String> = info.iter().collect();
    let pairs: Vec<String> =
        sorted.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
    Some(format!("Info: map[{}]", pairs.join(" ")))
}

/// Escapes control sequences, except for the tab before a pair.
pub(crate) fn escaped(lines: Vec<String>) -> Vec<String> {
    let escape = |line: String| match line.strip_prefix('\t') {
        Some(rest) => format!("\t{}", escape_control(rest)),
        None => escape_control(&line),
    };
    lines.into_iter().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn info_of_runtime_is_beside_status() {
        let pairs = [("a", "{\"b\":[1]}"), ("c", "\"plain\""), ("d", "[7]")];
        let owned = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let expected = json!({"status": {}, "a": {"b": [1]}, "c": "plain", "d": "[7]"});
        assert_eq!(merge(Map::new(), HashMap::from(owned)).unwrap(), expected);
        let broken = HashMap::from([("a".to_owned(), "{".to_owned())]);
        extra(broken).unwrap_err();
    }

    #[test]
    fn time_has_no_trailing_zeros_and_is_never_empty() {
        assert_eq!(time(true, 1_500_000_000), "1970-01-01T00:00:01.5Z");
        assert_eq!(time(true, 0), "1970-01-01T00:00:00Z");
        assert_eq!(time(false, 7), "0001-01-01T00:00:00Z");
    }

    #[test]
    fn messages_that_are_not_set_are_null() {
        let status = json("ContainerStatus", &v1::ContainerStatus::default()).unwrap();
        let shown = with_nulls("ContainerStatus", status).unwrap();
        assert_eq!(shown["resources"], Value::Null);
        assert_eq!(shown["image"], Value::Null);
        assert_eq!(shown["mounts"], json!([]));
        assert_eq!(shown["exitCode"], 0);
    }
}
