//! The temporary directory of a `crib run`, with its socket, logs, volumes and state.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crib_base::args::LONGEST_SOCKET_PATH;
use crib_base::dirs::temp_dir;
use crib_base::run_socket;
use crib_base::volumes_in_memory;
use file_tree::mountinfo::mounts;
use nix::sys::statvfs::statvfs;
use thiserror::Error;

/// The prefix of the directories' names.
pub(crate) const PREFIX: &str = "crib-run-";

/// Why the directory could not be created or removed.
#[derive(Debug, Error)]
pub enum RootError {
    /// It could not be created.
    #[error(
        "failed to create a directory for this run in {parent}; set TMPDIR to a writable directory"
    )]
    Make {
        /// Its parent directory.
        parent: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The runtime cannot use its path: paths in CRI requests must be UTF-8 without control characters.
    #[error(
        "failed to create a directory for this run: its path {:?} is not UTF-8 or has a control character; set TMPDIR to another directory",
        .path.to_string_lossy()
    )]
    Unprintable {
        /// The directory.
        path: PathBuf,
    },
    /// The path of its socket would be too long.
    #[error(
        "the path of the runtime's socket would be {socket} and have {} bytes, but a unix socket path can have at most {LONGEST_SOCKET_PATH}; set TMPDIR or XDG_RUNTIME_DIR to a directory with a shorter path, or make /tmp writable",
        .socket.as_os_str().len()
    )]
    TooLong {
        /// The path of the socket.
        socket: PathBuf,
    },
    /// It could not be locked.
    #[error(
        "failed to lock {path}; set TMPDIR to a directory on a file system that supports locks"
    )]
    Lock {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file in it could not be created.
    #[error("failed to create {path}")]
    MakeFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file system is still mounted in it, which must not be removed.
    #[error("{mount} is still mounted: unmount it and remove {root}")]
    Mounted {
        /// The mount point.
        mount: PathBuf,
        /// The directory to remove.
        root: PathBuf,
    },
    /// It could not be removed.
    #[error("failed to remove {path}; remove it by hand")]
    Remove {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The paths in the directory of a run. Dropping it removes nothing; [`remove`] does.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    path: PathBuf,
}

impl Root {
    /// Creates a directory that only its owner can access.
    pub(crate) fn make() -> Result<Self, RootError> {
        let parent = temp_dir();
        let made = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&parent);
        let dir = made.map_err(|source| RootError::Make { parent, source })?;
        let root = Self { path: dir.path().to_owned() };
        if !is_printable(&root.path) {
            return Err(RootError::Unprintable { path: root.path });
        }
        let socket = root.socket();
        if !fits(&socket) && make_sockets(&root.path).is_none() {
            return Err(RootError::TooLong { socket });
        }
        let _ = dir.keep();
        Ok(root)
    }

    /// The directory of an earlier run.
    pub(crate) fn of_earlier(path: PathBuf) -> Self {
        Self { path }
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The runtime's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        run_socket::runtime_socket(&self.path)
    }

    /// The default state directory of the runtime.
    pub(crate) fn state(&self) -> PathBuf {
        self.path.join("state")
    }

    /// The agent's root directory, with volumes.
    pub(crate) fn agent(&self) -> PathBuf {
        self.path.join("agent")
    }

    /// The directory of container logs.
    pub(crate) fn pod_logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// Whether the disk is almost full, so that container output may have been lost: the runtime does not block a container whose
    /// log cannot be written.
    pub(crate) fn is_full(&self) -> bool {
        statvfs(&self.path)
            .is_ok_and(|fs| is_full(fs.blocks(), fs.blocks_available(), fs.fragment_size()))
    }

    /// Creates a log file of crib itself, which can be appended to, and read through the same handle even after its removal.
    pub(crate) fn log_file(&self, name: &str) -> Result<File, RootError> {
        let path = self.path.join(name);
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path);
        file.map_err(|source| RootError::MakeFile { path, source })
    }
}

/// Whether a path can be part of a CRI request.
fn is_printable(path: &Path) -> bool {
    path.to_str().is_some_and(|text| !text.contains(char::is_control))
}

/// Whether a path is short enough for a socket.
fn fits(socket: &Path) -> bool {
    socket.as_os_str().len() <= LONGEST_SOCKET_PATH
}

