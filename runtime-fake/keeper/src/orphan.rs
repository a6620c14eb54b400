//! Orphans: first processes of containers that outlive their keeper.
//!
//! A keeper that is killed takes its containers along by their parent-death signal, which the kernel takes back from a
//! process that changes its user, as many an entry point does, or runs a set-user-ID program. Their identities are recorded.

use std::{fs, path::Path};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

/// The file in a container's directory that names its first process.
const FILE: &str = "process";

/// Names a process so that no other one is taken for it, also when its number is used again.
fn identity(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("{pid} {} {}\n", started(&stat)?, boot.trim()))
}

/// When a process was started, from `/proc/PID/stat`: the 22nd field, of which the second is a name in parentheses that
/// may hold anything.
fn started(stat: &str) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)
}

/// Puts the first process of the container in `directory` on record.
pub fn note(directory: &Path, pid: i32) -> std::io::Result<()> {
    match identity(pid) {
        Some(identity) => fs::write(directory.join(FILE), identity),
        // It has ended, which its keeper tells.
        None => Ok(()),
    }
}

/// The recorded process of the container in `directory`, if it still runs.
fn living_in(directory: &Path) -> Option<i32> {
    let noted = fs::read_to_string(directory.join(FILE)).ok()?;
    let pid = noted.split(' ').next()?.parse().ok()?;
    (identity(pid)? == noted).then_some(pid)
}

/// Whether the recorded process of the container in `directory` may still run.
pub fn may_live(directory: &Path) -> bool {
    match fs::metadata(directory.join(FILE)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(_) => true,
        Ok(_) => living_in(directory).is_some(),
    }
}

/// The first processes of the containers of `state_dir` that still run.
pub fn living(state_dir: &Path) -> Vec<i32> {
    let entries = |directory| fs::read_dir(directory).into_iter().flatten().flatten();
    entries(state_dir.join("sandboxes"))
        .flat_map(|sandbox| entries(sandbox.path().join("containers")))
        .filter_map(|container| living_in(&container.path()))
        .collect()
}

/// Kills the recorded process, if it still runs, and with it its process namespace.
pub fn kill(directory: &Path) {
    let Some(pid) = living_in(directory).and_then(Pid::from_raw) else {
        return;
    };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    // It may have ended, and its number gone to another one, before that.
    if living_in(directory).is_some() {
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
    #[case::plain(
        "1 (sh) S 0 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 1 2",
        Some("777")
    )]
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
        let mut child = Command::new("sleep")
            .arg("1000")
            .process_group(0)
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // Nothing noted, nonsense, and another process that had the same number.
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
