//! Checks whether criu is installed and works on this kernel.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use keeper::contract::criu::first_error;
use keeper::contract::plan::IsolationMode;
use tokio::{process::Command, time::timeout};

use crate::runtime::{Error, Runtime};

/// Timeout of `criu check`.
const CHECK: Duration = Duration::from_secs(20);
/// Directories searched for criu in addition to the daemon's `PATH`.
const SYSTEM: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

impl Runtime {
    /// The path of a working criu.
    pub(in crate::runtime) async fn criu(&self) -> Result<PathBuf, Error> {
        let isolation = self.config.isolation;
        let reason = if isolation.mode() == IsolationMode::Root {
            match working().await {
                Ok(program) => return Ok(program),
                Err(reason) => reason,
            }
        } else {
            format!("isolation is `{isolation}`, and criu needs root")
        };
        Err(Error::Unable(format!("checkpoints are unavailable: {reason}")))
    }
}

async fn working() -> Result<PathBuf, String> {
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

/// Runs `criu check`. The error is criu's own.
async fn check(program: &Path) -> Result<(), String> {
    let running =
        Command::new(program).arg("check").stdin(Stdio::null()).kill_on_drop(true).output();
    let output = match timeout(CHECK, running).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no answer within {} s", CHECK.as_secs())),
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(first_error(&said).unwrap_or_else(|| output.status.to_string()))
}
