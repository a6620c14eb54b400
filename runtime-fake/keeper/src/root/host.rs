//! The root file system of `crib.local/host`: the host's own, below a writable layer in memory.
//!
//! The layer is in memory because overlayfs refuses an upper directory that lies below its own lower one, and the host's
//! root is above everything.

use std::{
    fs,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use rustix::{fs::Mode, io::Errno, mount::MountAttrFlags};

use crate::{
    failure::{Doing as _, Step},
    mount::{attach, clone_tree, labelled, new_mount, open_dir},
    plan::Rung,
    root::{mapped::Mapped, overlay},
    sys,
};

/// What the container gets of its own.
const OWN: [&str; 4] = ["proc", "sys", "dev", "lost+found"];
/// Directories that start empty, with their modes: the host's files there are not the container's business.
const EMPTY: [(&str, u32); 3] = [("tmp", 0o1777), ("run", 0o755), ("var/tmp", 0o1777)];

/// Assembles it at `at`, with its writable layer at `layer`. Returns the mounts below `at` that are part of it, relative
/// to it. `ids` are the container's own; where the host's files cannot have them, they seem to be nobody's.
pub(crate) fn make(
    rung: Rung,
    layer: &Path,
    at: &Path,
    ids: Option<&Mapped<'_>>,
    label: Option<&str>,
) -> Step<Vec<PathBuf>> {
    let what = "make the container's writable layer";
    let tmpfs = new_mount("tmpfs", &[("mode", "0755")], MountAttrFlags::empty()).doing(what)?;
    attach(tmpfs.as_fd(), open_dir(layer).doing(what)?.as_fd()).doing(what)?;
    let whole = make_layer(layer, ids)
        .and_then(|()| overlay::writable(rung, &[lower(Path::new("/"), ids)], layer, at, label));
    let mut parts = match whole {
        Ok(()) => graft_mounts(rung, layer, at, ids, label)?,
        // Inside a user namespace the host's mounts are locked below its root, which overlayfs then does not take: one
        // overlay for each directory.
        Err(_) => by_directory(rung, layer, at, ids, label)?,
    };
    for (name, mode) in EMPTY {
        let options = format!("{mode:o}");
        let path = at.join(name);
        let Ok(target) = open_dir(&path) else {
            continue;
        };
        let what = format!("mount an empty /{name}");
        let empty = new_mount(
            "tmpfs",
            &labelled(&[("mode", &options)], label),
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
        );
        attach(empty.doing(&what)?.as_fd(), target.as_fd()).doing(&what)?;
        ids.map_or(Ok(()), |ids| ids.own(&path)).doing(&what)?;
        parts.push(PathBuf::from(name));
    }
    Ok(parts)
}

/// Where the directory `path` of the host is found with the container's ids.
fn lower(path: &Path, ids: Option<&Mapped<'_>>) -> PathBuf {
    ids.and_then(|ids| ids.path(path).ok())
        .unwrap_or_else(|| path.to_owned())
}

fn make_layer(layer: &Path, ids: Option<&Mapped<'_>>) -> Result<(), Errno> {
    for directory in ["upper", "work"] {
        rustix::fs::mkdir(layer.join(directory), Mode::from_raw_mode(0o755))?;
    }
    ids.map_or(Ok(()), |ids| ids.own(&layer.join("upper")))
}

/// Directories of the root that are other file systems, `/usr` or `/home`, say: an overlay does not look below mounts.
fn graft_mounts(
    rung: Rung,
    layer: &Path,
    at: &Path,
    ids: Option<&Mapped<'_>>,
    label: Option<&str>,
) -> Step<Vec<PathBuf>> {
    use std::os::unix::fs::MetadataExt as _;
    let mut parts = Vec::new();
    let root = fs::metadata("/").doing("look at the host's root")?.dev();
    for entry in fs::read_dir("/").doing("list the host's root")?.flatten() {
        let name = entry.file_name();
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() && meta.dev() != root && !not_shown(&name.to_string_lossy()) {
            parts.push(graft(rung, &name.to_string_lossy(), layer, at, ids, label)?);
        }
    }
    Ok(parts)
}

fn by_directory(
    rung: Rung,
    layer: &Path,
    at: &Path,
    ids: Option<&Mapped<'_>>,
    label: Option<&str>,
) -> Step<Vec<PathBuf>> {
    let mut parts = Vec::new();
    let what = "make the container's root";
    let options = labelled(&[("mode", "0755")], label);
    let skeleton = new_mount("tmpfs", &options, MountAttrFlags::empty()).doing(what)?;
    attach(skeleton.as_fd(), open_dir(at).doing(what)?.as_fd()).doing(what)?;
    for entry in fs::read_dir("/").doing("list the host's root")?.flatten() {
        let file_name = entry.file_name();
        let name = file_name.to_string_lossy();
        let (path, target) = (entry.path(), at.join(&file_name));
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_symlink() {
            let link = fs::read_link(&path).doing(what)?;
            std::os::unix::fs::symlink(link, &target).doing(what)?;
        } else if kind.is_dir() {
            fs::create_dir(&target).doing(what)?;
            ids.map_or(Ok(()), |ids| ids.own(&target)).doing(what)?;
            // What this user may not read is an empty directory of the container's own.
            if !not_shown(&name) && fs::read_dir(&path).is_ok() {
                parts.push(graft(rung, &name, layer, at, ids, label)?);
            }
        }
    }
    Ok(parts)
}

fn not_shown(name: &str) -> bool {
    OWN.contains(&name) || EMPTY.iter().any(|(empty, _)| *empty == name)
}

/// Shows one directory of the host's root: with a writable layer if overlayfs takes it, else as it is, read-only.
fn graft(
    rung: Rung,
    name: &str,
    layer: &Path,
    at: &Path,
    ids: Option<&Mapped<'_>>,
    label: Option<&str>,
) -> Step<PathBuf> {
    let what = format!("show the host's /{name}");
    let (own_layer, target) = (layer.join(format!("of-{name}")), at.join(name));
    rustix::fs::mkdir(&own_layer, Mode::from_raw_mode(0o755)).doing(&what)?;
    make_layer(&own_layer, ids).doing(&what)?;
    let path = Path::new("/").join(name);
    let lower = lower(&path, ids);
    if overlay::writable(
        rung,
        std::slice::from_ref(&lower),
        &own_layer,
        &target,
        label,
    )
    .is_ok()
    {
        return Ok(PathBuf::from(name));
    }
    let tree = clone_tree(&path, true).doing(&what)?;
    sys::set_read_only(tree.as_fd(), true).doing(&what)?;
    attach(tree.as_fd(), open_dir(&target).doing(&what)?.as_fd()).doing(&what)?;
    Ok(PathBuf::from(name))
}
