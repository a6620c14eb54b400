//! A node for one test: a runtime, and an agent that runs the pods of a directory of manifests on it.

mod pods;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::binary;
use crate::process::Process;
use crate::runtime::{Options, Runtime, StartError};

pub use pods::{ApplyError, FinishedPod};

const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// A runtime with an agent. Dropping it stops the agent first, then everything else.
#[derive(Debug)]
pub struct Node {
    // The order matters: fields are dropped from first to last.
    agent: Option<Process>,
    /// The runtime.
    pub runtime: Runtime,
}

impl Node {
    /// A node with an empty directory of manifests.
    ///
    /// # Errors
    /// See [`Options::start`].
    pub async fn start() -> Result<Self, StartError> {
        Self::start_with(Options::default()).await
    }

    /// A node whose runtime is started with `options`.
    ///
    /// # Errors
    /// See [`Options::start`].
    pub async fn start_with(options: Options) -> Result<Self, StartError> {
        let runtime = options.start().await?;
        let mut node = Self { agent: None, runtime };
        fs::create_dir_all(node.manifests()).map_err(io("make the directory of manifests"))?;
        node.start_agent()?;
        Ok(node)
    }

    /// The directory of manifests.
    #[must_use]
    pub fn manifests(&self) -> PathBuf {
        self.runtime.root().join("manifests")
    }

    /// The agent's root directory.
    #[must_use]
    pub fn agent_root(&self) -> PathBuf {
        self.runtime.root().join("agent")
    }

    /// Writes a file into the directory of manifests atomically.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write_manifest(&self, name: &str, manifest: &str) -> io::Result<()> {
        let draft = self.runtime.root().join("draft");
        fs::write(&draft, manifest)?;
        fs::rename(draft, self.manifests().join(name))
    }

    /// Removes a file from the directory of manifests.
    ///
    /// # Errors
    /// The kernel's.
    pub fn delete_manifest(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.manifests().join(name))
    }

    /// The agent's process id, while it runs.
    #[must_use]
    pub fn agent_pid(&self) -> Option<i32> {
        self.agent.as_ref().map(Process::pid)
    }

    /// The agent's log.
    #[must_use]
    pub fn agent_log(&self) -> String {
        fs::read_to_string(self.runtime.root().join("agent.log")).unwrap_or_default()
    }

    /// Kills the agent with SIGKILL. Its pods keep running.
    pub async fn kill9_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.signal(Signal::SIGKILL);
            agent.wait(WAIT_LIMIT).await;
        }
    }

    /// Stops the agent with SIGTERM. Its pods keep running. Returns `None` if it does not exit, or had already exited.
    pub async fn stop_agent(&mut self) -> Option<ExitStatus> {
        let mut agent = self.agent.take()?;
        agent.signal(Signal::SIGTERM);
        agent.wait(WAIT_LIMIT).await
    }

    /// Starts the agent; a running one is killed first.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_agent(&mut self) -> Result<(), StartError> {
        let socket = self.runtime.socket();
        self.start_agent_on(&socket)
    }

    /// Starts the agent with this socket as its runtime's, such as that of a [`Proxy`](proxy::Proxy); a running one is killed first.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_agent_on(&mut self, socket: &Path) -> Result<(), StartError> {
        let root = self.runtime.root();
        let log = File::options()
            .create(true)
            .append(true)
            .open(root.join("agent.log"))
            .map_err(io("open the agent's log"))?;
        let mut command = Command::new(binary::crib()?);
        command.arg("agent");
        command.arg("--runtime-endpoint").arg(format!("unix://{}", socket.display()));
        command.arg("--manifests").arg(self.manifests());
        command.arg("--root-dir").arg(self.agent_root());
        command.arg("--pod-logs-dir").arg(root.join("logs"));
        // A kubelet's default limit, 5 pulls a second after a burst of 10, protects registries; here it would delay pods.
        command.args(["--registry-qps", "0"]);
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.agent = None;
        self.agent = Some(Process::spawn(&mut command).map_err(io("start the agent"))?);
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = format!("the agent's log:\n{}\n", self.agent_log());
            let _ = io::Write::write_all(&mut io::stderr(), text.as_bytes());
        }
    }
}

fn io(doing: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::Io { doing, source }
}
