//! Helpers shared by several test modules.

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cri::v1::Mount;
use harness::{Pod, Runtime, eventually, witness::Witness};
use tonic::{Code, Status};

/// The code of the expected error, which must have a message.
#[track_caller]
pub(crate) fn code<T: Debug>(result: Result<T, Status>) -> Code {
    let error = result.unwrap_err();
    assert!(!error.message().is_empty(), "{error:?} says nothing");
    error.code()
}

/// What the host and the runtime's isolation allow.
#[derive(Debug)]
pub(crate) struct Means {
    isolation: String,
    cgroups: String,
}

impl Means {
    pub(crate) async fn of(runtime: &Runtime) -> Self {
        let mut info = runtime.client.status().await.unwrap().info;
        Self {
            isolation: info.remove("isolation").unwrap_or_default(),
            cgroups: info.remove("cgroups").unwrap_or_default(),
        }
    }

    /// The reason why limits are not applied, if any.
    pub(crate) fn no_limits(&self) -> Option<&str> {
        let applied = !self.cgroups.contains("not applied") && !self.cgroups.is_empty();
        (!applied).then_some(self.cgroups.as_str())
    }

    /// The reason why pods have no namespaces, if any.
    pub(crate) fn no_namespaces(&self) -> Option<&str> {
        (self.isolation == "process").then_some("isolation process has no namespaces")
    }

    /// The reason why containers can only run as root, if any.
    pub(crate) fn no_users(&self) -> Option<&str> {
        self.no_namespaces().or_else(|| {
            self.isolation
                .contains("single id")
                .then_some("the user has no subordinate ids")
        })
    }

    /// The reason why images are unpacked without their device nodes, if any.
    pub(crate) fn no_device_nodes(&self) -> Option<&str> {
        if self.isolation != "root" {
            return Some("needs root for mknod");
        }
        let unrestricted = "access to devices is not restricted";
        self.cgroups
            .contains(unrestricted)
            .then_some(self.cgroups.as_str())
    }

    /// The reason why the test cannot mount on the host, if any.
    pub(crate) fn no_host_mounts(&self) -> Option<&'static str> {
        (self.isolation != "root").then_some("needs root to mount on the host")
    }

    /// The reason why pods have no address, if any.
    pub(crate) fn no_network(&self) -> Option<&str> {
        self.no_namespaces()
    }
}

/// Skips the test when there is a reason: `skip_if!(NAME, OPTION_OF_REASON)`.
macro_rules! skip_if {
    ($name:expr, $reason:expr) => {
        if let Some(reason) = $reason {
            harness::skip!($name, "{reason}");
        }
    };
}
pub(crate) use skip_if;

/// Starts a container that exits 143 on SIGTERM, and waits until its shell has a handler: before that, the first process of
/// a PID namespace ignores the signal.
pub(crate) async fn graceful_container(pod: &Pod, name: &str) -> String {
    let script = "trap 'exit 143' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let id = pod.start(pod.script(name, script)).await.unwrap();
    pod.logged(&id, "ready").await.unwrap();
    id
}

/// How long creating or removing a large tree may take on a busy host.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// Waits until the trash of a state directory is empty.
pub(crate) async fn nothing_in_trash(state_dir: &Path) {
    eventually(LONG, "the trash to be empty", || async {
        let left: Vec<_> = fs::read_dir(state_dir.join("trash"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

/// `text` without its trailing newlines.
pub(crate) fn trimmed(text: &str) -> &str {
    text.trim_end_matches('\n')
}

/// A bind mount of a host path.
pub(crate) fn of(host_path: &Path, container_path: &str) -> Mount {
    Mount {
        host_path: host_path.display().to_string(),
        container_path: container_path.to_owned(),
        ..Default::default()
    }
}

/// Creates a directory for the test.
pub(crate) fn directory(runtime: &Runtime, name: &str) -> PathBuf {
    let path = runtime.root().join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

/// Whether a process is the daemon, or one that lives as long: the zygote, and what connects the pods of a rootless runtime.
pub(crate) fn is_daemon(runtime: &Runtime, process: Witness) -> bool {
    let daemon = runtime.pid();
    Some(process.pid) == daemon
        || Some(process.parent()) == daemon && process.text("comm").trim() == "crib-zygote"
        || daemon.is_some() && is_egress(process)
}

/// Whether a process connects the pods of a rootless runtime, for which the program has one process or two.
fn is_egress(process: Witness) -> bool {
    let parent = |process: Witness| Witness {
        pid: process.parent(),
    };
    let ancestors = std::iter::successors(Some(process), |process| Some(parent(*process)));
    ancestors
        .take(3)
        .any(|process| process.text("comm").trim() == "crib-egress")
}
