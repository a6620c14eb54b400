//! The contents of a checkpoint: a tar archive of files, named as checkpointctl, containerd and CRI-O name them.
//!
//! ```text
//! checkpoint/       criu's images of the processes
//! config.dump       which container it was (checkpointctl reads it)
//! spec.dump         how it was run, as an OCI runtime specification
//! crib.dump         what the runtime needs to create the container again
//! devshm-checkpoint.tar   the pod's /dev/shm, named as in Podman
//! rootfs-diff.tar   the changes to its image, as an OCI layer
//! dump.log, stats-dump
//! ```
//!
//! The checkpoint of a pod has `pod.options`, `pod.dump` and a directory with these files for each container.

mod archive;
mod diff;

use std::{collections::BTreeMap, io, path::Path};

use cri::v1::{ContainerConfig, PodSandboxConfig};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) use archive::{Archive, CheckpointError, Writer};
pub(crate) use diff::{shared_memory, write as write_diff, write_open as write_open_diff};
use keeper::contract::plan::UserIds;

use crate::container::Container;

pub(crate) const IMAGES: &str = "checkpoint";
pub(crate) const CONFIG: &str = "config.dump";
pub(crate) const SPEC: &str = "spec.dump";
pub(crate) const CRIB: &str = "crib.dump";
pub(crate) const DIFF: &str = "rootfs-diff.tar";
pub(crate) const SHM: &str = "devshm-checkpoint.tar";
pub(crate) const LOG: &str = "dump.log";
pub(crate) const POD_OPTIONS: &str = "pod.options";
pub(crate) const POD: &str = "pod.dump";

/// The version of [`CRIB`]'s content.
const VERSION: u32 = 1;

/// The data from which the runtime creates a container again: [`CRIB`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CheckpointRecord {
    version: u32,
    /// The client's configuration.
    pub(crate) config: ContainerConfig,
    /// The image's ID.
    pub(crate) image: String,
    /// The user of its first process.
    pub(crate) user: UserIds,
    /// The mount points of the external mounts, which criu does not dump, in the order in which they were passed to
    /// criu.
    pub(crate) mounts: Vec<String>,
    /// The standard input, output and error of its first process: `pipe:[NUMBER]` or a path.
    pub(crate) streams: Vec<String>,
}

impl CheckpointRecord {
    pub(crate) fn of(container: &Container, mounts: Vec<String>, streams: Vec<String>) -> Self {
        Self {
            version: VERSION,
            config: container.config.clone(),
            image: container.image_id.clone(),
            user: container.user.clone().unwrap_or_default(),
            mounts,
            streams,
        }
    }

    /// The container's name in its configuration.
    pub(crate) fn name(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |m| &m.name)
    }
}

/// [`POD_OPTIONS`], as CRI-O writes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PodOptions {
    version: u32,
    /// The directories of the containers, by their names.
    pub(crate) containers: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl PodOptions {
    pub(crate) fn new(containers: BTreeMap<String, String>) -> Self {
        Self { version: VERSION, containers, annotations: BTreeMap::new() }
    }
}

/// Writes [`CONFIG`], [`SPEC`] and [`CRIB`] into `directory`.
pub(crate) fn describe(
    directory: &Path,
    container: &Container,
    sandbox: &PodSandboxConfig,
    record: &CheckpointRecord,
) -> io::Result<()> {
    let write = |name: &str, value: &Value| {
        std::fs::write(directory.join(name), serde_json::to_vec_pretty(value)?)
    };
    write(CONFIG, &config(container))?;
    write(SPEC, &spec(container, sandbox))?;
    write(CRIB, &serde_json::to_value(record)?)
}

/// The fields that checkpointctl shows.
fn config(container: &Container) -> Value {
    let image = container.config.image.as_ref();
    let named = image.map_or("", |i| {
        if i.user_specified_image.is_empty() { &i.image } else { &i.user_specified_image }
    });
    json!({
        "id": container.id.as_str(),
        "name": container.config.metadata.as_ref().map_or("", |m| &m.name),
        "rootfsImage": container.image_id,
        "rootfsImageRef": container.image_id,
        "rootfsImageName": named,
        "runtime": "crib",
        "createdTime": container.created_at.to_string(),
        "checkpointedTime": Timestamp::now().to_string(),
        "restored": false,
    })
}

/// The OCI runtime specification of a container, as far as it applies.
fn spec(container: &Container, sandbox: &PodSandboxConfig) -> Value {
    let config = &container.config;
    let default = cri::v1::LinuxContainerSecurityContext::default();
    let context =
        config.linux.as_ref().and_then(|l| l.security_context.as_ref()).unwrap_or(&default);
    let args: Vec<&String> = if config.command.is_empty() {
        let args = if config.args.is_empty() { &container.image.cmd } else { &config.args };
        container.image.entrypoint.iter().chain(args).collect()
    } else {
        config.command.iter().chain(&config.args).collect()
    };
    let env: Vec<String> = container
        .image
        .env
        .iter()
        .cloned()
        .chain(
            config.envs.iter().map(|e| format!("{}={}", e.key, String::from_utf8_lossy(&e.value))),
        )
        .collect();
    let mounts: Vec<Value> = config
        .mounts
        .iter()
        .map(|m| {
            let options = ["rbind", if m.readonly { "ro" } else { "rw" }];
            json!({ "destination": m.container_path, "type": "bind", "source": m.host_path, "options": options })
        })
        .collect();
    let user = container.user.clone().unwrap_or_default();
    let metadata = sandbox.metadata.clone().unwrap_or_default();
    let mut annotations: BTreeMap<&str, &str> =
        config.annotations.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    // checkpointctl reads the names of pod and container from containerd's annotations.
    annotations.extend([
        ("io.kubernetes.cri.container-type", "container"),
        ("io.kubernetes.cri.container-name", config.metadata.as_ref().map_or("", |m| &m.name)),
        ("io.kubernetes.cri.sandbox-id", container.sandbox.as_str()),
        ("io.kubernetes.cri.sandbox-name", &metadata.name),
        ("io.kubernetes.cri.sandbox-namespace", &metadata.namespace),
        ("io.kubernetes.cri.sandbox-uid", &metadata.uid),
        ("io.kubernetes.cri.image-name", &container.image_id),
    ]);
    json!({
        "ociVersion": "1.2.0",
        "process": {
            "terminal": config.tty,
            "user": { "uid": user.uid, "gid": user.gid, "additionalGids": user.additional_gids },
            "args": args,
            "env": env,
            "cwd": config.working_dir,
            "noNewPrivileges": context.no_new_privs,
        },
        "root": { "path": "rootfs", "readonly": context.readonly_rootfs },
        "hostname": sandbox.hostname,
        "mounts": mounts,
        "annotations": annotations,
    })
}
