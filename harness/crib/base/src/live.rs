//! The runtimes of all `crib run`s of this user: a directory with a file for each runtime, which contains its endpoint.
//!
//! The runtime holds a lock on its file while it runs. An entry is stale if its file is not locked, however the runtime ended; a
//! process id could have been reused. A second lock, on the directory, is held while files are added or removed, so that a new file
//! that is not locked yet is not mistaken for a stale one.

use std::fs::{DirBuilder, File, Metadata};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::args::UnixEndpoint;

mod names;

pub use names::{NameError, NamedRun, ReservedName, RunName, named_runs};

/// The number of names to try for the directory: other users can create files with the first names.
const NAMES: usize = 16;

/// The directory of the entries: in the user's runtime directory, or else a private directory in the temporary directory. Must be
/// called before the process enters a user namespace, which changes the user's id.
pub fn directory() -> PathBuf {
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
    choose(&match runtime_dir {
        Some(directory) => PathBuf::from(directory).join("crib-runs"),
        None => crate::dirs::temp_dir().join(format!("crib-runs-{}", nix::unistd::geteuid())),
    })
}

/// Selects one of `first`, `first-1` and so on: the existing directory that only this user can write to, or else the first free
/// name. If others own all names, returns `first`, and opening it fails with the reason.
fn choose(first: &Path) -> PathBuf {
    let mut free = None;
    for number in 0..NAMES {
        let mut name = first.as_os_str().to_owned();
        if number > 0 {
            name.push(format!("-{number}"));
        }
        let name = PathBuf::from(name);
        match std::fs::symlink_metadata(&name).map(|found| is_own(&found)) {
            Ok(true) => return name,
            Err(error) if error.kind() == ErrorKind::NotFound => _ = free.get_or_insert(name),
            Ok(false) | Err(_) => {}
        }
    }
    free.unwrap_or_else(|| first.to_owned())
}

/// The entry of a running runtime. Dropping it removes the entry.
#[derive(Debug)]
pub struct Entry {
    directory: PathBuf,
    path: PathBuf,
    /// Keeps the file locked.
    _file: File,
}

