//! ◆ The observed state of a pod: the runtime's data at one time.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use compact::Map;
use jiff::Timestamp;

macro_rules! runtime_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Creates an id from the runtime's string.
            pub fn new(id: impl Into<Arc<str>>) -> Self {
                Self(id.into())
            }

            /// The runtime's string.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

runtime_id!(
    /// The runtime's id of a sandbox.
    SandboxId
);
runtime_id!(
    /// The runtime's id of a container.
    ContainerId
);

/// Everything the runtime reports for one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The time of the query; everything below is at least as new.
    pub at: Timestamp,
    /// The runtime's name (`containerd`, `crib`), the scheme of container ids in statuses.
    pub runtime_name: String,
    /// Newest first.
    pub sandboxes: Vec<ObservedSandbox>,
    /// Newest first by creation; containers with the same name are successive attempts.
    pub containers: Vec<ObservedContainer>,
    /// Latest probe results by container; containers never probed are absent.
    pub probes: Map<ContainerId, ProbeResults>,
}

impl Observed {
    /// An empty observation at `at`.
    pub fn nothing(at: Timestamp) -> Self {
        Self { at, ..Self::default() }
    }

    /// Running containers with their names, newest first.
    pub fn running(&self) -> Vec<(ContainerId, String)> {
        let running = self.containers.iter().filter(|container| container.state.is_running());
        running.map(|container| (container.id.clone(), container.name.clone())).collect()
    }

    /// The newest attempt of the container with this name.
    pub fn container(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// Whether the runtime has neither containers nor sandboxes of the pod.
    pub fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.sandboxes.is_empty()
    }

    /// Whether a container is running or a sandbox is ready.
    pub fn anything_runs(&self) -> bool {
        self.containers.iter().any(|container| container.state.is_running())
            || self.sandboxes.iter().any(|sandbox| sandbox.ready)
    }
}

/// One sandbox of the pod.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedSandbox {
    /// Its id.
    pub id: SandboxId,
    /// SANDBOX_READY or SANDBOX_NOTREADY.
    pub ready: bool,
    /// Attempt number from its metadata, from 0.
    pub attempt: u32,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its network namespace.
    pub network: NetworkMode,
    /// Addresses, the primary one first. `None`: the runtime reports no network; an empty primary address is kept as `""`.
    pub ips: Option<Vec<String>>,
}

impl ObservedSandbox {
    /// The reported addresses; none if one of them is no address.
    ///
    /// Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_sandbox.go determinePodSandboxIPs.
    pub fn addresses(&self) -> &[String] {
        let reported = self.ips.as_deref().unwrap_or_default();
        let addresses = match reported {
            [primary, additional @ ..] if primary.is_empty() => additional,
            addresses => addresses,
        };
        let are_valid = addresses.iter().all(|ip| ip.parse::<IpAddr>().is_ok());
        if are_valid { addresses } else { &[] }
    }
}

/// The network namespace of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkMode {
    /// Its own.
    Pod,
    /// The node's (`hostNetwork`).
    Node,
}

/// One attempt of a container.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedContainer {
    /// Its id.
    pub id: ContainerId,
    /// The name in the pod spec (label `io.kubernetes.container.name`).
    pub name: String,
    /// Its sandbox.
    pub sandbox_id: SandboxId,
    /// Its state, with the data of that state.
    pub state: ContainerState,
    /// When it was created.
    pub created_at: Timestamp,
    /// Annotation `io.kubernetes.container.restartCount`; the attempt number if the annotation is absent.
    pub restart_count: u32,
    /// The image name in the runtime's status.
    pub image: String,
    /// The image reference (digest), for `imageID`.
    pub image_ref: String,
    /// Annotation `io.kubernetes.container.hash`, raw; empty if absent. Compare with [`crate::labels::container_hash`].
    pub hash: String,
    /// The path of its log.
    pub log_path: Option<PathBuf>,
    /// The user of its first process, if the runtime reports it.
    pub user: Option<ContainerUser>,
    /// Mounts, for finding the termination message file: container path and host path.
    pub mounts: Vec<(PathBuf, PathBuf)>,
    /// The limits in the kernel, if the runtime reports them.
    pub resources: Option<ContainerResources>,
    /// The signal that stops it, by Kubernetes' name (`SIGRTMIN+1`), if the runtime reports it.
    pub stop_signal: Option<Box<str>>,
}

/// The limits of a container in the kernel; 0 if the runtime reports none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerResources {
    /// `cpu.shares`.
    pub cpu_shares: i64,
    /// CPU time for each period, in microseconds; -1: unlimited.
    pub cpu_quota: i64,
    /// The length of such a period, in microseconds.
    pub cpu_period: i64,
    /// Memory in bytes.
    pub memory_limit: i64,
}

/// The memory that a pod uses, in bytes; `None`: unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The pod with all of its containers.
    pub pod: Option<u64>,
    /// The memory of each container, by its name in the spec.
    pub containers: Map<String, Option<u64>>,
}

/// State of a container.
#[derive(Clone, Debug, PartialEq)]
pub enum ContainerState {
    /// Created, not started.
    Created,
    /// Its process is running.
    Running {
        /// When it was started.
        started_at: Timestamp,
    },
    /// Its process exited, or failed to start.
    Exited(Exit),
    /// The runtime reports the state as unknown.
    Unknown,
}

impl ContainerState {
    /// Whether its process is running.
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    /// Its termination, if it exited.
    pub fn exit(&self) -> Option<&Exit> {
        match self {
            Self::Exited(exit) => Some(exit),
            Self::Created | Self::Running { .. } | Self::Unknown => None,
        }
    }
}

/// A container's termination.
#[derive(Clone, Debug, PartialEq)]
pub struct Exit {
    /// Exit code; 128 + signal number for a signal.
    pub code: i32,
    /// The runtime's reason (`Completed`, `Error`, `OOMKilled`).
    pub reason: String,
    /// The runtime's message, or the termination message once it is read.
    pub message: String,
    /// When it was started; `None` if it never was.
    pub started_at: Option<Timestamp>,
    /// When it exited.
    pub finished_at: Timestamp,
}

/// The user of a container's first process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUser {
    /// User id.
    pub uid: i64,
    /// Group id.
    pub gid: i64,
    /// Supplementary group ids.
    pub supplemental_groups: Vec<i64>,
}

/// The latest results of a container's probes; `None`: nothing recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeResults {
    /// Startup probe.
    pub startup: Option<ProbeResult>,
    /// Liveness probe.
    pub liveness: Option<ProbeResult>,
    /// Readiness probe.
    pub readiness: Option<ProbeResult>,
}

/// One recorded probe result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The probe reached its success threshold.
    Success,
    /// The probe reached its failure threshold.
    Failure,
    /// Neither threshold is reached.
    Unknown,
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use crate::fixtures::sandbox;

    #[rstest]
    #[case::no_network(None, &[])]
    #[case::host_network(Some(""), &[])]
    #[case::two_families(Some("10.0.0.2,fd00::2"), &["10.0.0.2", "fd00::2"])]
    #[case::additional_only(Some(",fd00::2"), &["fd00::2"])]
    #[case::primary_is_no_address(Some("pod,fd00::2"), &[])]
    #[case::additional_is_no_address(Some("10.0.0.2,"), &[])]
    fn sandbox_has_no_addresses_if_one_is_invalid(
        #[case] reported: Option<&str>,
        #[case] expected: &[&str],
    ) {
        let mut sandbox = sandbox("s1", true);
        sandbox.ips = reported.map(|ips| ips.split(',').map(str::to_owned).collect());
        assert_eq!(sandbox.addresses(), expected);
    }
}
