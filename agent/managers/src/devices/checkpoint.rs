//! The checkpoint of the containers' devices: the kubelet's `kubelet_internal_checkpoint`.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go.

use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use compact::Map;
use serde::{Deserialize, Serialize};

use super::affinity::Ids;
use super::inventory::{AssignedDevices, OfContainers};
use super::wire;
use crate::state_file::{self, checksum, list, map};

/// The file name.
pub(super) const FILE: &str = "kubelet_internal_checkpoint";

/// The content of the checkpoint.
#[derive(Debug, Default)]
pub(super) struct Checkpoint {
    /// The devices of containers, by pod uid.
    pub(super) pods: Map<String, OfContainers>,
    /// The resources whose plugins were registered.
    pub(super) registered: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Data,
    checksum: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: Option<Map<String, Option<Vec<String>>>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    #[serde(rename = "DeviceIDs")]
    ids: Option<Map<i64, Option<Vec<String>>>>,
    /// Base64.
    #[serde(rename = "AllocResp")]
    response: Option<String>,
}

const NIL: &str = "<nil>";

fn strings(ids: Option<&Vec<String>>) -> String {
    ids.map_or_else(|| NIL.to_owned(), list)
}

impl Data {
    /// The text for the checksum.
    fn text(&self) -> String {
        let entries = self.pod_device_entries.as_ref();
        let entries =
            entries.map_or_else(|| NIL.to_owned(), |all| list(all.iter().map(Entry::text)));
        let registered = self.registered_devices.as_ref().map_or_else(
            || NIL.to_owned(),
            |all| map(all.iter().map(|(name, ids)| (name, strings(ids.as_ref())))),
        );
        format!(
            "(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} \
             RegisteredDevices:(map[string][]string){registered}}}"
        )
    }
}

impl Entry {
    fn text(&self) -> String {
        let ids = self.ids.as_ref().map_or_else(
            || NIL.to_owned(),
            |all| map(all.iter().map(|(node, ids)| (node, strings(ids.as_ref())))),
        );
        let bytes = self.response.as_ref().map(|text| STANDARD.decode(text).unwrap_or_default());
        let bytes = bytes.map_or_else(|| NIL.to_owned(), list);
        let Self { pod, container, resource, .. } = self;
        format!(
            "{{PodUID:(string){pod} ContainerName:(string){container} ResourceName:(string){resource} \
             DeviceIDs:(checkpoint.DevicesPerNUMA){ids} AllocResp:([]uint8){bytes}}}"
        )
    }
}

/// Writes the checkpoint.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn write(
    file: &Path,
    pods: &Map<String, OfContainers>,
    registered: &Map<String, Ids>,
) -> io::Result<()> {
    let mut entries = Vec::new();
    for (pod, containers) in pods {
        for (container, resources) in containers {
            for (resource, assigned) in resources {
                entries.push(Entry {
                    pod: pod.clone(),
                    container: container.clone(),
                    resource: resource.clone(),
                    ids: Some(
                        assigned.ids.iter().map(|(node, ids)| (*node, Some(ids.clone()))).collect(),
                    ),
                    response: Some(STANDARD.encode(wire::encode(&assigned.usage))),
                });
            }
        }
    }
    let registered =
        registered.iter().map(|(name, ids)| (name.clone(), Some(ids.iter().cloned().collect())));
    let data = Data {
        pod_device_entries: (!entries.is_empty()).then_some(entries),
        registered_devices: Some(registered.collect()),
    };
    let checksum = checksum(&data.text());
    state_file::replace(file, &serde_json::to_vec(&File { data, checksum })?)
}

/// The reason that a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckpointError {
    /// The file cannot be read.
    #[error("failed to read the file")]
    Read(#[source] io::Error),
    /// The file is malformed.
    #[error("malformed JSON")]
    Malformed(#[source] serde_json::Error),
    /// The checksum does not match.
    #[error("checkpoint is corrupted: checksum {expected} in the file, computed {actual}")]
    Corrupted {
        /// The checksum in the file.
        expected: u64,
        /// The checksum of the content.
        actual: u64,
    },
}

/// Reads the checkpoint; `None` if there is none.
///
/// # Errors
/// If the checkpoint cannot be used.
pub(super) fn read(file: &Path) -> Result<Option<Checkpoint>, CheckpointError> {
    let bytes = match std::fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CheckpointError::Read(error)),
    };
    let File { data, checksum: expected } =
        serde_json::from_slice(&bytes).map_err(CheckpointError::Malformed)?;
    let actual = checksum(&data.text());
    if actual != expected {
        return Err(CheckpointError::Corrupted { expected, actual });
    }
    let mut pods: Map<String, OfContainers> = Map::new();
    for entry in data.pod_device_entries.into_iter().flatten() {
        let bytes = STANDARD.decode(entry.response.unwrap_or_default()).ok();
        let Some(usage) = bytes.and_then(|bytes| wire::decode(&bytes)) else {
            tracing::warn!(
                pod = entry.pod,
                container = entry.container,
                resource = entry.resource,
                "ignored a malformed entry of the device checkpoint"
            );
            continue;
        };
        let ids = entry.ids.into_iter().flatten();
        let ids = ids.map(|(node, ids)| (node, ids.unwrap_or_default())).collect();
        let of_pod = pods.entry(entry.pod).or_default();
        let of_container = of_pod.entry(entry.container).or_default();
        of_container.insert(entry.resource, AssignedDevices { ids, usage });
    }
    let registered = data.registered_devices.into_iter().flatten().map(|(name, _)| name).collect();
    Ok(Some(Checkpoint { pods, registered }))
}

#[cfg(test)]
mod tests;
