//! Confines a container with the kernel's security modules, AppArmor and SELinux.

use std::{
    ffi::{CStr, OsStr},
    fs::{self, File},
    io::{self, Write as _},
    os::{
        fd::{AsRawFd as _, BorrowedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use file_tree::{Entry, Mounts, Visitor};
use rustix::{
    fs::{XattrFlags, lgetxattr, lsetxattr, setxattr},
    io::Errno,
};

use crate::contract::plan::Confinement;

/// The extended attribute of a file's SELinux label.
const XATTR: &str = "security.selinux";

/// Writes to an existing file in one call, as the kernel requires.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    file.write_all(text.as_bytes())
}

/// Sets the confinement of the next program of this process. Call it while `/proc` is the host's: in a container it
/// might be any file. It lasts until `execve`, even if the process changes its ids and drops capabilities first.
pub fn confine(confinement: &Confinement) -> io::Result<()> {
    let root = confinement.kernel.as_deref().unwrap_or(Path::new("/"));
    let attributes = root.join("proc/self/attr");
    if let Some(profile) = &confinement.apparmor_profile {
        let text = format!("exec {profile}");
        match write(&attributes.join("apparmor/exec"), &text) {
            // Before Linux 5.8 all modules shared one set of files.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && !attributes.join("apparmor").exists() =>
            {
                write(&attributes.join("exec"), &text)
            }
            written => written,
        }?;
    }
    match &confinement.selinux_label {
        Some(label) => write(&attributes.join("exec"), label),
        None => Ok(()),
    }
}

/// Sets the SELinux label of a file, or of a directory and its contents, without following links. It skips files that
/// have the label already, and file systems without labels (as containerd and CRI-O do). The path itself comes last, so
/// that a labelled path implies labelled contents.
pub fn relabel(path: &Path, label: &str) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    check_not_of_the_host(&path)?;
    let set = |path: &Path| set_label(path, label);
    match each_below(&path, &set).and_then(|()| set(&path)) {
        Err(Errno::NOTSUP) => Ok(()),
        done => Ok(done?),
    }
}

/// [`relabel`] for an open file or directory, whatever its path names by now.
pub(crate) fn relabel_open(at: BorrowedFd<'_>, label: &str) -> io::Result<()> {
    let own = PathBuf::from(format!("/proc/self/fd/{}", at.as_raw_fd()));
    check_not_of_the_host(&fs::read_link(&own)?)?;
    let set = |path: &Path| set_label(path, label);
    // A link is not followed at the end of a path.
    let done = each_below(&own.join("."), &set)
        .and_then(|()| setxattr(&own, XATTR, label.as_bytes(), XattrFlags::empty()));
    match done {
        Err(Errno::NOTSUP) => Ok(()),
        done => Ok(done?),
    }
}

fn check_not_of_the_host(path: &Path) -> io::Result<()> {
    let home = std::env::var_os("HOME").is_some_and(|home| path == Path::new(&home));
    if home || path.to_str().is_none_or(of_the_host) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the host needs its own label there",
        ));
    }
    Ok(())
}

fn set_label(path: &Path, label: &str) -> Result<(), Errno> {
    let mut there = vec![0; label.len() + 2];
    if let Ok(length) = lgetxattr(path, XATTR, &mut there[..])
        && there[..length].strip_suffix(b"\0").unwrap_or(&there[..length]) == label.as_bytes()
    {
        return Ok(());
    }
    match lsetxattr(path, XATTR, label.as_bytes(), XattrFlags::empty()) {
        // The file was removed meanwhile.
        Err(Errno::NOENT) => Ok(()),
        set => set,
    }
}

/// Calls `each` for everything below a directory, deepest first. The paths passed to `each` go through open
/// directories: a process that renames files meanwhile cannot redirect them.
fn each_below(path: &Path, each: &dyn Fn(&Path) -> Result<(), Errno>) -> Result<(), Errno> {
    match file_tree::open(path) {
        Ok(top) => file_tree::walk(top, Mounts::Cross, &mut Each(each)),
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

struct Each<'a>(&'a dyn Fn(&Path) -> Result<(), Errno>);

impl Visitor for Each<'_> {
    fn visit(&mut self, entry: &Entry<'_>) -> Result<(), Errno> {
        if entry.is_directory() {
            return Ok(());
        }
        self.leave(entry.parent, entry.name)
    }

    fn leave(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        // setxattrat(2) exists since Linux 6.13 only.
        let parent = PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd()));
        (self.0)(&parent.join(OsStr::from_bytes(name.to_bytes())))
    }
}

/// Whether a directory is the host's own: relabelling it breaks
/// the host (the list is go-selinux's, with /lib32 and /libx32).
fn of_the_host(path: &str) -> bool {
    const HOSTS: [&str; 26] = [
        "/",
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/etc/passwd",
        "/etc/pki",
        "/etc/shadow",
        "/home",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/media",
        "/opt",
        "/proc",
        "/root",
        "/run",
        "/sbin",
        "/srv",
        "/sys",
        "/tmp",
        "/usr",
        "/var",
        "/var/lib",
        "/var/log",
    ];
    HOSTS.contains(&path)
}

/// The message that the kubelet shows for a pod whose AppArmor profile is not loaded (containerd's words).
#[must_use]
pub fn profile_not_found(name: &str) -> String {
    format!("apparmor profile not found {name}: load it on this node with apparmor_parser first")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
