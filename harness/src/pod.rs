//! A running pod sandbox: its id, its client, and its configuration.

use std::path::PathBuf;

use cri::v1;
use cri::v1::ContainerState;

use crate::client::{CallResult, Client};
use crate::cri_log;
use crate::eventually::{WAIT_LIMIT, WaitError, eventually, within};
use crate::fixture;

/// A running pod. Dropping it has no effect: the pod is removed with its runtime, or by CRI calls.
#[derive(Debug, Clone)]
pub struct Pod {
    /// The sandbox's id.
    pub id: String,
    /// The sandbox's configuration.
    pub config: v1::PodSandboxConfig,
    /// A client of the pod's runtime.
    pub client: Client,
}

impl Pod {
    /// Runs a sandbox.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn run(client: &Client, config: v1::PodSandboxConfig) -> CallResult<Self> {
        Ok(Self { id: client.run_pod(config.clone()).await?, config, client: client.clone() })
    }

    /// The configuration of a container that runs a shell script in this pod. Does not create it.
    #[must_use]
    pub fn script(&self, name: &str, text: &str) -> v1::ContainerConfig {
        fixture::script(name, text)
    }

    /// Creates a container.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn create(&self, config: v1::ContainerConfig) -> CallResult<String> {
        self.client.create(&self.id, config, self.config.clone()).await
    }

    /// Creates and starts a container.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn start(&self, config: v1::ContainerConfig) -> CallResult<String> {
        let id = self.create(config).await?;
        self.client.start(&id).await?;
        Ok(id)
    }

    /// Creates and starts a container, and waits until it logs `ready`.
    ///
    /// # Errors
    /// The runtime's.
    ///
    /// # Panics
    /// If it does not log `ready` within [`WAIT_LIMIT`].
    pub async fn start_ready(&self, config: v1::ContainerConfig) -> CallResult<String> {
        let id = self.start(config).await?;
        match self.logged(&id, "ready").await {
            Ok(_) => Ok(id),
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits until the sandbox is ready and every container in it runs.
    ///
    /// # Errors
    /// With the last observation.
    pub async fn ready(&self) -> Result<(), WaitError> {
        let what = format!("pod {} to be ready", self.id);
        within(WAIT_LIMIT, &what, async || {
            let ready = self.client.pod_is_ready(&self.id).await;
            let containers = self.client.containers(v1::ContainerFilter {
                pod_sandbox_id: self.id.clone(),
                ..Default::default()
            });
            match (ready, containers.await) {
                (Ok(true), Ok(all))
                    if all.iter().all(|c| c.state() == ContainerState::ContainerRunning) =>
                {
                    Ok(())
                }
                seen => Err(seen),
            }
        })
        .await
    }

    /// Waits until a container exits.
    ///
    /// # Errors
    /// The runtime's.
    ///
    /// # Panics
    /// If it runs for longer than [`WAIT_LIMIT`].
    pub async fn ended(&self, id: &str) -> CallResult<v1::ContainerStatus> {
        eventually(WAIT_LIMIT, &format!("the end of container {id}"), async || {
            match self.client.container(id).await {
                Ok(status) if status.state() != ContainerState::ContainerExited => Err(status),
                result => Ok(result),
            }
        })
        .await
    }

    /// Runs a container until it exits successfully, and returns its standard output.
    ///
    /// # Errors
    /// The runtime's, or the container's failure.
    pub async fn output(&self, config: v1::ContainerConfig) -> CallResult<String> {
        let id = self.start(config).await?;
        let status = self.ended(&id).await?;
        let text = |stream| {
            let lines = self.log(&status).into_iter().filter(|line| line.stream == stream);
            lines.map(|line| line.text + "\n").collect::<String>()
        };
        if status.exit_code != 0 {
            let wrote = text(cri_log::Stream::Stderr);
            return Err(tonic::Status::unknown(format!(
                "container {id} ended with {} ({} {}): {wrote}",
                status.exit_code, status.reason, status.message
            )));
        }
        Ok(text(cri_log::Stream::Stdout))
    }

    /// Waits until a container logs a line, and returns all lines so far.
    ///
    /// A script that sets a trap should log a line after it: until then its shell, the first process of a PID namespace, ignores
    /// SIGTERM.
    ///
    /// # Errors
    /// With the last observation.
    pub async fn logged(&self, id: &str, line: &str) -> Result<Vec<String>, WaitError> {
        let what = format!("the line {line:?} of container {id}");
        within(WAIT_LIMIT, &what, async || {
            let status = self.client.container(id).await.map_err(|e| (Some(e), None))?;
            let lines: Vec<_> = self.log(&status).into_iter().map(|line| line.text).collect();
            match lines.iter().any(|have| have == line) {
                true => Ok(lines),
                false => Err((None, Some((status, lines)))),
            }
        })
        .await
    }

    /// The current lines of a container's log file; empty if the file does not exist.
    #[must_use]
    pub fn log(&self, status: &v1::ContainerStatus) -> Vec<cri_log::Line> {
        cri_log::lines(&std::fs::read(&status.log_path).unwrap_or_default())
    }

    /// The directory of the pod's log files.
    #[must_use]
    pub fn log_directory(&self) -> PathBuf {
        PathBuf::from(&self.config.log_directory)
    }
}
