//! Finds and kills the keepers of a state directory, from its files and `/proc`.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use keeper::contract::liveness::{self, Liveness};
use network::PodNetns;

/// Timeout for a killed keeper to end: a keeper that does not end is stuck in the kernel.
const KILLED: Duration = Duration::from_secs(10);

/// The process ids of the keepers of an earlier daemon that still run. An error names the keeper whose state is
/// unknown.
pub(crate) fn running(state_dir: &Path) -> io::Result<Vec<i32>> {
    let place = state_dir.join("sandboxes");
    let said = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"))
    };
    let entries = match fs::read_dir(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(said(&place))?,
    };
    let mut running = Vec::new();
    for entry in entries {
        let path = entry.map_err(said(&place))?.path();
        match liveness::of(&path) {
            Liveness::Running(pid) => running.push(pid),
            Liveness::Ended => {}
            Liveness::Unknown(why) => return Err(said(&path)(io::Error::other(why))),
        }
    }
    Ok(running)
}

/// The network namespace of the pod in `sandbox_dir`, if the pod runs and has its own network namespace.
pub(crate) fn pod_netns(sandbox_dir: &Path) -> io::Result<Option<PodNetns>> {
    match liveness::process(sandbox_dir)? {
        Some((pid, keeper)) => PodNetns::open(pid, keeper),
        None => Ok(None),
    }
}

/// Kills the keeper in `sandbox_dir` and its pod, if it runs; returns when it has ended.
pub(crate) fn kill(sandbox_dir: &Path) -> io::Result<()> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use rustix::process::{Signal, pidfd_send_signal};
    let Some((pid, process)) = liveness::process(sandbox_dir)? else {
        return Ok(());
    };
    match pidfd_send_signal(&process, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => return Err(error.into()),
    }
    // A pidfd is readable when its process has ended.
    let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    let limit = PollTimeout::try_from(KILLED).unwrap_or(PollTimeout::MAX);
    match poll(&mut ended, limit)? {
        0 => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("process {pid} did not end within {KILLED:?} after SIGKILL"),
        )),
        _ => Ok(()),
    }
}

/// The namespace of an earlier daemon's bridge, from a keeper that holds it.
pub(crate) fn private_bridge_namespace(state_dir: &Path) -> Option<OwnedFd> {
    let directories = fs::read_dir(state_dir.join("sandboxes")).ok()?.flatten();
    let keepers = directories.filter_map(|entry| liveness::process(&entry.path()).ok()?);
    keepers.into_iter().find_map(|(pid, keeper)| {
        let of = |process: String| fs::read_link(format!("/proc/{process}/ns/net")).ok();
        let (pods, own) = (of(pid.to_string())?, of("self".to_owned())?);
        let held: Vec<PathBuf> =
            fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().map(|e| e.path()).collect();
        let bridge = held.into_iter().find(|path| {
            fs::read_link(path).is_ok_and(|link| {
                link.to_string_lossy().starts_with("net:[") && link != pods && link != own
            })
        })?;
        let opened = File::open(bridge).ok()?;
        // If the keeper still runs, the process id was its own throughout.
        let lives = !network::has_ended(&keeper).ok()?;
        lives.then(|| opened.into())
    })
}
