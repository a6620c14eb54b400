//! Executes plans: makes the CRI calls of each action. It decides nothing. It reports failures to the worker and continues
//! with the actions that do not depend on them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::blocking::blocking;
use crate::clock::until;
use crate::cri::CriError;
use crate::observed::{ContainerId, Observed, SandboxId};
use crate::plan::terminate::{self, KillPlan};
use crate::plan::{PodPlan, SandboxStep, Start, When};
use crate::pod::{Pod, is_sidecar};
use crate::shared::Shared;
use crate::spec::{self, HostVolume, SandboxSpec};
use crate::volumes::{PodDirs, VolumeError};

mod container;
pub(crate) mod kill;

/// A message to the worker during execution.
#[derive(Clone, Debug)]
pub(crate) enum Progress {
    /// A container is about to be started.
    Starting(Start),
    /// The container's image was pulled.
    Pulled(String, Duration),
    /// The container was created.
    Created(String, Duration),
    /// The container was started.
    Started(String, Duration),
    /// An action failed.
    Failed(Failure),
}

/// A failed action, to be retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The container; `None` for the whole pod.
    pub(crate) container: Option<String>,
    /// The reason for the waiting state, in CamelCase.
    pub(crate) reason: String,
    /// The error text.
    pub(crate) message: String,
    /// The earliest time of the next attempt.
    pub(crate) until: Option<Timestamp>,
    /// Every other attempt fails too.
    pub(crate) refused: bool,
}

/// The inputs of an execution.
pub(crate) struct Job {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pod: Pod,
    pub(crate) dirs: PodDirs,
    pub(crate) observed: Arc<Observed>,
    /// Cancelled when the pod must terminate: start nothing more.
    pub(crate) terminating: CancellationToken,
    pub(crate) progress: mpsc::UnboundedSender<Progress>,
}

/// The sandbox for new containers.
struct SandboxContext {
    id: SandboxId,
    spec: SandboxSpec,
    ips: Vec<String>,
    volumes: BTreeMap<String, HostVolume>,
}

/// Executes a plan. Returns when every action succeeded or failed, or the pod must terminate.
pub(crate) async fn execute(job: Arc<Job>, plan: PodPlan) {
    if plan.kill_pod.is_some() && !job.kill_pod().await {
        return;
    }
    job.kill_containers(&plan).await;
    for reset in &plan.resets {
        if reset.kill {
            job.report_failure(
                &reset.name,
                "KillContainerError",
                job.shared
                    .cri
                    .stop_container(&reset.id, Duration::ZERO)
                    .await,
            );
        }
        job.remove(&reset.id).await;
    }
    for id in &plan.removes {
        job.remove(id).await;
    }
    let creates = matches!(plan.sandbox, SandboxStep::Create { .. });
    if !creates && !plan.starts().any(|start| start.when == When::Now) {
        return;
    }
    let sandbox = match job.prepare_sandbox(&plan.sandbox).await {
        Ok(Some(sandbox)) => Arc::new(sandbox),
        Ok(None) => return,
        Err(failure) => return job.send(Progress::Failed(failure)),
    };
    for start in plan.start_ephemeral {
        if start.when == When::Now {
            container::start(&job, &sandbox, start).await;
        }
    }
    for start in plan.start_init {
        let name = start.name.clone();
        let goes_on = start.when == When::Now && container::start(&job, &sandbox, start).await;
        let sidecar = job
            .pod
            .container(&name)
            .is_some_and(|(_, container)| is_sidecar(container));
        if !goes_on && !sidecar {
            return;
        }
    }
    let mut apps = JoinSet::new();
    for start in plan
        .start_apps
        .into_iter()
        .filter(|start| start.when == When::Now)
    {
        let (job, sandbox) = (Arc::clone(&job), Arc::clone(&sandbox));
        apps.spawn(async move { container::start(&job, &sandbox, start).await });
    }
    apps.join_all().await;
}

impl Job {
    fn send(&self, progress: Progress) {
        // The worker receives until the execution ends.
        let _ = self.progress.send(progress);
    }

    /// Reports a failed call for a container.
    fn report_failure(&self, container: &str, reason: &str, result: Result<(), CriError>) {
        if let Err(error) = result {
            self.send(Progress::Failed(Failure {
                container: Some(container.to_owned()),
                reason: reason.to_owned(),
                message: error.to_string(),
                until: None,
                refused: false,
            }));
        }
    }

    /// Stops the pod's containers, then its sandboxes. Returns whether all of them stopped.
    async fn kill_pod(&self) -> bool {
        let running = running(&self.observed);
        let plan = terminate::end_pod(&self.pod, &running, None);
        let errors = stop_pod(&self.shared, plan, &self.observed).await;
        for message in &errors {
            self.send(Progress::Failed(pod_failure(
                "KillPodSandboxError",
                message.clone(),
            )));
        }
        errors.is_empty()
    }

    async fn kill_containers(&self, plan: &PodPlan) {
        let targets = plan
            .kills
            .iter()
            .flat_map(|kill| {
                terminate::stop_one(&self.pod, &kill.id, &kill.name, kill.reason, None).targets
            })
            .collect();
        for failed in kill::kill(
            &self.shared.cri,
            KillPlan { targets },
            &self.shared.kill_now,
        )
        .await
        {
            self.report_failure(&failed.name, "KillContainerError", Err(failed.error));
        }
    }

