//! The memory and swap of this node, and whether the kernel can limit the swap usage of cgroups.

use std::fs;
use std::path::{Path, PathBuf};

use agent::CgroupVersion;
use agent::machine::KernelMemory;

use crate::memory::kilobytes;

/// Whether the unified hierarchy is mounted at `/sys/fs/cgroup`.
pub(crate) fn is_unified(root: &Path) -> bool {
    root.join("sys/fs/cgroup/cgroup.controllers").exists()
}

/// Reads `/proc` and `/sys/fs/cgroup` below `root`, as the kubelet does (Kubernetes 1.36,
/// pkg/kubelet/kuberuntime/kuberuntime_container_linux.go, initSwapControllerAvailabilityCheck).
pub(crate) fn read(root: &Path) -> KernelMemory {
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let meminfo = text("proc/meminfo");
    let cgroups = root.join("sys/fs/cgroup");
    let (cgroup_version, swap_limit) = if is_unified(root) {
        let limit = swap_limit_v2(&text("proc/self/cgroup"));
        (CgroupVersion::V2, limit)
    } else {
        let limit = PathBuf::from("memory/memory.memsw.limit_in_bytes");
        (CgroupVersion::V1, Some(limit))
    };
    KernelMemory {
        capacity: bytes(&meminfo, "MemTotal:"),
        swap_capacity: bytes(&meminfo, "SwapTotal:"),
        cgroup_version,
        swap_controller: swap_limit.is_some_and(|file| cgroups.join(file).exists()),
    }
}

/// The swap limit file of this process's own cgroup. The root cgroup never has one.
fn swap_limit_v2(own_cgroups: &str) -> Option<PathBuf> {
    let mut lines = own_cgroups.lines();
    let own = lines.find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(own).join("memory.swap.max"))
}

/// An amount in `/proc/meminfo` in bytes; 0 if it is absent.
fn bytes(meminfo: &str, name: &str) -> i64 {
    kilobytes(meminfo, name).map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    const MEMINFO: &str = "MemTotal:       24689764 kB\nMemFree: 1 kB\nSwapTotal: 2097148 kB\n";

    #[rstest]
    #[case::v2(&["cgroup.controllers", "a/b/memory.swap.max"], CgroupVersion::V2, true)]
    #[case::v2_without_swap(&["cgroup.controllers", "memory.swap.max"], CgroupVersion::V2, false)]
    #[case::v1(&["memory/memory.memsw.limit_in_bytes"], CgroupVersion::V1, true)]
    #[case::v1_without_swap(&["a/b/memory.swap.max"], CgroupVersion::V1, false)]
    fn swap_limit_is_found(
        #[case] files: &[&str],
        #[case] version: CgroupVersion,
        #[case] controller: bool,
    ) {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/meminfo", MEMINFO);
        write("proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n");
        for file in files {
            write(&format!("sys/fs/cgroup/{file}"), "");
        }
        let expected = KernelMemory {
            capacity: 24_689_764 * 1024,
            swap_capacity: 2_097_148 * 1024,
            cgroup_version: version,
            swap_controller: controller,
        };
        assert_eq!(read(root.path()), expected);
    }

    #[test]
    fn absent_amounts_are_zero() {
        assert_eq!(bytes("", "MemTotal:"), 0);
        assert_eq!(bytes("MemTotal: many\n", "MemTotal:"), 0);
    }
}
