//! A container's view of its cgroups: below `/sys/fs/cgroup` as on the host, each hierarchy from the container's own
//! cgroup downwards, which is the root of its cgroup namespace.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use file_tree::mountinfo::mounts;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    mount::MountAttrFlags,
};

use crate::kernel::cgroup::CgroupPath;
use crate::kernel::failure::{Context as _, Step};
use crate::kernel::mount::{attach, clone_tree, new_mount};
use crate::kernel::secure_join::Root;
use crate::kernel::sys;

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
pub(crate) struct Hierarchy {
    /// The path below [`AT`]; empty on a host with v2 only.
    below: PathBuf,
    /// `cgroup` or `cgroup2`.
    kind: &'static str,
    /// The options for mounting it again.
    options: Vec<(String, String)>,
    /// The directory of the cgroup that the reading process was in.
    current: Option<PathBuf>,
}

/// Mounts the hierarchies; `own` is the container's cgroup. It skips hierarchies that the kernel does not let us mount.
pub(crate) fn mount(root: &Root, own: Option<&CgroupPath>, writable: bool) -> Step {
    let what = "show the container its control groups";
    let hierarchies = of_host().context(what)?;
    let Some(target) = root.existing(Path::new(AT)).context(what)? else {
        return Ok(());
    };
    let mut flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, !writable);
    let again = |hierarchy: &Hierarchy| {
        let group =
            own.and_then(|own| group_in(own, hierarchy)).or_else(|| hierarchy.current.clone());
        if let Some(tree) = group.and_then(|group| clone_group(&group, flags)) {
            return Some(tree);
        }
        let options: Vec<_> =
            hierarchy.options.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        new_mount(hierarchy.kind, &options, flags).ok()
    };
    if let [only] = hierarchies
        && only.below.as_os_str().is_empty()
    {
        return match again(only) {
            Some(tree) => attach(tree.as_fd(), target.as_fd()).context(what),
            None => Ok(()),
        };
    }
    let trees: Vec<_> = hierarchies.iter().filter_map(|h| Some((h, again(h)?))).collect();
    // Hide the host's cgroups, which `/sys` shows in the host's network namespace.
    let all = new_mount(
        "tmpfs",
        &[("mode", "0755"), ("size", "64k")],
        flags - MountAttrFlags::MOUNT_ATTR_RDONLY,
    )
    .context(what)?;
    attach(all.as_fd(), target.as_fd()).context(what)?;
    for (hierarchy, tree) in trees {
        let at = new_directory(&all, &hierarchy.below).context(what)?;
        attach(tree.as_fd(), at.as_fd()).context(what)?;
        let name = hierarchy.below.to_string_lossy();
        // cpu → cpu,cpuacct: programs look for either.
        for controller in name.split(',').filter(|c| name.contains(',') && CONTROLLERS.contains(c))
        {
            rustix::fs::symlinkat(&*hierarchy.below, &all, controller).context(what)?;
        }
    }
    if writable {
        return Ok(());
    }
    sys::set_read_only(all.as_fd(), false).context(what)
}

