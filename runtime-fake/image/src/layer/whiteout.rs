//! How layers are stored on this machine: owners of files, and the form of whiteouts.

use std::fs;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::error::ContentError;

/// The owners of a layer's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owners {
    /// As in the layer.
    Kept,
    /// As in the layer if the user namespace maps the id; root of the namespace otherwise.
    Mapped {
        /// Mapped user ids: first and last.
        users: Vec<(u32, u32)>,
        /// Mapped group ids: first and last.
        groups: Vec<(u32, u32)>,
    },
    /// All files belong to this process, which has only one id.
    Dropped,
}

/// The form of whiteouts and opaque directories for overlayfs (kernel documentation, filesystems/overlayfs.rst,
/// "whiteouts and opaque directories").
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Style {
    pub(crate) owners: Owners,
    /// `trusted.overlay.`, or `user.overlay.` without CAP_SYS_ADMIN in the initial user namespace.
    pub(crate) prefix: &'static str,
    /// Whether character devices 0/0 can be created: any user may since Linux 5.8, unless a sandbox forbids it.
    /// Otherwise whiteouts are empty files with an attribute, which Linux supports since 6.7.
    pub(crate) devices: bool,
    /// Whether device nodes of images can be created: root may, unless a sandbox forbids it; in a user namespace it
    /// may not (mknod(2)).
    pub(crate) nodes: bool,
}

impl Style {
    /// Probes the permissions of this process in the directory `probe`.
    pub(crate) fn probe(probe: impl AsFd, in_user_namespace: bool, single_id: bool) -> Self {
        let own = rustix::process::geteuid();
        let owners = if single_id || !own.is_root() {
            Owners::Dropped
        } else if in_user_namespace {
            let ranges =
                |file: &str| fs::read_to_string(file).map(|text| id_map(&text)).unwrap_or_default();
            Owners::Mapped {
                users: ranges("/proc/self/uid_map"),
                groups: ranges("/proc/self/gid_map"),
            }
        } else {
            Owners::Kept
        };
        let trusted = own.is_root() && !in_user_namespace;
        let can_make = |device| {
            let made = make_node(&probe, b".probe", FileType::CharacterDevice, device).is_ok();
            if made {
                // The directory is emptied at the next start, so a leftover is harmless.
                let _ = rustix::fs::unlinkat(&probe, ".probe", AtFlags::empty());
            }
            made
        };
        let devices = can_make(0);
        // The number of /dev/null, which is the same everywhere.
        let nodes = can_make(rustix::fs::makedev(1, 3));
        Self {
            owners,
            prefix: if trusted { "trusted.overlay." } else { "user.overlay." },
            devices,
            nodes,
        }
    }

    /// The owner to set on a file, if any: user id, group id.
    pub(crate) fn owner(&self, uid: u64, gid: u64) -> Option<(u32, u32)> {
        // The largest number is not an id: for chown(2) it means "unchanged".
        let id = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
        let (uid, gid) = (id(uid).unwrap_or(0), id(gid).unwrap_or(0));
        let known = |ranges: &[(u32, u32)], id| {
            if ranges.iter().any(|r| (r.0..=r.1).contains(&id)) { id } else { 0 }
        };
        match &self.owners {
            Owners::Kept => Some((uid, gid)),
            Owners::Mapped { users, groups } => Some((known(users, uid), known(groups, gid))),
            Owners::Dropped => None,
        }
    }

