//! The unix socket of `crib runtime`: its default path, and replacing a stale socket.

use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crib_base::args::{LONGEST_SOCKET_PATH, UnixEndpoint};
use file_tree::directory;
use nix::unistd::Gid;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use thiserror::Error;

/// Why the server cannot listen on a socket.
#[derive(Debug, Error)]
pub(crate) enum EndpointError {
    /// The path is longer than the kernel allows.
    #[error(
        "the socket path {path} has {length} bytes, but a unix socket path can have at most {LONGEST_SOCKET_PATH}: choose a shorter path"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// Another server listens on it.
    #[error("a server is already listening on {path}: stop it, or listen somewhere else")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Other users could replace the socket.
    #[error("the directory {directory} is not private to this user: {remedy}")]
    NotOurs {
        /// The directory.
        directory: PathBuf,
        /// The remedy.
        remedy: &'static str,
    },
    /// The path exists and is not a socket.
    #[error("{path} exists and is not a socket: remove it, or listen somewhere else")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Another error of the kernel.
    #[error("failed to {doing} {path}; check the directory and its permissions")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The result of probing a socket path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Stale,
    Server,
}

/// The default socket of `crib runtime`: for root in `/run`, for other users in their runtime directory.
pub(crate) fn default_listen(
    root: bool,
    runtime_dir: Option<&Path>,
    temp_dir: &Path,
    uid: u32,
) -> UnixEndpoint {
    let path = match (root, runtime_dir) {
        (true, _) => PathBuf::from("/run/crib/crib.sock"),
        (false, Some(dir)) => dir.join("crib/crib.sock"),
        (false, None) => temp_dir.join(format!("crib-{uid}/crib.sock")),
    };
    UnixEndpoint::at(path)
}

/// Removes the socket at `path` if its server has ended. Fails if a server listens on it, or it is not a socket.
pub(crate) fn clear(path: &Path) -> Result<(), EndpointError> {
    check_length(path)?;
    match probe(path)? {
        Found::Nothing => Ok(()),
        Found::Stale => std::fs::remove_file(path).map_err(|source| EndpointError::Io {
            doing: "remove the stale socket",
            path: path.to_owned(),
            source,
        }),
        Found::Server => Err(EndpointError::InUse { path: path.to_owned() }),
    }
}

/// Listens on `path`, with access for the owner and optionally a group. Replaces a stale socket.
pub(crate) fn listen(path: &Path, group: Option<Gid>) -> Result<UnixListener, EndpointError> {
    check_length(path)?;
    let io = |doing, source| EndpointError::Io { doing, path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        directory::make(parent, 0o750)
            .map_err(|source| io("make the directory of the socket", source))?;
    }
    check_shared(path)?;
    clear(path)?;
    let listener = UnixListener::bind(path).map_err(|source| {
        // Another process bound the path after the probe.
        if source.kind() == ErrorKind::AddrInUse {
            EndpointError::InUse { path: path.to_owned() }
        } else {
            io("listen on", source)
        }
    })?;
    if let Some(group) = group {
        nix::unistd::chown(path, None, Some(group))
            .map_err(|error| io("give the group", error.into()))?;
    }
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    std::fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|source| io("set the mode of", source))?;
    listener.set_nonblocking(true).map_err(|source| io("listen on", source))?;
    Ok(listener)
}

/// In a world-writable directory such as /tmp, another user may have created the directory of the socket first.
pub(crate) fn check_shared(path: &Path) -> Result<(), EndpointError> {
    let Some(directory) = path.parent() else {
        return Ok(());
    };
    let sticky = directory
        .parent()
        .and_then(|above| std::fs::metadata(above).ok())
        .is_some_and(|above| above.mode() & 0o1002 == 0o1002);
    let Ok(found) = std::fs::symlink_metadata(directory) else {
        return Ok(());
    };
    let own = found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw();
    // The socket may be in a sticky directory itself: of the other users, only the directory's owner can replace it there.
    if !sticky || own && (found.mode() & 0o022 == 0 || found.mode() & 0o1000 != 0) {
        return Ok(());
    }
    // In a sticky directory, only the owner can remove it. uid 0 may be root of a user namespace only, so it is not treated
    // specially.
    let remedy = match found.uid() == nix::unistd::geteuid().as_raw() {
        true => "remove it, or choose another socket",
        false => {
            "another user created it: choose another socket, or set XDG_RUNTIME_DIR to your own directory"
        }
    };
    Err(EndpointError::NotOurs { directory: directory.to_owned(), remedy })
}