/// Makes and opens a directory in a file system that no other process can see yet.
fn new_directory(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let mut done = PathBuf::new();
    for part in path {
        done.push(part);
        match rustix::fs::mkdirat(root, &done, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
    rustix::fs::openat(root, &done, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// The host's hierarchies. The zygote looks them up once for all keepers: the kernel takes 0.1 ms to write a table of mounts.
pub(crate) fn of_host() -> std::io::Result<&'static [Hierarchy]> {
    static HIERARCHIES: OnceLock<Vec<Hierarchy>> = OnceLock::new();
    if let Some(known) = HIERARCHIES.get() {
        return Ok(known);
    }
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let current = std::fs::read_to_string("/proc/self/cgroup")?;
    Ok(HIERARCHIES.get_or_init(|| hierarchies(&table, &current)))
}

/// The container's own cgroup in a hierarchy, if there is one.
fn group_in(own: &CgroupPath, hierarchy: &Hierarchy) -> Option<PathBuf> {
    let host = Path::new(AT).join(&hierarchy.below);
    let groups = own.tree.branches.iter().map(|branch| own.directory(branch));
    groups.into_iter().find(|group| {
        group.starts_with(&host) && (host != Path::new(AT) || hierarchy.kind == "cgroup2")
    })
}

/// A cgroup, cloned from the host's mount. A new mount of the hierarchy would show the same, but for a new v1 mount the kernel
/// visits every cgroup of the host.
fn clone_group(group: &Path, flags: MountAttrFlags) -> Option<OwnedFd> {
    let tree = clone_tree(group, false).ok()?;
    sys::add_attributes(tree.as_fd(), u64::from(flags.bits()), libc::MS_PRIVATE).ok()?;
    Some(tree)
}

/// The hierarchies in a mount table (proc_pid_mountinfo(5)); of two at one mount point the later one is on top. `current` lists
/// a process's cgroups (proc_pid_cgroup(5)).
fn hierarchies(table: &str, current: &str) -> Vec<Hierarchy> {
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
        let options = if kind == "cgroup" { options_of(mount.super_options) } else { Vec::new() };
        found.retain(|other| other.below != below);
        found.push(Hierarchy {
            below: below.to_owned(),
            kind,
            current: current_in(current, &options)
                .and_then(|group| Path::new(group).strip_prefix(&mount.root).ok())
                .map(|group| Path::new(&mount.at).join(group)),
            options,
        });
    }
    found
}

/// The process's cgroup, from its `list`, in the hierarchy with these options. Without options it is the v2 hierarchy.
fn current_in<'a>(list: &'a str, options: &[(String, String)]) -> Option<&'a str> {
    let name_of = |(name, value): &(String, String)| match name.as_str() {
        "none" => None,
        "name" => Some(format!("name={value}")),
        _ => Some(name.clone()),
    };
    let wanted: Vec<String> = options.iter().filter_map(name_of).collect();
    list.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (names, path) = (fields.next()?, fields.next()?);
        let same = match wanted.first() {
            Some(wanted) => names.split(',').any(|name| name == wanted),
            None => names.is_empty(),
        };
        same.then_some(path)
    })
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
    #[case::version_two("25 23 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate", &[("", "cgroup2", "", "/sys/fs/cgroup/user/a")])]
    #[case::hybrid(
        "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs rw,mode=755
         32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
         33 31 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
         34 31 0:31 / /sys/fs/cgroup/unified rw shared:9 master:1 - cgroup2 cgroup2 rw",
        &[
            ("cpu,cpuacct", "cgroup", "cpu= cpuacct=", "/sys/fs/cgroup/cpu,cpuacct/"),
            ("systemd", "cgroup", "none= name=systemd", "/sys/fs/cgroup/systemd/user"),
            ("unified", "cgroup2", "", "/sys/fs/cgroup/unified/user/a"),
        ]
    )]
    #[case::part_of_hierarchy("25 23 0:22 /user /sys/fs/cgroup rw - cgroup2 cgroup2 rw", &[("", "cgroup2", "", "/sys/fs/cgroup/a")])]
    #[case::another_part("25 23 0:22 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw", &[("", "cgroup2", "", "")])]
    #[case::elsewhere("32 31 0:29 / /mnt/cpu rw - cgroup cgroup rw,cpu", &[])]
    #[case::one_over_another("1 0 0:1 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n2 1 0:1 /a /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", &[("cpu", "cgroup", "cpu=", "")])]
    #[case::nothing("", &[])]
    fn cgroup_mounts_of_host_are_found(
        #[case] table: &str,
        #[case] expected: &[(&str, &str, &str, &str)],
    ) {
        let table: Vec<_> = table.lines().map(str::trim).collect();
        let current = "3:cpu,cpuacct:/\n2:name=systemd:/user\n0::/user/a\n";
        let found = hierarchies(&table.join("\n"), current);
        let found: Vec<_> = found
            .iter()
            .map(|h| {
                let options: Vec<_> = h.options.iter().map(|(n, v)| format!("{n}={v}")).collect();
                let current = h.current.as_ref().map(|path| path.display().to_string());
                (h.below.to_string_lossy(), h.kind, options.join(" "), current.unwrap_or_default())
            })
            .collect();
        let found: Vec<_> =
            found.iter().map(|(b, k, o, c)| (&**b, *k, o.as_str(), c.as_str())).collect();
        assert_eq!(found, expected);
    }
}
