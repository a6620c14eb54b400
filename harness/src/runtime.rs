//! Starts a `crib runtime` for one test, in its own directory, and stops it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use cri::v1;
use nix::sys::signal::Signal;
use proxy::{ParseRulesError, Proxy, RuleSet};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::unix::pipe;

use crate::binary::NoBinary;
use crate::client::{CallResult, Client};
use crate::events::Events;
use crate::fixture;
use crate::leak::{Leak, Leaks};
use crate::pod::Pod;
use crate::process::Process;

mod disk;
mod options;
mod starting;

pub use options::Options;
pub use starting::Starting;

use disk::Disk;
use starting::Faulty;

/// The time limit for a runtime to start or to exit.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// The time limit for a runtime to delete the remains of a test: a container may have created many files.
const REMOVAL: Duration = Duration::from_secs(300);

/// The longest path of a unix socket: `sun_path` has 108 bytes, including the final NUL (unix(7)).
const LONGEST_SOCKET_PATH: usize = 107;

/// The path of a runtime's socket in the directory of temporary files would be too long.
#[derive(Debug, thiserror::Error)]
#[error(
    "the path of the runtime's socket would be {socket} and have {} bytes, but a unix socket path can have at most {LONGEST_SOCKET_PATH}; set TMPDIR to a directory with a shorter path",
    .socket.as_os_str().len()
)]
pub struct LongSocketPath {
    socket: PathBuf,
}

/// Checks the length of a socket's path, which a runtime would reject without naming `TMPDIR`.
///
/// # Errors
/// If it is too long.
pub fn check_socket_path(socket: &Path) -> Result<(), LongSocketPath> {
    match socket.as_os_str().len() <= LONGEST_SOCKET_PATH {
        true => Ok(()),
        false => Err(LongSocketPath { socket: socket.to_owned() }),
    }
}

