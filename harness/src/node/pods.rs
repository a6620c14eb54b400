//! The pods of a node by name, observed through the node's runtime.

use std::collections::HashMap;
use std::io;

use cri::v1::{self, ContainerState, PodSandboxState};
use serde::Deserialize;

use super::Node;
use crate::client::CallResult;
use crate::cri_log;
use crate::eventually::{WAIT_LIMIT, WaitError, within};

/// The label that the kubelet sets on the sandbox and the containers of a pod (Kubernetes 1.36, k8s.io/kubelet/pkg/types).
const POD_NAME: &str = "io.kubernetes.pod.name";

/// Why a manifest could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The manifest names no pod.
    #[error("the manifest has no metadata.name: {0}")]
    NoName(String),
    /// The file could not be written.
    #[error("failed to write the manifest of pod {name}")]
    Io {
        /// The pod.
        name: String,
        /// The cause.
        source: io::Error,
    },
}

/// A pod whose containers have all exited.
#[derive(Debug, Clone)]
pub struct FinishedPod {
    /// Its name.
    pub name: String,
    /// The last attempt of each container, including init containers.
    pub containers: Vec<v1::ContainerStatus>,
}

impl FinishedPod {
    /// The exit code of a container's last attempt.
    ///
    /// # Panics
    /// When the pod has no such container.
    #[must_use]
    pub fn exit_code(&self, container: &str) -> i32 {
        let named = |status: &&v1::ContainerStatus| name_of(status) == container;
        let Some(status) = self.containers.iter().find(named) else {
            let names: Vec<_> = self.containers.iter().map(name_of).collect();
            panic!("pod {} has no container {container}, only {}", self.name, names.join(", "));
        };
        status.exit_code
    }

    /// Whether every container exited with 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.containers.iter().all(|status| status.exit_code == 0)
    }
}

/// A pod in the runtime.
#[derive(Debug)]
struct ObservedPod {
    sandbox: Option<v1::PodSandbox>,
    /// The last attempt of each container.
    containers: Vec<v1::ContainerStatus>,
    /// The agent's log, if the runtime has no such pod: it may contain the reason.
    #[expect(dead_code, reason = "printed by a wait that fails")]
    agent_log: String,
}

#[derive(Deserialize)]
struct Manifest {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

fn name_of(status: &v1::ContainerStatus) -> &str {
    status.metadata.as_ref().map_or("", |m| &m.name)
}

impl Node {
    /// Writes the manifest of a pod; a manifest for the same name is replaced.
    ///
    /// # Errors
    /// When the manifest names no pod, or cannot be written.
    pub fn apply(&self, yaml: &str) -> Result<(), ApplyError> {
        let manifest: Manifest =
            serde_saphyr::from_str(yaml).map_err(|error| ApplyError::NoName(error.to_string()))?;
        let name = manifest.metadata.name;
        self.write_manifest(&format!("{name}.yaml"), yaml)
            .map_err(|source| ApplyError::Io { name, source })
    }

    /// Deletes the manifest of a pod that was [applied](Self::apply), and waits until the runtime has no sandbox and no container
    /// of it.
    ///
    /// # Errors
    /// If there is no such manifest, or the pod remains: with the last observation.
    pub async fn remove(&self, pod: &str) -> Result<(), WaitError> {
        let what = format!("pod {pod} to be removed");
        if let Err(error) = self.delete_manifest(&format!("{pod}.yaml")) {
            return Err(WaitError {
                condition: what,
                limit: WAIT_LIMIT,
                last: format!("failed to remove its manifest: {error}"),
            });
        }
        within(WAIT_LIMIT, &what, async || match self.observe(pod).await {
            Ok(seen) if seen.sandbox.is_none() && seen.containers.is_empty() => Ok(()),
            seen => Err(seen),
        })
        .await
    }

