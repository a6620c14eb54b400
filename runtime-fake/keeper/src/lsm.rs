//! What the kernel's security modules, AppArmor and SELinux, are told of a container.

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
    fs::{XattrFlags, lgetxattr, lsetxattr},
    io::Errno,
};

use crate::plan::Confinement;

/// Where a file's label is.
const XATTR: &str = "security.selinux";

/// Writes to a file that is there, in one call, as the kernel wants it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    file.write_all(text.as_bytes())
}

/// Tells the kernel how the next program of this process is confined. To be done while `/proc` is the host's: in a
/// container it might be anything. It lasts until `execve`, whatever ids and capabilities are given up before that.
pub fn confine(confinement: &Confinement) -> io::Result<()> {
    let root = confinement.kernel.as_deref().unwrap_or(Path::new("/"));
    let attributes = root.join("proc/self/attr");
    if let Some(profile) = &confinement.apparmor_profile {
        let text = format!("exec {profile}");
        match write(&attributes.join("apparmor/exec"), &text) {
            // Before Linux 5.8 the modules had one set of files between them.
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

/// Gives a file, or a directory with all that is in it, a label; links are not followed. What is labelled so already is
/// left alone, and so is a file system that has no labels (as with containerd and CRI-O). The path itself comes last: who
/// finds it labelled may rely on the rest.
pub fn relabel(path: &Path, label: &str) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let home = std::env::var_os("HOME").is_some_and(|home| path == Path::new(&home));
    if home || path.to_str().is_none_or(of_the_host) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the host needs its own label there",
        ));
    }
    let set = |path: &Path| set_label(path, label);
    match each_below(&path, &set).and_then(|()| set(&path)) {
        Err(Errno::NOTSUP) => Ok(()),
        done => Ok(done?),
    }
}

fn set_label(path: &Path, label: &str) -> Result<(), Errno> {
    let mut there = vec![0; label.len() + 2];
    if let Ok(length) = lgetxattr(path, XATTR, &mut there[..])
        && there[..length]
            .strip_suffix(b"\0")
            .unwrap_or(&there[..length])
            == label.as_bytes()
    {
        return Ok(());
    }
    match lsetxattr(path, XATTR, label.as_bytes(), XattrFlags::empty()) {
        // Removed meanwhile.
        Err(Errno::NOENT) => Ok(()),
        set => set,
    }
}

/// Does something to all that is below a directory, what is deepest first. The paths that `each` gets lead through open
/// directories: a process that renames files meanwhile cannot lead it elsewhere.
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
        // There is no setxattrat(2) before Linux 6.13.
        let parent = PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd()));
        (self.0)(&parent.join(OsStr::from_bytes(name.to_bytes())))
    }
}

/// A directory of the host's own: relabelling it breaks the host (the list is that of go-selinux, with /lib32 and
/// /libx32).
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

/// What a kubelet shows of a pod whose AppArmor profile is not loaded (the words are containerd's).
#[must_use]
pub fn profile_not_found(name: &str) -> String {
    format!("apparmor profile not found {name}: load it on this node with apparmor_parser first")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