/// Why the runtime for the test failed to start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No `crib` command was found.
    #[error(transparent)]
    NoBinary(#[from] NoBinary),
    /// A system call failed.
    #[error("failed to {doing}")]
    Io {
        /// The failed operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The path of its socket would be too long.
    #[error(transparent)]
    LongSocket(#[from] LongSocketPath),
    /// The runtime exited, or its first line was not the expected one.
    #[error("the runtime did not start ({status}): {log}")]
    Ended {
        /// Its exit status.
        status: String,
        /// Its output.
        log: String,
    },
    /// One of the rules for its faults is invalid.
    #[error("invalid faults")]
    BadFaults(#[from] ParseRulesError),
    /// The tests' image cannot be pulled.
    #[error("failed to pull {}", fixture::image())]
    NoImage(#[source] Box<tonic::Status>),
}

fn io(doing: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::Io { doing, source }
}

/// A runtime. Dropping it stops it and everything that it runs, removes its directory, and panics if anything is left.
#[derive(Debug)]
pub struct Runtime {
    /// A client of the runtime.
    pub client: Client,
    /// The test's directory.
    root: PathBuf,
    daemon: Option<Daemon>,
    /// The proxy between the runtime and its clients, if it has faults.
    faulty: Option<Faulty>,
    options: Options,
}

#[derive(Debug)]
struct Daemon {
    process: Process,
    /// The daemon of an ephemeral runtime exits when this is closed, so that it also ends if the test is killed.
    stdin: Option<ChildStdin>,
}

impl Runtime {
    /// A runtime whose pods end with it. It starts when the returned value is awaited, with the errors of [`Options::start`].
    ///
    /// A test of a client can give it a runtime with faults:
    ///
    /// ```no_run
    /// use harness::Runtime;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::start().with_faults(["ContainerStatus after 2 answer UNAVAILABLE"]).await?;
    /// let endpoint = runtime.socket(); // for the client
    /// # Ok(())
    /// # }
    /// ```
    pub fn start() -> Starting {
        Starting::default()
    }

    /// Options for a runtime that differs from the default.
    #[must_use]
    pub fn with() -> Options {
        Options::default()
    }

    /// The test's directory, which contains all other ones.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.root.clone()
    }

    /// Puts a proxy with rules between the runtime and its clients, [`Self::client`] among them.
    fn behind_proxy(mut self, rules: RuleSet) -> Result<Self, StartError> {
        let faulty = Faulty::start(&self.direct_socket(), rules)?;
        self.client = Client::new(faulty.proxy.socket());
        self.faulty = Some(faulty);
        Ok(self)
    }

    /// The proxy in front of a runtime with faults: it records the clients' calls, and can enable and disable its rules.
    #[must_use]
    pub fn proxy(&self) -> Option<&Proxy> {
        self.faulty.as_ref().map(|faulty| &faulty.proxy)
    }

    /// Its socket; with faults, the socket of the proxy in front of it.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        match self.proxy() {
            Some(proxy) => proxy.socket().to_owned(),
            None => self.direct_socket(),
        }
    }

    /// Its own socket, without faults.
    #[must_use]
    pub fn direct_socket(&self) -> PathBuf {
        self.root.join("r.sock")
    }

    /// Its state directory.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.root().join("state")
    }

    /// The daemon's process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.daemon.as_ref().map(|daemon| daemon.process.pid())
    }

    /// The finder of its leaks.
    #[must_use]
    pub fn leaks(&self) -> Leaks {
        Leaks::below(&self.root()).with_state_dir(&self.state_dir())
    }

    /// The daemon's log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.root().join("runtime.log")).unwrap_or_default()
    }

    /// The isolation in the verbose Status (`root`, `rootless (65536 ids)`, `process`); empty if Status has none.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn isolation(&self) -> CallResult<String> {
        Ok(self.client.status().await?.info.remove("isolation").unwrap_or_default())
    }

    /// The configuration of a pod with a log directory below the test's.
    #[must_use]
    pub fn sandbox(&self, name: &str) -> v1::PodSandboxConfig {
        let mut config = fixture::sandbox(name);
        let directory = self.root().join("logs").join(fixture::unique("pod"));
        config.log_directory = directory.display().to_string();
        config
    }

    /// Subscribes to the runtime's events.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn events(&self) -> CallResult<Events> {
        Events::subscribe(&self.client).await
    }

    /// Runs a pod.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn pod(&self, name: &str) -> CallResult<Pod> {
        Pod::run(&self.client, self.sandbox(name)).await
    }

    /// Kills the daemon with SIGKILL and waits for its exit. Pods of a durable daemon keep running.
    pub async fn kill9(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.process.signal(Signal::SIGKILL);
            daemon.process.wait(WAIT_LIMIT).await;
        }
    }

    /// Kills the daemon with SIGKILL and starts it again.
    ///
    /// # Errors
    /// See [`Options::start`].
    pub async fn kill_and_restart(&mut self) -> Result<(), StartError> {
        self.kill9().await;
        self.launch().await
    }

    /// Stops the daemon gracefully. Pods of a durable daemon keep running. Returns `None` if it does not exit, or had already
    /// exited.
    pub async fn stop(&mut self) -> Option<ExitStatus> {
        let mut daemon = self.daemon.take()?;
        daemon.request_stop();
        daemon.process.wait(WAIT_LIMIT).await
    }

    /// Restarts the daemon; a running one is stopped gracefully first.
    ///
    /// # Errors
    /// See [`Options::start`].
    pub async fn restart(&mut self) -> Result<(), StartError> {
        self.stop().await;
        self.launch().await
    }

    async fn launch(&mut self) -> Result<(), StartError> {
        let mut command = self.command("r.sock", self.options.disk.as_ref())?;
        command.stdout(Stdio::piped());
        command.stdin(if self.options.durable { Stdio::null() } else { Stdio::piped() });
        if !self.options.durable {
            command.arg("--until-stdin-closes");
        }
        for archive in &self.options.archives {
            command.arg("--image-archive").arg(archive);
        }
        if let Some(text) = &self.options.config {
            let path = self.root().join("config.yaml");
            fs::write(&path, text).map_err(io("write the runtime's configuration"))?;
            command.arg("--config").arg(path);
        }
        command.args(&self.options.arguments);
        command.envs(self.options.environment.iter().cloned());
        let mut process = Process::spawn(&mut command).map_err(io("start the runtime"))?;
        let stdin = process.take_stdin();
        let stdout = process.take_stdout();
        self.daemon = Some(Daemon { process, stdin });
        let stdout = stdout
            .ok_or_else(|| io("read the runtime's output")(io::ErrorKind::BrokenPipe.into()))?;
        let stdout = pipe::Receiver::from_owned_fd(stdout.into())
            .map_err(io("read the runtime's output"))?;
        let mut line = String::new();
        let read =
            tokio::time::timeout(WAIT_LIMIT, BufReader::new(stdout).read_line(&mut line)).await;
        if !matches!(read, Ok(Ok(_))) || !line.starts_with("listening on unix://") {
            let ended = match &mut self.daemon {
                Some(daemon) => daemon.process.wait(Duration::from_secs(1)).await,
                None => None,
            };
            return Err(StartError::Ended {
                status: ended.map_or_else(|| "it runs".to_owned(), |status| status.to_string()),
                log: line + &self.log(),
            });
        }
        self.client = Client::new(&self.socket());
        Ok(())
    }

    fn command(&self, socket: &str, disk: Option<&Disk>) -> Result<Command, StartError> {
        let root = self.root();
        let log = File::options()
            .create(true)
            .append(true)
            .open(root.join("runtime.log"))
            .map_err(io("open the runtime's log"))?;
        let crib = self.options.crib()?;
        let options = &self.options;
        let mut command = match (&options.netns, &options.descriptor, disk) {
            (None, None, None) => Command::new(crib),
            (None, _, Some(disk)) => {
                let directory = self.state_dir();
                fs::create_dir_all(&directory).map_err(io("make the state directory"))?;
                starting::onto(disk.around(&directory), crib)
            }
            (None, Some(path), None) => starting::with_descriptor(path, crib),
            (Some(path), ..) => starting::in_network(path, crib),
        };
        command.arg("runtime");
        command.arg("--listen").arg(format!("unix://{}", root.join(socket).display()));
        command.arg("--state-dir").arg(self.state_dir());
        if let Some(isolation) = &self.options.isolation {
            command.args(["--isolation", isolation]);
        }
        if let Some((uid, gid)) = self.options.user {
            command.uid(uid).gid(gid);
        }
        command.current_dir("/").stderr(log);
        Ok(command)
    }

    fn open_to_user(&self) -> Result<(), StartError> {
        let root = self.root();
        let doing = "give the test's directory to its user";
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).map_err(io(doing))?;
        if let Some((uid, gid)) = self.options.user {
            chown(&root, Some(uid), Some(gid)).map_err(io(doing))?;
        }
        Ok(())
    }

    /// Stops everything, and returns the errors.
    fn end(&mut self) -> Vec<String> {
        self.faulty = None;
        let root = self.root.clone();
        let mut problems = Vec::new();
        if let Some(mut daemon) = self.daemon.take() {
            daemon.request_stop();
            if daemon.process.wait_blocking(REMOVAL).is_none() {
                problems.push("the runtime did not exit after SIGTERM".to_owned());
            }
        }
        if let Err(problem) = self.sweep(&root) {
            problems.push(problem);
        }
        // The directory is empty now. Another user may not be allowed to remove it from its parent directory.
        let _ = fs::remove_dir(&root);
        let leaks = self.leaks().check();
        problems.extend(leaks.iter().map(|leak| format!("left: {leak}")));
        // The host must be clean for the next test in any case.
        for leak in leaks {
            if let Leak::Process { process, .. } = leak {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(process.pid),
                    Signal::SIGKILL,
                );
            }
        }
        if root.exists() {
            problems.push(format!("the end of the runtime's log: {}", self.log()));
        }
        let _ = file_tree::remove(&root);
        problems
    }

    /// Starts a last runtime, which removes what is left: only a runtime can remove files of subordinate ids.
    fn sweep(&self, root: &Path) -> Result<(), String> {
        // It does not use the small disk, which no longer exists.
        let mut command = self.command("s.sock", None).map_err(|e| e.to_string())?;
        command.arg("--until-stdin-closes").arg("--remove-at-end").arg(root);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut sweeper = Process::spawn(&mut command).map_err(|error| error.to_string())?;
        match sweeper.wait_blocking(REMOVAL) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("removing everything failed ({status}): {}", self.log())),
            None => Err("removing everything did not come to an end".to_owned()),
        }
    }
}

impl Daemon {
    fn request_stop(&mut self) {
        if self.stdin.take().is_none() {
            self.process.signal(Signal::SIGTERM);
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        let log = self.log();
        let problems = self.end();
        if failed {
            let text = format!("the runtime's log:\n{log}\n{}\n", problems.join("\n"));
            let _ = io::Write::write_all(&mut io::stderr(), text.as_bytes());
        } else {
            assert!(problems.is_empty(), "{}\nthe runtime's log:\n{log}", problems.join("\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn socket_path_over_107_bytes_is_an_error_that_names_tmpdir() {
        let of_length = |length: usize| PathBuf::from(format!("/{}", "s".repeat(length - 1)));
        check_socket_path(&of_length(107)).unwrap();
        let error = check_socket_path(&of_length(108)).unwrap_err().to_string();
        assert!(error.contains("have 108 bytes"), "{error}");
        assert!(error.contains("at most 107; set TMPDIR to a directory"), "{error}");
    }
}
