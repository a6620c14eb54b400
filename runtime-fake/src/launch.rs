//! Decides how the keeper launches a container, from the client's configuration. It decides only.

pub(crate) mod apparmor;
mod behave;
mod capability;
pub(crate) mod devices;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod image_defaults;
mod invalid;
mod limits;
mod log;
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

pub(crate) use behave::{Behaviour, NoOom, behaviour};
pub(crate) use image_defaults::ImageDefaults;
pub(crate) use invalid::Invalid;
pub(crate) use limits::{limits, pod_limits, updated};
pub(crate) use plan::{ContainerInputs, container, exec, pod, stop_signal, user_namespace};
pub(crate) use ports::host_ports;
pub(crate) use qos_class::{class_shares, qos_class};
pub(crate) use signal::signal_of;
pub(crate) use sysctl::Allowed;