fn check_length(path: &Path) -> Result<(), EndpointError> {
    let length = path.as_os_str().as_bytes().len();
    if length > LONGEST_SOCKET_PATH {
        return Err(EndpointError::TooLong { path: path.to_owned(), length });
    }
    Ok(())
}

fn probe(path: &Path) -> Result<Found, EndpointError> {
    match std::fs::symlink_metadata(path) {
        Err(source) if source.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(source) => {
            return Err(EndpointError::Io { doing: "look at", path: path.to_owned(), source });
        }
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(EndpointError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match dial(path) {
        Ok(()) => Ok(Found::Server),
        Err(source) if source.kind() == ErrorKind::ConnectionRefused => Ok(Found::Stale),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(Found::Nothing),
        Err(source) => {
            Err(EndpointError::Io { doing: "connect to", path: path.to_owned(), source })
        }
    }
}

/// Connects and closes the connection. Does not block if the server accepts no connections.
pub(crate) fn dial(path: &Path) -> io::Result<()> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        // The queue of the socket is full (unix(7)).
        Ok(()) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use std::os::unix::net::UnixStream;

    use super::*;

    #[rstest]
    #[case(true, Some("/run/user/0"), "/run/crib/crib.sock")]
    #[case(false, Some("/run/user/7"), "/run/user/7/crib/crib.sock")]
    #[case(false, None, "/tmp/crib-7/crib.sock")]
    fn default_socket_depends_on_user_and_xdg(
        #[case] root: bool,
        #[case] runtime_dir: Option<&str>,
        #[case] path: &str,
    ) {
        let endpoint = default_listen(root, runtime_dir.map(Path::new), Path::new("/tmp"), 7);
        assert_eq!(endpoint.path(), Path::new(path));
    }

    #[test]
    fn listen_replaces_stale_socket_and_rejects_live_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b.sock");
        let first = listen(&path, None).unwrap();
        UnixStream::connect(&path).unwrap();
        assert!(matches!(listen(&path, None), Err(EndpointError::InUse { .. })));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(first);
        UnixStream::connect(&path).unwrap_err();
        listen(&path, None).unwrap();
    }

    #[test]
    fn listen_keeps_regular_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "mine").unwrap();
        assert!(matches!(listen(&path, None), Err(EndpointError::NotASocket { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }

    #[rstest]
    #[case(107, true)]
    #[case(108, false)]
    fn listen_accepts_107_byte_path(#[case] length: usize, #[case] fits: bool) {
        let dir = tempfile::tempdir().unwrap();
        let missing = length - dir.path().as_os_str().len() - 1;
        let path = dir.path().join("s".repeat(missing));
        let result = listen(&path, None);
        assert_eq!(result.is_ok(), fits, "{result:?}");
        if !fits {
            assert!(matches!(result, Err(EndpointError::TooLong { length: 108, .. })));
        }
    }

    #[rstest]
    #[case::of_ones_own(0o700, true)]
    #[case::readable_for_others(0o755, true)]
    #[case::writable_for_others(0o777, false)]
    #[case::writable_for_the_group(0o770, false)]
    fn listen_checks_parent_directory_mode(#[case] mode: u32, #[case] fine: bool) {
        let everybody = tempfile::tempdir().unwrap();
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        set(everybody.path(), 0o1777);
        let directory = everybody.path().join("crib-7");
        std::fs::create_dir(&directory).unwrap();
        set(&directory, mode);
        assert_eq!(check_shared(&directory.join("crib.sock")).is_ok(), fine);
        let link = everybody.path().join("link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        assert!(check_shared(&link.join("crib.sock")).is_err());
        assert!(check_shared(&everybody.path().join("crib.sock")).is_ok());
    }

    #[test]
    fn sticky_directory_of_another_user_is_not_private() {
        let everybody = tempfile::tempdir().unwrap();
        let directory = everybody.path().join("crib-7");
        std::fs::create_dir(&directory).unwrap();
        for path in [everybody.path(), &directory] {
            std::fs::set_permissions(path, Permissions::from_mode(0o1777)).unwrap();
        }
        assert!(check_shared(&directory.join("crib.sock")).is_ok());
        // Only root can give a directory to another user.
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&directory, Some(12345), None).unwrap();
            let checked = check_shared(&directory.join("crib.sock"));
            assert!(matches!(checked, Err(EndpointError::NotOurs { .. })), "{checked:?}");
        }
    }
}