/// Creates a directory for the sockets of a run with a long path, and links to it.
fn make_sockets(run: &Path) -> Option<()> {
    let of_user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let parents = of_user.into_iter().chain(["/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from));
    parents.filter(|parent| parent.is_absolute()).find_map(|parent| {
        let made = tempfile::Builder::new()
            .prefix(run_socket::SOCKETS_PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent);
        let sockets = made.ok().filter(|made| fits(&run_socket::runtime_socket(made.path())))?;
        run_socket::serve_elsewhere(run, sockets.path()).ok()?;
        let _ = sockets.keep();
        Some(())
    })
}

/// Whether less than 64 KiB of a file system are available. File systems that report no `blocks` never count as full.
fn is_full(blocks: u64, available: u64, size: u64) -> bool {
    blocks > 0 && available.saturating_mul(size) < 64 << 10
}

/// The last lines of a log file, at most `count`, even if the file was removed. Returns nothing if it cannot be read.
pub(crate) fn last_lines(mut file: &File, count: usize) -> Vec<String> {
    const FAR_ENOUGH: u64 = 64 * 1024;
    let mut bytes = Vec::new();
    let read = file
        .metadata()
        .and_then(|metadata| file.seek(SeekFrom::Start(metadata.len().saturating_sub(FAR_ENOUGH))))
        .and_then(|_| file.read_to_end(&mut bytes));
    if read.is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let mut lines: Vec<String> = text.lines().rev().take(count).map(str::to_owned).collect();
    lines.reverse();
    lines
}

/// Removes a directory tree; a missing one is not an error. Removes nothing if a file system is mounted below it, because it could
/// be a directory of the host.
pub fn remove(root: &Path) -> Result<(), RootError> {
    let failed = |source| RootError::Remove { path: root.to_owned(), source };
    volumes_in_memory::remove(&Root::of_earlier(root.to_owned()).agent()).map_err(failed)?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(failed)?;
    let real = match root.canonicalize() {
        Ok(real) => real,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(failed(source)),
    };
    if let Some(mount) = mount_below(&mounts, &real) {
        return Err(RootError::Mounted { mount, root: root.to_owned() });
    }
    if let Some(sockets) = run_socket::elsewhere(root)
        && let Err(error) = file_tree::remove(&sockets)
    {
        tracing::debug!(directory = %sockets.display(), %error, "failed to remove sockets");
    }
    // A killed runtime may still be removing and moving directories, so a failed removal is retried.
    let done = file_tree::remove(root).or_else(|_| file_tree::remove(root));
    done.map_err(|error| failed(error.into()))
}

/// The first mount point strictly below `root` in the text of a mountinfo file.
fn mount_below(mountinfo: &str, root: &Path) -> Option<PathBuf> {
    mounts(mountinfo)
        .map(|mount| PathBuf::from(mount.at))
        .find(|mount| mount != root && mount.starts_with(root))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::Write as _;
    use std::os::unix::ffi::OsStrExt as _;

    use rstest::rstest;

    use super::*;

    const MOUNTS: &str = "22 1 0:20 / / rw - ext4 /dev/sda rw\n\
        30 22 0:25 / /tmp/run rw - tmpfs tmpfs rw\n\
        31 30 0:26 / /tmp/run/a\\040b rw - tmpfs tmpfs rw\n\
        32 22 0:27 / /tmp/runner rw - tmpfs tmpfs rw\n";

    #[rstest]
    #[case("/tmp/run", Some("/tmp/run/a b"))]
    #[case("/tmp/run/a b", None)]
    #[case("/tmp/other", None)]
    #[case("/tmp", Some("/tmp/run"))]
    fn mount_below_finds_mounts_inside_directory(#[case] root: &str, #[case] found: Option<&str>) {
        assert_eq!(mount_below(MOUNTS, Path::new(root)), found.map(PathBuf::from));
    }

    #[rstest]
    #[case(b"/tmp/caf\xc3\xa9 \"a,b\"", true)]
    #[case(b"/tmp/n\xff", false)]
    #[case(b"/tmp/a\nb", false)]
    fn printable_path_is_utf8_without_control_characters(
        #[case] path: &[u8],
        #[case] printable: bool,
    ) {
        assert_eq!(is_printable(Path::new(OsStr::from_bytes(path))), printable);
    }

    #[test]
    fn file_system_below_64_kib_counts_as_full() {
        assert!(is_full(15, 0, 4096));
        assert!(is_full(1000, 15, 4096));
        assert!(!is_full(1000, 16, 4096));
        // Some file systems do not report blocks.
        assert!(!is_full(0, 0, 4096));
    }

    #[test]
    fn root_removal_includes_read_only_directories() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), "").unwrap();
        for path in ["a/b", "a"] {
            std::fs::set_permissions(root.join(path), Permissions::from_mode(0o000)).unwrap();
        }
        remove(&root).unwrap();
        assert!(!root.exists());
        remove(&root).unwrap();
    }

    #[test]
    fn root_removal_keeps_symlink_targets() {
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("root"), dir.path().join("other"));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::create_dir_all(&other).unwrap();
        std::fs::set_permissions(&other, Permissions::from_mode(0o555)).unwrap();
        std::os::unix::fs::symlink(&other, root.join("link")).unwrap();
        remove(&root).unwrap();
        assert_eq!(other.metadata().unwrap().permissions().mode() & 0o777, 0o555);
    }

    #[test]
    fn last_log_lines_are_read_after_unlink() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root { path: dir.path().to_owned() };
        let mut file = root.log_file("x.log").unwrap();
        for number in 0..10_000 {
            writeln!(file, "line {number}").unwrap();
        }
        std::fs::remove_file(dir.path().join("x.log")).unwrap();
        assert_eq!(last_lines(&file, 2), ["line 9998", "line 9999"]);
    }
}
