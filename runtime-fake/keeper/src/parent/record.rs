//! Writes exit records for the daemon, and reads the keeper's children from `/proc`.

use crate::contract::protocol::{Exit, exit_record};
use crate::parent::exec_processes;

/// Writes a container's exit record.
pub(crate) fn exit(directory: &std::path::Path, id: &str, exit: &Exit) -> std::io::Result<()> {
    let path = exit_record(directory, id);
    let temporary = path.with_extension("exit.tmp");
    std::fs::write(&temporary, serde_json::to_vec(exit)?)?;
    std::fs::rename(&temporary, &path)
}

/// The children of this process, from `/proc`.
pub(crate) fn children(own: i32) -> Vec<i32> {
    if let Ok(text) = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")) {
        return text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    }
    // Kernels without CONFIG_PROC_CHILDREN.
    exec_processes::processes().filter(|pid| exec_processes::parent(*pid) == Some(own)).collect()
}
