//! Keepers of a killed runtime, which end their pods when the runtime ends. As a child subreaper, this process reaps them and waits
//! for them, so that no file in use is removed, and no process outlives the command.

use std::time::Duration;

use crib_base::report::print_stderr;
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

/// The timeout for keepers to end their pods; after it, they are killed, and the same timeout applies again.
const LONGEST_END: Duration = Duration::from_secs(10);

/// Makes this process the subreaper of its descendants (prctl(2), PR_SET_CHILD_SUBREAPER).
pub fn adopt() {
    if let Err(errno) = set_child_subreaper(true) {
        print_stderr(&format!("failed to become a child subreaper: {errno}"));
    }
}

/// Waits until this process has no children; kills them after a timeout. Waits for any child, so it must be called after the
/// runtime was waited for, and when no other process is started.
pub(crate) async fn end() {
    if exited_in_time().await {
        return;
    }
    // Killing a process may reparent its children to this process.
    let children = children();
    print_stderr(&format!(
        "processes of pods did not end within {} s and are killed: {children:?}",
        LONGEST_END.as_secs()
    ));
    for pid in children {
        // A process that has just exited needs no signal.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    if !exited_in_time().await {
        print_stderr(&format!("processes of pods still exist: {:?}", self::children()));
    }
}

/// Waits until no child is left; false on timeout.
async fn exited_in_time() -> bool {
    let all = tasks::spawn_blocking(|| {
        loop {
            match waitpid(None, None) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    });
    tokio::time::timeout(LONGEST_END, all).await.is_ok()
}

/// The process ids of this process's children.
fn children() -> Vec<i32> {
    let own = std::process::id().to_string();
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        parent(&stat).is_some_and(|parent| parent == own)
    })
    .collect()
}

/// The parent's id in a stat file (proc_pid_stat(5)). The process name before it may contain any character, including parentheses.
fn parent(stat: &str) -> Option<&str> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("12 (sh) S 7 12 12 0", Some("7"))]
    #[case("12 (a) S 1 (b) x) R 7 12", Some("7"))]
    #[case("", None)]
    fn parent_pid_is_read_from_stat(#[case] stat: &str, #[case] parent_id: Option<&str>) {
        assert_eq!(parent(stat), parent_id);
    }
}
