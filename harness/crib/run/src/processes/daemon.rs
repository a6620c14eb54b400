//! The runtime as a child process of `crib run`. Closing its standard input ends it.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::error::Elapsed;

use crate::processes::root::{Root, last_lines};

/// The timeout until the runtime is ready.
const START: Duration = Duration::from_secs(30);
/// The timeout until the runtime has ended its pods and exited: a little longer than its own limit.
const STOP: Duration = Duration::from_secs(35);
/// The prefix of the line that the runtime prints when it is ready.
const READY: &str = "listening on ";
/// The line that the runtime prints when all pods have ended and it removes their resources.
pub const REMOVING: &str = "removing what is left";

/// The options of the runtime.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The directory of this run.
    pub(crate) root: Root,
    /// The runtime's state directory.
    pub(crate) state_dir: PathBuf,
    /// The value of `--isolation`.
    pub(crate) isolation: String,
    /// Values of `--image-archive`.
    pub(crate) image_archives: Vec<PathBuf>,
    /// Whether the runtime outlives this process.
    pub(crate) keep: bool,
    /// The directory where other commands find the runtime.
    pub(crate) live_dir: PathBuf,
}

/// Why the runtime is not ready, or did not exit cleanly.
#[derive(Debug, Error)]
pub(crate) enum DaemonError {
    /// The program could not be executed.
    #[error("failed to start the runtime")]
    Spawn(#[source] io::Error),
    /// It exited before it was ready.
    #[error("the runtime could not start ({status}){}", log_suffix(.log))]
    Ended {
        /// Its exit status.
        status: ExitStatus,
        /// Its last lines.
        log: Vec<String>,
    },
    /// It exited with an error after it was asked to end.
    #[error("the runtime did not shut down cleanly ({status}){}", log_suffix(.log))]
    Unclean {
        /// Its exit status.
        status: ExitStatus,
        /// Its last lines.
        log: Vec<String>,
    },
    /// It was not ready in time.
    #[error("the runtime did not start within {} s{}", START.as_secs(), log_suffix(.log))]
    Silent {
        /// Its last lines.
        log: Vec<String>,
    },
    /// It did not exit in time and was killed.
    #[error("the runtime did not end within {} s and was killed{}", STOP.as_secs(), log_suffix(.log))]
    Hung {
        /// Its last lines.
        log: Vec<String>,
    },
    /// A further signal interrupted the wait.
    #[error("the runtime was killed before it had ended the pods")]
    GivenUp,
    /// Waiting for the process failed.
    #[error("failed to wait for the runtime")]
    Wait(#[source] io::Error),
}

/// The last lines of a log as the end of a message.
fn log_suffix(log: &[String]) -> String {
    log.iter().map(|line| format!("\n  {line}")).collect()
}

/// A runtime that is ready. When this process ends, the runtime's standard input closes, and it removes its pods and the directory
/// of this run, unless [`Launch::keep`] is set.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    /// Held here, because waiting for a child closes the child's own handle.
    stdin: Option<ChildStdin>,
    log: File,
    /// Held so that the runtime can write to it.
    stdout: BufReader<ChildStdout>,
}

impl Daemon {
    /// Starts a runtime; its standard error goes to `log`.
    pub(crate) fn spawn(launch: &Launch, log: File) -> Result<Self, DaemonError> {
        let stderr = log.try_clone().map_err(DaemonError::Spawn)?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("crib")
            .args(arguments(launch))
            .stdout(Stdio::piped())
            .stderr(stderr)
            .current_dir("/");
        if launch.keep {
            // The runtime calls setsid, which fails for a process group leader.
            command.stdin(Stdio::null());
        } else {
            // Ctrl-C at the terminal signals only this process, which then ends the runtime in order.
            command.stdin(Stdio::piped()).process_group(0);
        }
        let mut child = command.spawn().map_err(DaemonError::Spawn)?;
        let Some(stdout) = child.stdout.take() else {
            return Err(DaemonError::Spawn(io::Error::other("its standard output is not a pipe")));
        };
        Ok(Self { stdin: child.stdin.take(), child, log, stdout: BufReader::new(stdout) })
    }

