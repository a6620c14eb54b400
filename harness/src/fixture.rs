//! Minimal configurations of pods and containers, for tests to change.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use cri::v1;

/// The image of test containers: crib's built-in image of the host's root filesystem.
#[must_use]
pub fn image() -> String {
    "crib.local/host".to_owned()
}

/// A unique word, for names, labels and environment variables that identify processes from outside.
#[must_use]
pub fn unique(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{count}", std::process::id())
}

/// The directory of temporary files: `TMPDIR`, or `/tmp` if that is unset or empty, like mktemp(1).
#[must_use]
pub fn temp_dir() -> PathBuf {
    let directory = std::env::temp_dir();
    match directory.as_os_str().is_empty() {
        true => PathBuf::from("/tmp"),
        false => directory,
    }
}

/// A pod sandbox like the kubelet's (Kubernetes 1.36): with its own network and IPC namespaces, and a PID namespace for each
/// container.
#[must_use]
pub fn sandbox(name: &str) -> v1::PodSandboxConfig {
    let security_context = v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces()),
        ..Default::default()
    };
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.to_owned(),
            uid: unique("uid"),
            namespace: "test".to_owned(),
            attempt: 0,
        }),
        hostname: name.to_owned(),
        linux: Some(v1::LinuxPodSandboxConfig {
            security_context: Some(security_context),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The namespaces of [`sandbox`] and [`container`].
#[must_use]
pub fn namespaces() -> v1::NamespaceOption {
    v1::NamespaceOption {
        network: v1::NamespaceMode::Pod.into(),
        ipc: v1::NamespaceMode::Pod.into(),
        pid: v1::NamespaceMode::Container.into(),
        ..Default::default()
    }
}

/// A container that runs `command` and logs to `NAME.log` in the pod's log directory.
#[must_use]
pub fn container<S: Into<String>>(
    name: &str,
    command: impl IntoIterator<Item = S>,
) -> v1::ContainerConfig {
    let security_context = v1::LinuxContainerSecurityContext {
        namespace_options: Some(namespaces()),
        ..Default::default()
    };
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: image(), ..Default::default() }),
        command: command.into_iter().map(Into::into).collect(),
        log_path: format!("{name}.log"),
        linux: Some(v1::LinuxContainerConfig {
            security_context: Some(security_context),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A [`container`] that runs a shell script.
#[must_use]
pub fn script(name: &str, text: &str) -> v1::ContainerConfig {
    container(name, ["/bin/sh", "-c", text])
}

/// A [`container`] that runs until it is stopped, and exits immediately on SIGTERM.
#[must_use]
pub fn forever(name: &str) -> v1::ContainerConfig {
    // The first process of a PID namespace ignores signals without a handler.
    script(name, "trap 'exit 143' TERM; while :; do sleep 1000 & wait $!; done")
}

/// The security context of a container, to change it.
pub fn security(config: &mut v1::ContainerConfig) -> &mut v1::LinuxContainerSecurityContext {
    config.linux.get_or_insert_default().security_context.get_or_insert_default()
}

/// The namespace options of a pod, to change them.
pub fn pod_namespaces(config: &mut v1::PodSandboxConfig) -> &mut v1::NamespaceOption {
    config
        .linux
        .get_or_insert_default()
        .security_context
        .get_or_insert_default()
        .namespace_options
        .get_or_insert_default()
}