    /// Waits until a pod's sandbox is ready and `containers` run.
    ///
    /// # Errors
    /// With the last observation.
    pub async fn running(&self, pod: &str, containers: &[&str]) -> Result<(), WaitError> {
        let what = format!("pod {pod} to run {}", containers.join(", "));
        within(WAIT_LIMIT, &what, async || {
            let seen = self.observe(pod).await.map_err(Err)?;
            let runs = |wanted: &&str| {
                let mut statuses = seen.containers.iter();
                statuses
                    .any(|s| name_of(s) == *wanted && s.state() == ContainerState::ContainerRunning)
            };
            if seen.is_ready() && containers.iter().all(runs) {
                Ok(())
            } else {
                Err(Ok::<_, tonic::Status>(seen))
            }
        })
        .await
    }

    /// Waits until a pod has finished: its sandbox is stopped, and every container has exited. A pod with the restart policy Always
    /// never finishes.
    ///
    /// # Errors
    /// With the last observation.
    pub async fn finished(&self, pod: &str) -> Result<FinishedPod, WaitError> {
        let what = format!("pod {pod} to finish");
        within(WAIT_LIMIT, &what, async || {
            let seen = self.observe(pod).await.map_err(Err)?;
            let exited = |s: &v1::ContainerStatus| s.state() == ContainerState::ContainerExited;
            let over = seen.sandbox.is_some() && !seen.is_ready() && !seen.containers.is_empty();
            if over && seen.containers.iter().all(exited) {
                Ok(FinishedPod { name: pod.to_owned(), containers: seen.containers })
            } else {
                Err(Ok::<_, tonic::Status>(seen))
            }
        })
        .await
    }

    /// The output of a container's last attempt so far, of both streams.
    ///
    /// # Errors
    /// The runtime's; NotFound if the pod has no such container.
    pub async fn logs(&self, pod: &str, container: &str) -> CallResult<String> {
        let seen = self.observe(pod).await?;
        let Some(status) = seen.containers.iter().find(|s| name_of(s) == container) else {
            return Err(tonic::Status::not_found(format!(
                "pod {pod} has no container {container}"
            )));
        };
        let lines = cri_log::lines(&std::fs::read(&status.log_path).unwrap_or_default());
        Ok(lines.into_iter().map(|line| line.text + "\n").collect())
    }

    /// Stops the agent and the runtime with all pods.
    ///
    /// # Panics
    /// If a process, a mount, a network link, a netfilter table, a cgroup or a file is left; the message lists them. Dropping the
    /// node does the same.
    pub fn assert_nothing_left(self) {
        drop(self);
    }

    async fn observe(&self, pod: &str) -> CallResult<ObservedPod> {
        let client = &self.runtime.client;
        let labels = HashMap::from([(POD_NAME.to_owned(), pod.to_owned())]);
        let sandboxes = client
            .pods(v1::PodSandboxFilter { label_selector: labels.clone(), ..Default::default() });
        let sandbox = sandboxes.await?.into_iter().max_by_key(|s| s.created_at);
        let filter = v1::ContainerFilter {
            label_selector: labels,
            pod_sandbox_id: sandbox.as_ref().map(|s| s.id.clone()).unwrap_or_default(),
            ..Default::default()
        };
        let mut listed = client.containers(filter).await?;
        compact::sort_by_key(&mut listed, |container| container.created_at);
        let mut containers: Vec<v1::ContainerStatus> = Vec::new();
        for container in listed {
            let status = client.container(&container.id).await?;
            containers.retain(|earlier| name_of(earlier) != name_of(&status));
            containers.push(status);
        }
        let agent_log = match &sandbox {
            Some(_) => String::new(),
            None => self.agent_log(),
        };
        Ok(ObservedPod { sandbox, containers, agent_log })
    }
}

impl ObservedPod {
    fn is_ready(&self) -> bool {
        let ready = PodSandboxState::SandboxReady;
        self.sandbox.as_ref().is_some_and(|s| s.state() == ready)
    }
}