    /// Waits until the runtime is ready. Must not be called again after cancellation.
    pub(crate) async fn ready(&mut self) -> Result<(), DaemonError> {
        let mut line = String::new();
        match tokio::time::timeout(START, self.stdout.read_line(&mut line)).await {
            Ok(Ok(_)) if line.starts_with(READY) => Ok(()),
            Ok(_) => {
                drop(self.stdin.take());
                let status = self.child.wait().await.map_err(DaemonError::Wait)?;
                Err(DaemonError::Ended { status, log: last_lines(&self.log, 10) })
            }
            Err(_) => {
                self.child.kill().await.map_err(DaemonError::Wait)?;
                Err(DaemonError::Silent { log: last_lines(&self.log, 10) })
            }
        }
    }

    /// The process id; `None` after the process was waited for.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Returns a message with the status and the last lines when the runtime has exited. Cancel-safe.
    pub(crate) async fn ended(&mut self) -> String {
        let status = match self.child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        format!(
            "the runtime exited unexpectedly ({status}){}",
            log_suffix(&last_lines(&self.log, 10))
        )
    }

    /// Waits for the runtime to exit. The timeout applies until all pods have ended; removing their resources may take any time.
    async fn end(&mut self) -> Result<io::Result<ExitStatus>, Elapsed> {
        let removing = async {
            let mut line = String::new();
            while self.stdout.read_line(&mut line).await.is_ok_and(|n| n > 0) {
                if line.starts_with(REMOVING) {
                    return true;
                }
                line.clear();
            }
            false
        };
        if tokio::time::timeout(STOP, removing).await? {
            return Ok(self.child.wait().await);
        }
        tokio::time::timeout(STOP, self.child.wait()).await
    }

    /// Makes the runtime remove all pods and exit. Kills it after a timeout, or when `give_up` returns.
    pub(crate) async fn stop(
        mut self,
        give_up: impl Future<Output = ()>,
    ) -> Result<(), DaemonError> {
        if let Some(stdin) = self.stdin.take() {
            drop(stdin);
        } else if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // With `keep`, there is no pipe. The child was not waited for, so its id is still valid.
            kill(Pid::from_raw(pid), Signal::SIGTERM)
                .map_err(|errno| DaemonError::Wait(errno.into()))?;
        }
        let ended = tokio::select! {
            ended = self.end() => ended,
            () = give_up => {
                self.child.kill().await.map_err(DaemonError::Wait)?;
                return Err(DaemonError::GivenUp);
            }
        };
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(DaemonError::Unclean { status, log: last_lines(&self.log, 10) }),
            Ok(Err(error)) => Err(DaemonError::Wait(error)),
            Err(_) => {
                self.child.kill().await.map_err(DaemonError::Wait)?;
                Err(DaemonError::Hung { log: last_lines(&self.log, 10) })
            }
        }
    }
}

/// The runtime's arguments.
fn arguments(launch: &Launch) -> Vec<std::ffi::OsString> {
    let mut words = vec!["runtime".into(), "--listen".into(), launch.root.socket().into()];
    words.extend(["--state-dir".into(), launch.state_dir.clone().into()]);
    words.extend(["--isolation".into(), launch.isolation.clone().into()]);
    for archive in &launch.image_archives {
        words.extend(["--image-archive".into(), archive.clone().into()]);
    }
    words.extend(["--live-dir".into(), launch.live_dir.clone().into()]);
    words.push("--ephemeral".into());
    words.push(if launch.keep { "--own-session" } else { "--until-stdin-closes" }.into());
    words.extend(["--remove-at-end".into(), launch.root.path().into()]);
    words
}
