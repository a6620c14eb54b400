//! Wraps a runtime's command, so that it starts in another environment than the test's.

use std::path::{Path, PathBuf};
use std::process::Command;

/// `program` as the last argument of `command`.
pub(super) fn onto(mut command: Command, program: PathBuf) -> Command {
    command.arg(program);
    command
}

/// `program` with a file open as descriptor 9.
pub(super) fn with_descriptor(file: &Path, program: PathBuf) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"exec 9<"$0" && exec "$@""#]).arg(file);
    onto(shell, program)
}

/// `program` in the network namespace at `path`; only root can enter it.
pub(super) fn in_network(path: &Path, program: PathBuf) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", path.display()));
    onto(command, program)
}
