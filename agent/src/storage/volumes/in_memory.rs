//! Volumes in memory: Secrets, projected volumes, and fields of the pod; and emptyDirs with medium Memory if the runtime does not
//! support them (crib's runtime mounts them itself).
//!
//! A kubelet mounts a tmpfs for each (Kubernetes 1.36, pkg/volume/{secret,projected,downwardapi}, wrappedVolumeSpec). This agent
//! makes no mounts: its caller provides one directory on tmpfs for all of them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use api::pod::Pod;
use k8s_openapi::api::core::v1::Volume;

use crate::config::{Config, MakeInMemory};

/// The directory of an agent with this root directory, or a link to it.
#[must_use]
pub fn directory(root: &Path) -> PathBuf {
    root.join("memory")
}

/// The directory, which is created when the first volume needs it.
#[derive(Debug)]
pub(crate) struct InMemory {
    at: PathBuf,
    make: Option<MakeInMemory>,
    made: OnceLock<Option<PathBuf>>,
}

impl InMemory {
    /// The directory of a node, which is not created yet.
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            at: directory(&config.root_dir),
            make: config.volumes_in_memory,
            made: OnceLock::new(),
        }
    }

    /// The directory in memory for the volumes of a pod with this directory; `None`: they are on the disk. After a failure, which
    /// is logged, creation is not retried.
    pub(super) fn of_pod(&self, pod: &Path) -> Option<PathBuf> {
        let made = self.made.get_or_init(|| {
            let made = self.make?(&self.at);
            made.inspect_err(|problem| {
                tracing::warn!(%problem, "no tmpfs directory is available; volumes with secrets are written to the disk");
            })
            .ok()
        });
        Some(made.as_ref()?.join(pod.file_name()?))
    }

    /// The path in memory for the volumes of a pod with this directory. Nothing is created.
    pub(super) fn path(&self, pod: &Path) -> Option<PathBuf> {
        Some(self.at.join(pod.file_name()?))
    }

    /// Removes the volumes in memory of a pod with this directory, including those of an earlier agent.
    pub(super) fn remove(&self, pod: &Path) -> Result<(), file_tree::RemoveError> {
        self.path(pod).map_or(Ok(()), |path| file_tree::remove(&path))
    }
}

/// Whether a container of the pod mounts a volume in memory.
#[must_use]
pub fn has_volumes(pod: &Pod) -> bool {
    pod.mounted_volumes().any(|volume| belongs(pod, volume))
}

/// Whether a pod's volume belongs in memory. All such volumes show objects or fields.
pub(super) fn belongs(pod: &Pod, volume: &Volume) -> bool {
    let is_secret =
        volume.secret.is_some() || volume.projected.is_some() || volume.downward_api.is_some();
    is_secret && can_mount(pod)
}

/// Whether containers of the pod can mount volumes in memory. With a user namespace, they cannot on every kernel.
pub(super) fn can_mount(pod: &Pod) -> bool {
    pod.spec().host_users != Some(false) || kernel_maps_ids_of_tmpfs()
}

/// Whether a tmpfs supports id-mapped mounts: Linux 6.3.
fn kernel_maps_ids_of_tmpfs() -> bool {
    is_kernel_since((6, 3))
}

/// Whether the file systems of volumes in memory are kept out of swap: since Linux 6.4, if root of the machine mounts them
/// (Kubernetes 1.36, pkg/kubelet/util/swap/swap_util.go IsTmpfsNoswapOptionSupported).
pub(crate) fn are_kept_out_of_swap() -> bool {
    is_kernel_since((6, 4)) && file_tree::private::is_root_of_machine()
}

fn is_kernel_since(version: (u32, u32)) -> bool {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .is_ok_and(|release| is_since(&release, version))
}

fn is_since(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return false;
    };
    (major, minor) >= version
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("6.3.0", true)]
    #[case("6.18.44-fc", true)]
    #[case("7.0-rc1", true)]
    #[case("6.2.16", false)]
    #[case("5.15.0-91-generic", false)]
    #[case("", false)]
    fn tmpfs_maps_ids_since_linux_6_3(#[case] release: &str, #[case] expected: bool) {
        assert_eq!(is_since(release, (6, 3)), expected);
    }
}
