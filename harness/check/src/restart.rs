//! Restarts of the checked runtime, for rules of state that survives a restart.

use std::fmt;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;

/// The future of a restart; its error is the reason why the runtime was not restarted.
type Restarting = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Restarts the runtime. Returns once the old process has exited, so that only the new process responds.
#[derive(Clone)]
pub struct Restart {
    run: Arc<dyn Fn() -> Restarting + Send + Sync>,
    line: Option<String>,
}

impl fmt::Debug for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Restart")
    }
}

impl Restart {
    /// Restarts with a function, as in tests whose child process is the runtime.
    pub fn new<Running>(restart: impl Fn() -> Running + Send + Sync + 'static) -> Self
    where
        Running: Future<Output = Result<(), String>> + Send + 'static,
    {
        Self { run: Arc::new(move || Box::pin(restart())), line: None }
    }

    /// Restarts with a command line for `/bin/sh`, such as `systemctl restart containerd`. Standard input is empty, standard output
    /// is discarded, and standard error is inherited.
    #[must_use]
    pub fn command(line: &str) -> Self {
        let command = line.to_owned();
        Self { line: Some(line.to_owned()), ..Self::new(move || run(command.clone())) }
    }

    /// The command line, if the restart has one.
    pub(crate) fn line(&self) -> Option<&str> {
        self.line.as_deref()
    }

    pub(crate) async fn run(&self) -> Result<(), String> {
        (self.run)().await
    }
}

async fn run(line: String) -> Result<(), String> {
    let ended = tokio::process::Command::new("/bin/sh")
        .args(["-c", &line])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await;
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{line:?} ended with {status}")),
        Err(error) => Err(format!("failed to run {line:?} with /bin/sh: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failed_restart_command_is_reported_with_its_status() {
        assert_eq!(Restart::command("exit 0").run().await, Ok(()));
        let failed = Restart::command("exit 3").run().await;
        assert_eq!(failed, Err("\"exit 3\" ended with exit status: 3".to_owned()));
    }
}