    async fn remove(&self, id: &ContainerId) {
        if let Err(error) = self.shared.cri.remove_container(id).await {
            tracing::warn!(pod = %self.pod.full_name(), container = %id, %error, "failed to remove container");
        }
    }

    /// Prepares volumes, the sandbox (created if the plan says so) and the hosts file. `None` if the pod must
    /// terminate.
    async fn prepare_sandbox(&self, step: &SandboxStep) -> Result<Option<SandboxContext>, Failure> {
        if self.terminating.is_cancelled() {
            return Ok(None);
        }
        let volumes = {
            let (dirs, pod) = (self.dirs.clone(), self.pod.clone());
            let prepared = blocking(move || dirs.prepare(&pod))
                .await
                .map_err(|error| volume_failure(&error))?;
            let volume = |(name, host_path)| {
                (
                    name,
                    HostVolume {
                        host_path,
                        readonly: false,
                    },
                )
            };
            prepared.into_iter().map(volume).collect()
        };
        let sandbox_failure = |error: CriError| Failure {
            refused: error.is_refusal(),
            ..pod_failure("CreatePodSandboxError", error.to_string())
        };
        let (id, spec, ips) = match step {
            SandboxStep::None { .. } => return Ok(None),
            SandboxStep::Keep { id, attempt } => {
                let seen = self
                    .observed
                    .sandboxes
                    .iter()
                    .find(|sandbox| sandbox.id == *id);
                let ips = seen
                    .and_then(|sandbox| sandbox.ips.clone())
                    .unwrap_or_default();
                (id.clone(), self.sandbox_spec(*attempt, false).await?, ips)
            }
            SandboxStep::Create { attempt, .. } => {
                let spec = self.sandbox_spec(*attempt, true).await?;
                let id = self
                    .shared
                    .cri
                    .run_sandbox(&spec)
                    .await
                    .map_err(sandbox_failure)?;
                let status = self
                    .shared
                    .cri
                    .sandbox_status(&id)
                    .await
                    .map_err(sandbox_failure)?;
                (id, spec, status.ips.unwrap_or_default())
            }
        };
        let ips: Vec<String> = if self.pod.host_network() {
            self.shared.config.node_ips.clone()
        } else {
            ips.into_iter().filter(|ip| !ip.is_empty()).collect()
        };
        let text = self.shared.hosts_file(&self.pod, &ips).await;
        let dirs = self.dirs.clone();
        blocking(move || dirs.write_etc_hosts(&text))
            .await
            .map_err(|error| volume_failure(&error))?;
        Ok(Some(SandboxContext {
            id,
            spec,
            ips,
            volumes,
        }))
    }

    /// `warn` logs the warnings about the pod's manifest; once per sandbox is enough.
    async fn sandbox_spec(&self, attempt: u32, warn: bool) -> Result<SandboxSpec, Failure> {
        let node = self.shared.node_now().await;
        let (mut spec, warnings) =
            spec::sandbox(&self.pod, attempt, &node).map_err(|error| Failure {
                refused: true,
                ..pod_failure("ConfigPodSandboxError", error.to_string())
            })?;
        for warning in warnings.iter().filter(|_| warn) {
            tracing::warn!(pod = %self.pod.full_name(), %warning, "pod DNS configuration was adjusted");
        }
        spec.log_directory.clone_from(&self.dirs.logs);
        Ok(spec)
    }

    /// The running container that an ephemeral container targets.
    fn target_of(&self, name: &str) -> Option<ContainerId> {
        let ephemeral = self
            .pod
            .spec()
            .ephemeral_containers
            .iter()
            .flatten()
            .find(|container| container.name == name)?;
        let target = ephemeral.target_container_name.as_deref()?;
        let seen = self.observed.container(target)?;
        seen.state.is_running().then(|| seen.id.clone())
    }
}

/// Running containers with their names, newest first.
pub(crate) fn running(observed: &Observed) -> Vec<(ContainerId, String)> {
    let running = observed
        .containers
        .iter()
        .filter(|container| container.state.is_running());
    running
        .map(|container| (container.id.clone(), container.name.clone()))
        .collect()
}

/// Stops containers according to a plan, then every ready sandbox. Returns the errors.
pub(crate) async fn stop_pod(shared: &Shared, plan: KillPlan, observed: &Observed) -> Vec<String> {
    let failed = kill::kill(&shared.cri, plan, &shared.kill_now).await;
    let mut errors: Vec<String> = failed
        .iter()
        .map(|failed| format!("failed to stop container {}: {}", failed.name, failed.error))
        .collect();
    for sandbox in observed.sandboxes.iter().filter(|sandbox| sandbox.ready) {
        if let Err(error) = shared.cri.stop_sandbox(&sandbox.id).await {
            errors.push(format!("failed to stop sandbox: {error}"));
        }
    }
    errors
}

fn pod_failure(reason: &str, message: String) -> Failure {
    Failure {
        container: None,
        reason: reason.to_owned(),
        message,
        until: None,
        refused: false,
    }
}

fn volume_failure(error: &VolumeError) -> Failure {
    Failure {
        refused: error.is_of_manifest(),
        ..pod_failure("FailedMount", chain(error))
    }
}

/// Formats an error with its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

/// Measures how long `work` takes.
async fn timed<T>(shared: &Shared, work: impl Future<Output = T>) -> (T, Duration) {
    let begun = shared.clock.now();
    let done = work.await;
    (done, until(begun, shared.clock.now()))
}
