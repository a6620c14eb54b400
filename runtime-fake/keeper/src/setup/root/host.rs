//! The root file system of `crib.local/host`: the host's root below a writable layer in memory.
//!
//! The layer is in memory because overlayfs refuses an upper directory inside its own lower one, and the host's root
//! contains every directory.

use std::{
    fs,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use rustix::{fs::Mode, io::Errno, mount::MountAttrFlags};

use crate::contract::plan::IsolationMode;
use crate::kernel::failure::{Context as _, Step};
use crate::kernel::mount::{attach, clone_private, labelled, new_mount, open_dir};
use crate::kernel::sys;
use crate::setup::root::{idmap::IdMapper, overlay};

/// Directories that the container has its own versions of.
const OWN: [&str; 4] = ["proc", "sys", "dev", "lost+found"];
/// Directories that start empty, with their modes: the container must not see the host's files there.
const EMPTY: [(&str, u32); 3] = [("tmp", 0o1777), ("run", 0o755), ("var/tmp", 0o1777)];

/// Assembles the root at `at`, with its writable layer at `layer`. Returns the
/// mounts below `at` that it consists of, relative to it. `ids` are the container's
/// own; where the host's files cannot be mapped, they appear as the overflow user.
pub(crate) fn make(
    isolation: IsolationMode,
    layer: &Path,
    at: &Path,
    ids: Option<&IdMapper<'_>>,
    label: Option<&str>,
) -> Step<Vec<PathBuf>> {
    let what = "make the container's writable layer";
    let tmpfs = new_mount("tmpfs", &[("mode", "0755")], MountAttrFlags::empty()).context(what)?;
    attach(tmpfs.as_fd(), open_dir(layer).context(what)?.as_fd()).context(what)?;
    let target = Target { isolation, layer, at, ids, label };
    let whole = target.make_layer(layer).and_then(|()| target.overlay("/", layer, at));
    let mut parts = match whole {
        Ok(()) => target.graft_mounts()?,
        // Inside a user namespace the host's mounts are locked below its root, which overlayfs rejects as a lower
        // directory: make one overlay for each directory.
        Err(_) => target.by_directory()?,
    };
    for (name, mode) in EMPTY {
        let options = format!("{mode:o}");
        let path = at.join(name);
        let Ok(directory) = open_dir(&path) else {
            continue;
        };
        let what = format!("mount an empty /{name}");
        let empty = new_mount(
            "tmpfs",
            &labelled(&[("mode", &options)], label),
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
        );
        attach(empty.context(&what)?.as_fd(), directory.as_fd()).context(&what)?;
        ids.map_or(Ok(()), |ids| ids.own(&path)).context(&what)?;
        parts.push(PathBuf::from(name));
    }
    Ok(parts)
}

/// Where and how the host's root is mounted.
struct Target<'a> {
    isolation: IsolationMode,
    layer: &'a Path,
    at: &'a Path,
    ids: Option<&'a IdMapper<'a>>,
    label: Option<&'a str>,
}

impl Target<'_> {
    /// Makes root in the container's user namespace the owner of a path.
    fn own(&self, path: &Path) -> Result<(), Errno> {
        self.ids.map_or(Ok(()), |ids| ids.own(path))
    }

    fn make_layer(&self, layer: &Path) -> Result<(), Errno> {
        for directory in ["upper", "work"] {
            rustix::fs::mkdir(layer.join(directory), Mode::from_raw_mode(0o755))?;
        }
        self.own(&layer.join("upper"))
    }

    /// Mounts a directory of the host, mapped to the container's ids if possible, below the writable layer `layer`.
    fn overlay(&self, path: &str, layer: &Path, at: &Path) -> Result<(), Errno> {
        let path = Path::new(path);
        let mapped = self.ids.and_then(|ids| ids.path(path).ok());
        let lower = mapped.unwrap_or_else(|| path.to_owned());
        overlay::writable(self.isolation, &[lower], layer, at, self.label)
    }

    /// Adds the top directories that are other file systems, for
    /// example `/usr` or `/home`: overlays do not cross mounts.
    fn graft_mounts(&self) -> Step<Vec<PathBuf>> {
        use std::os::unix::fs::MetadataExt as _;
        let mut parts = Vec::new();
        let root = fs::metadata("/").context("look at the host's root")?.dev();
        for entry in fs::read_dir("/").context("list the host's root")?.flatten() {
            let name = entry.file_name();
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() && meta.dev() != root && !not_shown(&name.to_string_lossy()) {
                parts.push(self.graft(&name.to_string_lossy())?);
            }
        }
        Ok(parts)
    }

    fn by_directory(&self) -> Step<Vec<PathBuf>> {
        let mut parts = Vec::new();
        let what = "make the container's root";
        let options = labelled(&[("mode", "0755")], self.label);
        let skeleton = new_mount("tmpfs", &options, MountAttrFlags::empty()).context(what)?;
        attach(skeleton.as_fd(), open_dir(self.at).context(what)?.as_fd()).context(what)?;
        // Mount points of volumes are made in it.
        self.own(self.at).context(what)?;
        for entry in fs::read_dir("/").context("list the host's root")?.flatten() {
            let file_name = entry.file_name();
            let name = file_name.to_string_lossy();
            let (path, target) = (entry.path(), self.at.join(&file_name));
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_symlink() {
                let link = fs::read_link(&path).context(what)?;
                std::os::unix::fs::symlink(link, &target).context(what)?;
            } else if kind.is_dir() {
                fs::create_dir(&target).context(what)?;
                self.own(&target).context(what)?;
                // A directory that this user may not read becomes an empty directory of the container.
                if !not_shown(&name) && fs::read_dir(&path).is_ok() {
                    parts.push(self.graft(&name)?);
                }
            }
        }
        Ok(parts)
    }

    /// Mounts one directory of the host's root: with a writable layer if overlayfs accepts it, otherwise read-only.
    fn graft(&self, name: &str) -> Step<PathBuf> {
        let what = format!("show the host's /{name}");
        let (layer, target) = (self.layer.join(format!("of-{name}")), self.at.join(name));
        let path = format!("/{name}");
        rustix::fs::mkdir(&layer, Mode::from_raw_mode(0o755)).context(&what)?;
        self.make_layer(&layer).context(&what)?;
        if self.overlay(&path, &layer, &target).is_err() {
            let tree = clone_private(Path::new(&path), true).context(&what)?;
            sys::set_read_only(tree.as_fd(), true).context(&what)?;
            attach(tree.as_fd(), open_dir(&target).context(&what)?.as_fd()).context(&what)?;
        }
        Ok(PathBuf::from(name))
    }
}

fn not_shown(name: &str) -> bool {
    OWN.contains(&name) || EMPTY.iter().any(|(empty, _)| *empty == name)
}
