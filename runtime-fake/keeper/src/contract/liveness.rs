//! Detects whether a keeper is running.
//!
//! A keeper locks its standard output, the file `keeper.lock` in the sandbox's directory, for life. The process owns
//! the lock (fcntl(2), F_SETLK): no fork of the keeper inherits it, and the kernel releases it when the process ends,
//! for whatever reason. So a free lock means that the keeper has ended, and a held lock names its process.
//!
//! Keepers of versions before the lock have no such file; for those, `keeper.pid` names the process.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::Path,
};

use rustix::{
    fs::{FlockOperation, fcntl_lock},
    io::Errno,
    process::{Flock, FlockType, Pid, PidfdFlags, fcntl_getlk, pidfd_open},
};

use crate::kernel::failure::plain;

/// The file that a keeper locks.
const LOCK: &str = "keeper.lock";
/// The file that names the keeper's process.
const PID: &str = "keeper.pid";
/// The file that is the keeper's standard error.
const LOG: &str = "keeper.log";

/// The state of a keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Liveness {
    /// It is running, with this process id.
    Running(i32),
    /// It has ended, or never started.
    Ended,
    /// Neither is certain, for this reason.
    Unknown(String),
}

/// Takes the keeper's lock for this process.
pub fn lock_stdout() -> io::Result<()> {
    use rustix::fs::{FileType, fstat};
    let stdout = rustix::stdio::stdout();
    // A daemon of a version before the lock gives all its keepers the same standard output, /dev/null.
    if FileType::from_raw_mode(fstat(stdout)?.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    Ok(fcntl_lock(stdout, FlockOperation::NonBlockingLockExclusive)?)
}

/// Makes the files of a keeper to be started in `sandbox_dir`:
/// its standard output, which it locks, and its standard error.
pub fn files(sandbox_dir: &Path) -> io::Result<(File, File)> {
    let mut options = File::options();
    let options = options.create(true).append(true).mode(0o600);
    Ok((options.open(sandbox_dir.join(LOCK))?, options.open(sandbox_dir.join(LOG))?))
}

/// Records the process id of a keeper.
pub fn note(sandbox_dir: &Path, pid: i32) -> io::Result<()> {
    fs::write(sandbox_dir.join(PID), pid.to_string())
}

/// Detects whether the keeper of the sandbox in `sandbox_dir` is running.
pub fn of(sandbox_dir: &Path) -> Liveness {
    let unknown = |what: &str, error: &io::Error| {
        Liveness::Unknown(format!("failed to {what}: {}", plain(error)))
    };
    match holder(&sandbox_dir.join(LOCK)) {
        Ok(Some(pid)) => Liveness::Running(pid),
        // A keeper that was just started has not locked it yet.
        Ok(None) => match named(sandbox_dir) {
            Ok(Some(pid)) => Liveness::Running(pid),
            Ok(None) | Err(_) => Liveness::Ended,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => match named(sandbox_dir) {
            Ok(Some(pid)) => Liveness::Running(pid),
            Ok(None) => Liveness::Ended,
            Err(error) => unknown("find the pod's keeper by its process id", &error),
        },
        Err(error) => unknown("look at the lock of the pod's keeper", &error),
    }
}

/// The process that holds the lock at `path`.
fn holder(path: &Path) -> io::Result<Option<i32>> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let mut options = File::options();
    let flags = i32::try_from(flags).unwrap_or_default();
    let file = options.read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("keeper.lock is not a regular file"));
    }
    let lock = fcntl_getlk(file.as_fd(), &Flock::from(FlockType::WriteLock))?;
    // For a process in another process namespace the kernel reports the lock but no pid.
    Ok(lock.map(|lock| lock.pid.map_or(0, |pid| pid.as_raw_nonzero().get())))
}

/// The process that `keeper.pid` names, if it is that keeper and not another process with a reused pid.
fn named(sandbox_dir: &Path) -> io::Result<Option<i32>> {
    let text = match fs::read_to_string(sandbox_dir.join(PID)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("keeper.pid holds no number"))?;
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(None),
        process => process?,
    };
    let pid = pid.as_raw_nonzero().get();
    if fs::read_to_string(format!("/proc/{pid}/comm"))?.trim() != "crib-keeper" {
        return Ok(None);
    }
    let file = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    // Another keeper may have reused the pid, but it writes to another log.
    let own = file(&sandbox_dir.join(LOG))?;
    let its = file(Path::new(&format!("/proc/{pid}/fd/2")))?;
    // If it ended meanwhile, `/proc` shows no process, or another one.
    drop(process);
    Ok((own == its).then_some(pid))
}

/// Opens a pidfd of the keeper's process, if it is running, so that a reused pid cannot be mistaken for it.
pub fn process(sandbox_dir: &Path) -> io::Result<Option<(i32, OwnedFd)>> {
    let find = || match of(sandbox_dir) {
        Liveness::Running(0) => {
            Err(io::Error::other("the pod's keeper is in another process namespace"))
        }
        Liveness::Running(pid) => Ok(Pid::from_raw(pid)),
        Liveness::Ended => Ok(None),
        Liveness::Unknown(why) => Err(io::Error::other(why)),
    };
    let Some(pid) = find()? else { return Ok(None) };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(None),
        process => process?,
    };
    // It may have ended before pidfd_open, and its pid may have been reused.
    if find()? != Some(pid) {
        return Ok(None);
    }
    Ok(Some((pid.as_raw_nonzero().get(), process)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn lock_shows_whether_keeper_is_alive() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(of(dir.path()), Liveness::Ended);
        let (lock, _log) = files(dir.path()).unwrap();
        assert_eq!(of(dir.path()), Liveness::Ended);
        // Another process takes the lock, as a keeper does. Perl's own
        // flock would lock the open file, not for the process.
        let script = r#"use Fcntl; my $lock = pack("s s x4 q q i x4", F_WRLCK, 0, 0, 0, 0);
            fcntl(STDOUT, F_SETLK, $lock) or die; print STDERR "locked\n"; <STDIN>"#;
        let mut child = Command::new("perl")
            .args(["-e", script])
            .stdin(Stdio::piped())
            .stdout(lock)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let mut said = [0; 7];
        io::Read::read_exact(child.stderr.as_mut().unwrap(), &mut said).unwrap();
        assert_eq!(&said, b"locked\n");
        assert_eq!(of(dir.path()), Liveness::Running(pid));
        assert_eq!(process(dir.path()).unwrap().unwrap().0, pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(of(dir.path()), Liveness::Ended);
        assert!(process(dir.path()).unwrap().is_none());
    }

    #[test]
    fn keeper_is_unknown_when_lock_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(LOCK)).unwrap();
        assert!(matches!(of(dir.path()), Liveness::Unknown(_)));
        assert!(process(dir.path()).is_err());
    }

    /// Keepers of earlier versions have recorded a process id, and hold no lock.
    #[test]
    fn process_id_shows_whether_keeper_is_alive_without_lock() {
        let dir = tempfile::tempdir().unwrap();
        note(dir.path(), std::process::id().try_into().unwrap()).unwrap();
        // This process is not a keeper.
        assert_eq!(of(dir.path()), Liveness::Ended);
        fs::write(dir.path().join(PID), "").unwrap();
        assert!(matches!(of(dir.path()), Liveness::Unknown(_)));
    }
}
