//! Decides how the keeper launches a container, from the client's configuration. It carries nothing out.

pub(crate) mod apparmor;
mod behave;
mod capability;
pub(crate) mod devices;
mod limits;
mod memory;
pub(crate) mod mounts;
mod paths;
mod plan;
mod ports;
mod qos_class;
pub(crate) mod seccomp;
mod security;
pub(crate) mod selinux;
mod signal;
mod strings;
mod sub_paths;
mod sysctl;
mod userns;

use image::Script;
use serde::{Deserialize, Serialize};

pub(crate) use behave::{Behaviour, NoOom, behaviour};
pub(crate) use capability::forbid_device_nodes;
pub(crate) use limits::{limits, pod_limits, updated};
pub(crate) use plan::{ContainerInputs, container, exec, pod, stop_signal, user_namespace};
pub(crate) use ports::host_ports;
pub(crate) use qos_class::{class_shares, qos_class};
pub(crate) use security::default_context;
pub(crate) use signal::signal_of;
pub(crate) use sysctl::Allowed;

/// Why a client's configuration is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Invalid(pub(crate) String);

fn invalid<T>(message: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid(message.into()))
}

/// The container defaults of an image.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ImageDefaults {
    pub(crate) env: Vec<String>,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) cmd: Vec<String>,
    pub(crate) user: String,
    pub(crate) working_dir: String,
    pub(crate) stop_signal: Option<String>,
    /// Volumes: directories that stay writable, with the image's contents.
    #[serde(default)]
    pub(crate) volumes: Vec<String>,
    /// The behaviour script of the containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) script: Option<Script>,
}