    /// Creates a whiteout of `name`.
    pub(crate) fn hide(&self, parent: impl AsFd, name: &[u8]) -> Result<(), ContentError> {
        let failed = || ContentError::errno(format!("hide {:?}", String::from_utf8_lossy(name)));
        if self.devices {
            return make_node(&parent, name, FileType::CharacterDevice, 0).map_err(failed());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&parent, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed())?;
        let mark = |fd: std::os::fd::BorrowedFd<'_>, what: &str, value: &[u8]| {
            rustix::fs::fsetxattr(fd, format!("{}{what}", self.prefix), value, XattrFlags::empty())
        };
        mark(file.as_fd(), "whiteout", b"y").map_err(failed())?;
        let directory = open_directory(&parent).map_err(failed())?;
        if !self.is_opaque(&parent) {
            // The mark that overlayfs requires on a directory with whiteouts of this form.
            mark(directory.as_fd(), "opaque", b"x").map_err(failed())?;
        }
        Ok(())
    }

    /// Makes `directory` opaque: hides everything that lower layers have in it.
    pub(crate) fn make_opaque(&self, directory: impl AsFd) -> Result<(), ContentError> {
        let failed = || {
            ContentError::errno(
                "mark a directory as opaque (the file system must have extended attributes)",
            )
        };
        let directory = open_directory(directory).map_err(failed())?;
        let name = format!("{}opaque", self.prefix);
        rustix::fs::fsetxattr(directory, name, b"y", XattrFlags::empty()).map_err(failed())
    }

    /// Whether `directory` is opaque.
    pub(crate) fn is_opaque(&self, directory: impl AsFd) -> bool {
        let mut value = [0u8; 2];
        let name = format!("{}opaque", self.prefix);
        open_directory(directory)
            .and_then(|fd| rustix::fs::fgetxattr(fd, name, &mut value))
            .is_ok_and(|n| n == 1 && value[0] == b'y')
    }

    /// Whether a file with this status is a whiteout.
    pub(crate) fn is_whiteout(
        &self,
        parent: impl AsFd,
        name: &[u8],
        stat: &rustix::fs::Stat,
    ) -> bool {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => stat.st_rdev == 0,
            FileType::RegularFile if !self.devices && stat.st_size == 0 => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let attribute = format!("{}whiteout", self.prefix);
                rustix::fs::openat(parent, name, flags, Mode::empty())
                    .and_then(|file| rustix::fs::fgetxattr(file, attribute, &mut [0u8; 2]))
                    .is_ok()
            }
            FileType::RegularFile
            | FileType::Directory
            | FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::BlockDevice
            | FileType::Unknown => false,
        }
    }
}

/// Creates a device node or a FIFO without permissions.
pub(crate) fn make_node(
    parent: impl AsFd,
    name: &[u8],
    kind: FileType,
    device: rustix::fs::Dev,
) -> Result<(), Errno> {
    rustix::fs::mknodat(parent, name, kind, Mode::empty(), device)
}

/// Opens a directory for attributes, which an O_PATH descriptor does not allow.
fn open_directory(directory: impl AsFd) -> Result<std::os::fd::OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, ".", flags, Mode::empty())
}

/// The ids mapped by a `uid_map` or `gid_map` (user_namespaces(7)): first and last of each range.
fn id_map(text: &str) -> Vec<(u32, u32)> {
    let range = |line: &str| {
        let mut words = line.split_whitespace().map(str::parse::<u32>);
        let (first, _outside, count) =
            (words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?);
        Some((first, first.checked_add(count.checked_sub(1)?)?))
    };
    text.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn owner_maps_into_user_namespace() {
        let map = id_map("         0       1000          1\n         1     100000      65536\n");
        assert_eq!(map, [(0, 0), (1, 65536)]);
        assert_eq!(id_map("0 0 4294967295"), [(0, 4_294_967_294)]);
        let style = Style {
            owners: Owners::Mapped { users: map.clone(), groups: vec![(0, 0)] },
            prefix: "user.overlay.",
            devices: true,
            nodes: false,
        };
        assert_eq!(style.owner(33, 33), Some((33, 0)));
        assert_eq!(style.owner(65537, 0), Some((0, 0)));
        assert_eq!(style.owner(u64::from(u32::MAX), 1 << 40), Some((0, 0)));
        assert_eq!(
            Style { owners: Owners::Kept, ..style.clone() }.owner(70000, 1),
            Some((70000, 1))
        );
        assert_eq!(Style { owners: Owners::Dropped, ..style }.owner(0, 0), None);
    }

    #[test]
    fn whiteouts_are_xattrs_without_device_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let fd = fs::File::open(dir.path()).unwrap();
        let style = Style {
            owners: Owners::Dropped,
            prefix: "user.overlay.",
            devices: false,
            nodes: false,
        };
        style.hide(&fd, b"gone").unwrap();
        fs::write(dir.path().join("empty"), "").unwrap();
        let status = |name: &str| rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        assert!(style.is_whiteout(&fd, b"gone", &status("gone")));
        assert!(!style.is_whiteout(&fd, b"empty", &status("empty")));
        let mut value = [0u8; 4];
        let n = rustix::fs::getxattr(dir.path(), "user.overlay.opaque", &mut value).unwrap();
        assert_eq!(&value[..n], b"x");
        assert!(!style.is_opaque(&fd));
        style.make_opaque(&fd).unwrap();
        assert!(style.is_opaque(&fd));
    }
}
