//! A container's view of its cgroups: below `/sys/fs/cgroup` as on the host, each hierarchy from the container's own
//! cgroup downwards, which is the root of its cgroup namespace.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use file_tree::mountinfo::mounts;
use rustix::mount::MountAttrFlags;

use crate::{
    cgroup::CgroupPath,
    failure::{Context as _, Step},
    mount::{attach, clone_tree, new_mount},
    secure_join::Root,
    sys,
};

/// Where every distribution mounts them.
const AT: &str = "/sys/fs/cgroup";
/// The v1 controllers (cgroups(7)): other words among a mount's options are flags.
const CONTROLLERS: [&str; 14] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
];

/// A hierarchy of the host.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// The path below [`AT`]; empty on a host with v2 only.
    below: PathBuf,
    /// `cgroup` or `cgroup2`.
    kind: &'static str,
    /// The options for mounting it again.
    options: Vec<(String, String)>,
}

/// Mounts the hierarchies; `own` is the container's cgroup. It skips those that the kernel does not let us mount.
pub(crate) fn mount(root: &Root, own: Option<&CgroupPath>, writable: bool) -> Step {
    let what = "show the container its control groups";
    let table = std::fs::read_to_string("/proc/self/mountinfo").context(what)?;
    let hierarchies = hierarchies(&table);
    let Some(target) = root.existing(Path::new(AT)).context(what)? else {
        return Ok(());
    };
    let mut flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, !writable);
    let again = |hierarchy: &Hierarchy| {
        if let Some(tree) = own.and_then(|own| clone_own(own, hierarchy, flags)) {
            return Some(tree);
        }
        let options: Vec<_> = hierarchy
            .options
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        new_mount(hierarchy.kind, &options, flags).ok()
    };
    if let [only] = hierarchies.as_slice()
        && only.below.as_os_str().is_empty()
    {
        return match again(only) {
            Some(tree) => attach(tree.as_fd(), target.as_fd()).context(what),
            None => Ok(()),
        };
    }
    let trees: Vec<_> = hierarchies
        .iter()
        .filter_map(|h| Some((h, again(h)?)))
        .collect();
    // Hide the host's cgroups, which `/sys` shows in the host's network namespace.
    let all = new_mount(
        "tmpfs",
        &[("mode", "0755"), ("size", "64k")],
        flags - MountAttrFlags::MOUNT_ATTR_RDONLY,
    )
    .context(what)?;
    attach(all.as_fd(), target.as_fd()).context(what)?;
    let all = Root::new(all);
    for (hierarchy, tree) in trees {
        let at = all.directory(&Path::new("/").join(&hierarchy.below))?;
        attach(tree.as_fd(), at.as_fd()).context(what)?;
        let name = hierarchy.below.to_string_lossy();
        // cpu → cpu,cpuacct: programs look for either.
        for controller in name
            .split(',')
            .filter(|c| name.contains(',') && CONTROLLERS.contains(c))
        {
            rustix::fs::symlinkat(&*hierarchy.below, all.fd(), controller).context(what)?;
        }
    }
    if writable {
        return Ok(());
    }
    sys::set_read_only(all.fd(), false).context(what)
}

/// The container's own cgroup in a hierarchy, cloned from the host's mount, if there is one. A new mount would show the
/// same, but for a new v1 mount the kernel visits every cgroup of the host.
fn clone_own(own: &CgroupPath, hierarchy: &Hierarchy, flags: MountAttrFlags) -> Option<OwnedFd> {
    let host = Path::new(AT).join(&hierarchy.below);
    let group = own.tree.branches.iter().map(|branch| own.directory(branch));
    let group = group.into_iter().find(|group| {
        group.starts_with(&host) && (host != Path::new(AT) || hierarchy.kind == "cgroup2")
    })?;
    let tree = clone_tree(&group, false).ok()?;
    sys::set_propagation(tree.as_fd(), libc::MS_PRIVATE).ok()?;
    sys::add_attributes(tree.as_fd(), u64::from(flags.bits())).ok()?;
    Some(tree)
}

/// The hierarchies in a mount table (proc_pid_mountinfo(5)); of two at one mount point the later one is on top.
fn hierarchies(table: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for mount in mounts(table) {
        let Ok(below) = Path::new(&mount.at).strip_prefix(AT) else {
            continue;
        };
        let kind = match mount.kind {
            "cgroup" => "cgroup",
            "cgroup2" => "cgroup2",
            _ => continue,
        };
        found.retain(|other| other.below != below);
        found.push(Hierarchy {
            below: below.to_owned(),
            kind,
            options: if kind == "cgroup" {
                options_of(mount.super_options)
            } else {
                Vec::new()
            },
        });
    }
    found
}

fn options_of(text: &str) -> Vec<(String, String)> {
    let mut options = Vec::new();
    for word in text.split(',') {
        if let Some(name) = word.strip_prefix("name=") {
            options.push(("none".to_owned(), String::new()));
            options.push(("name".to_owned(), name.to_owned()));
        } else if CONTROLLERS.contains(&word) {
            options.push((word.to_owned(), String::new()));
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::version_two("25 23 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate", &[("", "cgroup2", "")])]
    #[case::hybrid(
        "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs rw,mode=755
         32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
         33 31 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
         34 31 0:31 / /sys/fs/cgroup/unified rw shared:9 master:1 - cgroup2 cgroup2 rw",
        &[("cpu,cpuacct", "cgroup", "cpu= cpuacct="), ("systemd", "cgroup", "none= name=systemd"), ("unified", "cgroup2", "")]
    )]
    #[case::elsewhere("32 31 0:29 / /mnt/cpu rw - cgroup cgroup rw,cpu", &[])]
    #[case::one_over_another("1 0 0:1 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n2 1 0:1 /a /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", &[("cpu", "cgroup", "cpu=")])]
    #[case::nothing("", &[])]
    fn cgroup_mounts_of_host_are_found(
        #[case] table: &str,
        #[case] expected: &[(&str, &str, &str)],
    ) {
        let table: Vec<_> = table.lines().map(str::trim).collect();
        let found = hierarchies(&table.join("\n"));
        let found: Vec<_> = found
            .iter()
            .map(|h| {
                let options: Vec<_> = h.options.iter().map(|(n, v)| format!("{n}={v}")).collect();
                (h.below.to_string_lossy(), h.kind, options.join(" "))
            })
            .collect();
        let found: Vec<_> = found
            .iter()
            .map(|(b, k, o)| (&**b, *k, o.as_str()))
            .collect();
        assert_eq!(found, expected);
    }
}
