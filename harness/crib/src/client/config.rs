//! Configurations of pods and containers in files: CRI messages in JSON or YAML, as crictl reads them.

use std::io;
use std::path::PathBuf;

use cri::v1;
use crib_base::named_text;
use crib_base::report::{chain, print_stderr};
use harness::debug_text::brief;
use prost::Message;
use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor};
use serde_json::Value;
use serde_path_to_error::{Deserializer, Track};

use super::CallError;
use super::output::descriptor;

/// Reads the configuration of a pod.
pub(crate) async fn pod_config(path: &str) -> Result<v1::PodSandboxConfig, CallError> {
    let config: v1::PodSandboxConfig = read(path, "PodSandboxConfig").await?;
    let metadata = config.metadata.clone().unwrap_or_default();
    if metadata.name.is_empty() || metadata.namespace.is_empty() {
        return Err(invalid(path, "set metadata.name and metadata.namespace"));
    }
    Ok(config)
}

/// Reads the configuration of a container.
pub(crate) async fn container_config(path: &str) -> Result<v1::ContainerConfig, CallError> {
    let config: v1::ContainerConfig = read(path, "ContainerConfig").await?;
    if config.metadata.as_ref().is_none_or(|of| of.name.is_empty()) {
        return Err(invalid(path, "set metadata.name"));
    }
    if config.image.as_ref().is_none_or(|of| of.image.is_empty()) {
        return Err(invalid(path, "set image.image"));
    }
    Ok(config)
}

/// Sets a random uid unless the pod has one.
pub(crate) fn set_uid(config: &mut v1::PodSandboxConfig) {
    let metadata = config.metadata.get_or_insert_default();
    if metadata.uid.is_empty() {
        metadata.uid = random_uid();
    }
}

/// A random UUID (version 4) from the kernel.
fn random_uid() -> String {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    uuid.trim_end().to_owned()
}

fn invalid(path: &str, reason: &str) -> CallError {
    CallError::Usage(format!("invalid configuration {path}: {reason}"))
}

async fn read<T: Message + Default>(path: &str, name: &str) -> Result<T, CallError> {
    let file = PathBuf::from(path);
    // Reads on another thread: a FIFO may have no writer, and signals must be handled meanwhile.
    let text = tasks::blocking(move || named_text::read_text(&file)).await.map_err(|source| {
        CallError::Usage(format!("failed to read the configuration {path}: {source}"))
    })?;
    // JSON is valid YAML.
    let document: Value =
        serde_saphyr::from_str(&text).map_err(|error| invalid(path, &chain(&error)))?;
    let descriptor = descriptor(name)?;
    let strict = DeserializeOptions::new();
    let message =
        match DynamicMessage::deserialize_with_options(descriptor.clone(), &document, &strict) {
            Ok(message) => message,
            Err(error) => {
                let message =
                    lenient(descriptor, &document).map_err(|error| invalid(path, &error))?;
                // crictl ignores unknown fields silently.
                print_stderr(&format!("{path}: ignored: {}", brief(&error.to_string())));
                message
            }
        };
    message.transcode_to().map_err(|error| CallError::Io {
        doing: format!("read the configuration {path}"),
        source: io::Error::other(error),
    })
}

/// Parses the message and ignores unknown fields. An error names the field and includes at most the beginning of a value.
fn lenient(descriptor: MessageDescriptor, document: &Value) -> Result<DynamicMessage, String> {
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let mut track = Track::new();
    let tracked = Deserializer::new(document, &mut track);
    let message = DynamicMessage::deserialize_with_options(descriptor, tracked, &options);
    message.map_err(|error| match track.path().to_string().as_str() {
        "." => brief(&error.to_string()),
        field => brief(&format!("{field}: {error}")),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(
        "PodSandboxConfig",
        json!({"metadata": {"name": "p", "attempt": -1}}),
        "metadata.attempt: out of range"
    )]
    #[case(
        "ContainerConfig",
        json!({"envs": [{"key": "A", "value": "YQ=="}, {"key": "B", "value": "x"}]}),
        "envs[1].value: invalid base64"
    )]
    #[case("ContainerConfig", json!({"unknown": 1, "tty": "x"}), "tty: ")]
    #[case("ContainerConfig", json!("text"), "invalid type: string \"text\"")]
    fn invalid_value_is_reported_with_its_field(
        #[case] message: &str,
        #[case] document: Value,
        #[case] expected: &str,
    ) {
        let error = lenient(descriptor(message).unwrap(), &document).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }

    #[rstest]
    #[case(json!("a".repeat(1 << 20)))]
    #[case(json!({"tty": "a".repeat(1 << 20)}))]
    fn error_has_the_beginning_of_a_long_value(#[case] document: Value) {
        let error = lenient(descriptor("ContainerConfig").unwrap(), &document).unwrap_err();
        assert!(error.chars().count() <= 301, "{}", error.len());
    }
}