impl Entry {
    /// Adds an entry for an endpoint.
    pub fn add(directory: &Path, endpoint: &UnixEndpoint) -> io::Result<Self> {
        let _lock = make_and_lock(directory)?;
        let mut file = tempfile::Builder::new().prefix("").rand_bytes(12).tempfile_in(directory)?;
        flock(file.as_file(), FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(endpoint.to_string().as_bytes())?;
        let (file, path) = file.keep().map_err(|error| error.error)?;
        Ok(Self { directory: directory.to_owned(), path, _file: file })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // The next reader removes a file that cannot be removed here.
        let _lock = lock(&self.directory);
        let _ = std::fs::remove_file(&self.path);
        // Fails if there are other entries.
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// The endpoints of the running runtimes, sorted by path. Removes stale entries.
pub fn endpoints(directory: &Path) -> io::Result<Vec<UnixEndpoint>> {
    let _lock = match lock(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        lock => lock?,
    };
    let mut found = Vec::new();
    for (path, mut file) in sweep(directory)? {
        let mut text = String::new();
        if names::of_file(&path).is_none() && file.read_to_string(&mut text).is_ok() {
            found.extend(text.parse::<UnixEndpoint>());
        }
    }
    if found.is_empty() {
        // Fails if there are names of runs.
        let _ = std::fs::remove_dir(directory);
    }
    compact::sort_by(&mut found, |a, b| a.path().cmp(b.path()));
    Ok(found)
}

/// The files of running runtimes. Removes the other files. The caller must hold the lock of the directory.
fn sweep(directory: &Path) -> io::Result<Vec<(PathBuf, File)>> {
    let mut living = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let Ok(file) = File::open(&path) else {
            continue;
        };
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            let _ = std::fs::remove_file(&path);
        } else {
            living.push((path, file));
        }
    }
    Ok(living)
}

/// Creates the directory if it does not exist, and locks it.
fn make_and_lock(directory: &Path) -> io::Result<File> {
    // Another process may remove the empty directory between the two steps.
    loop {
        make(directory)?;
        match lock(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            lock => return lock,
        }
    }
}

/// Creates the directory for this user only. If the name exists already, [`lock`] checks its type and owner.
fn make(directory: &Path) -> io::Result<()> {
    if let Some(parent) = directory.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether this is a directory that only this user can write to. In a temporary directory, another user could create the directory
/// first and add sockets.
fn is_own(found: &Metadata) -> bool {
    let own = found.uid() == nix::unistd::geteuid().as_raw();
    own && found.is_dir() && found.mode() & 0o022 == 0
}

/// The error for a directory that [`open`] rejects.
fn not_own(found: &Metadata) -> io::Error {
    let remedy = match file_tree::private::may_remove(found.uid()) {
        true => "remove it, or set",
        false => "it belongs to another user: set",
    };
    io::Error::other(format!(
        "it is not a private directory of this user: {remedy} TMPDIR to a directory that only you can write to"
    ))
}

/// Opens the directory if only this user can write to it. Does not block if a FIFO has its name.
fn open(directory: &Path) -> io::Result<File> {
    let flags =
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags, Mode::empty()) {
        Ok(opened) => {
            let opened = File::from(opened);
            let found = opened.metadata()?;
            if is_own(&found) { Ok(opened) } else { Err(not_own(&found)) }
        }
        Err(Errno::NOTDIR | Errno::LOOP) => Err(not_own(&std::fs::symlink_metadata(directory)?)),
        Err(error) => Err(error.into()),
    }
}

/// Locks the directory. The lock is held while entries are added, removed or listed.
fn lock(directory: &Path) -> io::Result<File> {
    let open = open(directory)?;
    flock(&open, FlockOperation::LockExclusive)?;
    // If the directory was removed during the wait, another directory may have its name.
    let (own, named) = (open.metadata()?, std::fs::metadata(directory)?);
    if (own.ino(), own.dev()) != (named.ino(), named.dev()) {
        return Err(ErrorKind::NotFound.into());
    }
    Ok(open)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn endpoint(path: &str) -> UnixEndpoint {
        UnixEndpoint::at(path.into())
    }

    #[test]
    fn entries_live_as_long_as_their_locks() {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path().join("runs");
        assert_eq!(endpoints(&directory).unwrap(), []);
        let b = Entry::add(&directory, &endpoint("/b")).unwrap();
        let a = Entry::add(&directory, &endpoint("/a")).unwrap();
        assert_eq!(endpoints(&directory).unwrap(), [endpoint("/a"), endpoint("/b")]);
        drop(a);
        assert_eq!(endpoints(&directory).unwrap(), [endpoint("/b")]);
        // A killed runtime leaves a file without a lock.
        std::fs::write(directory.join("dead"), "unix:///dead").unwrap();
        assert_eq!(endpoints(&directory).unwrap(), [endpoint("/b")]);
        assert!(!directory.join("dead").exists());
        drop(b);
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    /// Creates something other than a private directory of this user at a path.
    fn plant(what: &str, path: &Path) {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        match what {
            "FIFO" => nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
            "file" => std::fs::write(path, "").unwrap(),
            "link to nothing" => symlink("nothing", path).unwrap(),
            "link to a directory" => symlink("/", path).unwrap(),
            "socket" => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
            "open directory" => {
                std::fs::create_dir(path).unwrap();
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
            }
            // Only root can create it.
            _ => {
                std::fs::create_dir(path).unwrap();
                std::os::unix::fs::chown(path, Some(12345), None).unwrap();
            }
        }
    }

    #[rstest]
    fn what_is_not_ours_is_refused_at_once_and_left_alone(
        #[values(
            "FIFO",
            "file",
            "link to nothing",
            "link to a directory",
            "socket",
            "open directory",
            "directory of another"
        )]
        what: &str,
    ) {
        if what == "directory of another" && !nix::unistd::geteuid().is_root() {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path().join("runs");
        plant(what, &directory);
        Entry::add(&directory, &endpoint("/a")).unwrap_err();
        endpoints(&directory).unwrap_err();
        assert!(std::fs::symlink_metadata(&directory).is_ok());
        // Another name is selected, even after the first name is free again.
        let other = choose(&directory);
        assert_eq!(other, temp.path().join("runs-1"));
        let _entry = Entry::add(&other, &endpoint("/a")).unwrap();
        std::fs::rename(&directory, temp.path().join("moved")).unwrap();
        assert_eq!(choose(&directory), other);
    }

    #[test]
    fn directory_without_a_free_name_is_the_first_one() {
        let temp = tempfile::tempdir().unwrap();
        let first = temp.path().join("runs");
        plant("file", &first);
        for number in 1..NAMES {
            plant("file", &temp.path().join(format!("runs-{number}")));
        }
        assert_eq!(choose(&first), first);
    }

    #[test]
    fn entries_are_added_while_others_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path().join("runs");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let entry = Entry::add(&directory, &endpoint("/a")).unwrap();
                        assert!(!endpoints(&directory).unwrap().is_empty());
                        drop(entry);
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
    }
}
