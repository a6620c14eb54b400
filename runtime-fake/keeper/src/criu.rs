//! criu, which freezes processes, writes them to files and makes them again (<https://criu.org>): where it is, whether it
//! works here, and how it is asked.

#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod mounts;
mod rpc;

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

pub use rpc::{Dump, DumpError, dump};

/// How long criu may take to look at the kernel.
const CHECK: Duration = Duration::from_secs(20);
/// Where criu is looked for besides the daemon's `PATH`.
const SYSTEM: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// A criu that works here, or why there is none.
pub async fn working() -> Result<PathBuf, String> {
    let Some(program) = find() else {
        return Err("criu is not installed: on Debian, apt-get install criu".to_owned());
    };
    match check(&program).await {
        Ok(()) => Ok(program),
        Err(reason) => Err(format!(
            "{} does not work on this kernel (criu check): {reason}",
            program.display()
        )),
    }
}

fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM.map(PathBuf::from))
        .map(|directory| directory.join("criu"))
        .find(|program| program.is_absolute() && program.is_file())
}

/// Asks criu whether this kernel will do. The error is its own.
async fn check(program: &Path) -> Result<(), String> {
    let running = tokio::process::Command::new(program)
        .arg("check")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = match tokio::time::timeout(CHECK, running).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no answer within {} s", CHECK.as_secs())),
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(complaint(&said).unwrap_or_else(|| output.status.to_string()))
}

/// Errors that criu goes on after, and those that say only that it gave up.
const NO_REASON: [&str; 3] = ["rlimit: Can't setup", "Dumping FAILED", "Restoring FAILED"];

/// The first error in what criu wrote: the later ones are of those that had to give up because of it.
fn complaint(log: &str) -> Option<String> {
    // `(00.012345) Error (criu/mount.c:123): mnt: Can't …`: whose source line it is helps those who ask criu's people.
    let errors = log.lines().filter_map(|line| {
        let (_, rest) = line.split_once("Error ")?;
        Some(rest.trim())
    });
    let mut reasons = errors.filter(|error| !NO_REASON.iter().any(|no| error.contains(no)));
    reasons.find(|error| !error.is_empty()).map(str::to_owned)
}

/// The first error in a log file of criu's.
pub fn complaint_in(log: &Path) -> Option<String> {
    let bytes = std::fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(20)..].join("\n");
    tracing::info!(log = %last, "criu gave up");
    complaint(&text)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing("", None)]
    #[case::no_error("(00.1) Running pre-dump scripts\n", None)]
    #[case::the_first(
        "(00.1) Warn  (a.c:1): x\n(00.2)     1: Error (b.c:2): y\n(00.3) Error (c.c:3): z",
        Some("(b.c:2): y")
    )]
    #[case::one_that_matters(
        "Error (u.c:1): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\nError (d.c:2): tty: no\nError (d.c:3): Dumping FAILED.",
        Some("(d.c:2): tty: no")
    )]
    #[case::just_the_end("Error (d.c:3): Dumping FAILED.", None)]
    fn what_criu_did_not_like(#[case] log: &str, #[case] expected: Option<&str>) {
        assert_eq!(complaint(log).as_deref(), expected);
    }
}
