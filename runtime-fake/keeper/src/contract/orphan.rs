//! Orphans: first processes of containers that outlive their keeper.
//!
//! When a keeper is killed, the parent-death signal kills its containers. The kernel clears that signal when a process
//! changes its user, as many entry points do, or runs a set-user-ID program. So keepers record the identities of
//! first processes.

use std::{fs, path::Path, sync::OnceLock};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

/// The file in a container's directory that names its first process.
const FILE: &str = "process";

/// Identifies a process uniquely, even if its pid is reused.
fn identity(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(format!("{pid} {} {}\n", started(&stat)?, boot()?))
}

/// The name of this boot of the kernel.
pub(crate) fn boot() -> Option<&'static str> {
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(known) = BOOT.get() {
        return Some(known);
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(BOOT.get_or_init(|| boot.trim().to_owned()))
}

/// When a process started, from `/proc/PID/stat`: the 22nd field. The second one is a name in parentheses that may
/// contain any character.
fn started(stat: &str) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)
}

/// Records the first process of the container in `directory`.
pub fn note(directory: &Path, pid: i32) -> std::io::Result<()> {
    match identity(pid) {
        Some(identity) => fs::write(directory.join(FILE), identity),
        // The process has exited; its keeper reports that.
        None => Ok(()),
    }
}

/// The recorded process of the container in `directory`, if it is still running.
fn running_in(directory: &Path) -> Option<i32> {
    let noted = fs::read_to_string(directory.join(FILE)).ok()?;
    let pid = noted.split(' ').next()?.parse().ok()?;
    (identity(pid)? == noted).then_some(pid)
}

/// Whether the recorded process of the container in `directory` may still be running.
pub fn may_be_running(directory: &Path) -> bool {
    match fs::metadata(directory.join(FILE)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(_) => true,
        Ok(_) => running_in(directory).is_some(),
    }
}

/// The first processes of the containers of `state_dir` that are still running.
pub fn running(state_dir: &Path) -> Vec<i32> {
    let entries = |directory| fs::read_dir(directory).into_iter().flatten().flatten();
    entries(state_dir.join("sandboxes"))
        .flat_map(|sandbox| entries(sandbox.path().join("containers")))
        .filter_map(|container| running_in(&container.path()))
        .collect()
}

/// Kills the recorded process, if it is still running, and with it its process namespace.
pub fn kill(directory: &Path) {
    let Some(pid) = running_in(directory).and_then(Pid::from_raw) else {
        return;
    };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    // It may have exited before pidfd_open, and its pid may have been reused.
    if running_in(directory).is_some() {
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = pidfd_send_signal(&process, Signal::KILL);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("1 (sh) S 0 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 1 2", Some("777"))]
    #[case::a_name_of_parentheses(
        "1 (a) (b)) S 0 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 778 1",
        Some("778")
    )]
    #[case::cut("1 (sh) S 0", None)]
    fn stat_yields_start_time(#[case] stat: &str, #[case] expected: Option<&str>) {
        assert_eq!(started(stat), expected);
    }

    #[test]
    fn kill_spares_processes_not_on_record() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // No record, an invalid one, and one of another process with the same pid.
        kill(dir.path());
        for other in ["", "x y z\n", &format!("{pid} 1 other\n")] {
            fs::write(dir.path().join(FILE), other).unwrap();
            kill(dir.path());
        }
        assert!(child.try_wait().unwrap().is_none());
        note(dir.path(), pid).unwrap();
        kill(dir.path());
        assert!(!child.wait().unwrap().success());
    }
}
