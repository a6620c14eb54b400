//! Configurations of pods and containers in files: messages of the CRI in JSON or YAML, as crictl reads them.

use std::io;
use std::path::PathBuf;

use cri::v1;
use crib_base::named_text;
use crib_base::report::{chain, say};
use prost::Message;
use prost_reflect::{DeserializeOptions, DynamicMessage};

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

/// Gives a pod a random uid unless it has one.
pub(crate) fn set_uid(config: &mut v1::PodSandboxConfig) {
    let metadata = config.metadata.get_or_insert_default();
    if metadata.uid.is_empty() {
        metadata.uid = random_uid();
    }
}

/// A UUID of version 4, which the kernel makes.
fn random_uid() -> String {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    uuid.trim_end().to_owned()
}

fn invalid(path: &str, reason: &str) -> CallError {
    CallError::Usage(format!("invalid configuration {path}: {reason}"))
}

async fn read<T: Message + Default>(path: &str, name: &str) -> Result<T, CallError> {
    let file = PathBuf::from(path);
    // On another thread: a FIFO may have no writer, and signals are handled meanwhile.
    let text = tasks::blocking(move || named_text::read_text(&file)).await.map_err(|source| {
        CallError::Usage(format!("failed to read the configuration {path}: {source}"))
    })?;
    // JSON is YAML, too.
    let document: serde_json::Value =
        serde_saphyr::from_str(&text).map_err(|error| invalid(path, &chain(&error)))?;
    let descriptor = descriptor(name)?;
    let strict = DeserializeOptions::new();
    let message =
        match DynamicMessage::deserialize_with_options(descriptor.clone(), &document, &strict) {
            Ok(message) => message,
            Err(error) => {
                let lenient = DeserializeOptions::new().deny_unknown_fields(false);
                let message =
                    DynamicMessage::deserialize_with_options(descriptor, &document, &lenient)
                        .map_err(|error| invalid(path, &error.to_string()))?;
                // crictl passes over it in silence.
                say(&format!("{path}: ignored: {error}"));
                message
            }
        };
    message.transcode_to().map_err(|error| CallError::Io {
        doing: format!("read the configuration {path}"),
        source: io::Error::other(error),
    })
}
