//! Executes plans: makes the CRI calls of each action, without decisions. It reports failures to the worker and continues with the
//! actions that do not depend on them.

use std::sync::Arc;
use std::time::Duration;

use api::pod::Pod;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock::until;
use crate::cri::{Code, CriError, ListedContainer, ListedState, PodRef};
use crate::decide::plan::effects::CompletedCall;
use crate::decide::plan::{Blocks, HoldKey, PodPlan, Reset, SandboxStep, Start, Stop, When};
use crate::decide::resize::files::ActuatedRecord;
use crate::observed::{ContainerId, Observed, ObservedContainer, SandboxId};
use crate::pod_spec::dns::{self, DnsWarning, PodDns};
use crate::pod_spec::references;
use crate::reporting::events::{EventReason, EventType};
use crate::shared::Shared;
use crate::storage::volumes::PodDirs;
use tasks::blocking;

mod container;
mod hook;
pub(crate) mod kill;
mod resize;
mod sandbox;
pub(crate) mod volumes;

use kill::{Killer, StopFailure};
use sandbox::SandboxContext;

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
    /// The container's postStart hook has succeeded.
    HookEnded(String),
    /// The container's postStart hook has failed, with this message: the container will be stopped.
    HookFailed(String, String),
    /// A call succeeded.
    Done(CompletedCall),
    /// The pod's volumes are prepared.
    Mounted,
    /// Volumes could not be prepared.
    MountFailed(MountFailure),
    /// The devices of the pod's ResourceClaims could not be prepared, with this message.
    ClaimsFailed(String),
    /// An action failed.
    Failed(Failure),
    /// A resize failed, with this message.
    ResizeFailed(String),
}

/// Volumes that could not be prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountFailure {
    /// Their names.
    pub(crate) volumes: Vec<String>,
    /// The message of the first one's event.
    pub(crate) message: String,
    /// Whether every retry fails too.
    pub(crate) refused: bool,
    /// Whether the node cannot attach another volume of a driver.
    pub(crate) is_exhausted: bool,
}

/// Why there is no sandbox for the containers.
pub(crate) enum NoSandbox {
    /// The sandbox could not be created.
    Failed(Failure),
    /// The pod's volumes could not be prepared.
    MountFailed(MountFailure),
    /// The devices of the pod's ResourceClaims could not be prepared, with this message.
    ClaimsFailed(String),
}

impl From<Failure> for NoSandbox {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A failed action, to be retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The action to defer.
    pub(crate) key: HoldKey,
    /// The container; `None` for the whole pod.
    pub(crate) container: Option<String>,
    /// The attempt that was created but does not run: its exit is reported instead of the failure.
    pub(crate) attempt: Option<ContainerId>,
    /// The reason for the waiting state, in CamelCase.
    pub(crate) reason: String,
    /// The error text.
    pub(crate) message: String,
    /// The earliest time of the next attempt.
    pub(crate) until: Option<Timestamp>,
    /// Whether every retry fails too.
    pub(crate) refused: bool,
}

/// The inputs of an execution.
pub(crate) struct Job {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pod: Pod,
    pub(crate) dirs: PodDirs,
    pub(crate) observed: Arc<Observed>,
    /// The CPU and memory last passed to the runtime.
    pub(crate) actuated: ActuatedRecord,
    /// Cancelled when the pod must terminate: no further container starts.
    pub(crate) terminating: CancellationToken,
    /// Cancelled when the pod's end is requested, even if a start in progress is completed first.
    pub(crate) end_requested: CancellationToken,
    /// Boxed: a channel allocates room for 32 messages with its first one, and many pods start at the same time.
    pub(crate) progress: mpsc::UnboundedSender<Box<Progress>>,
}

/// Executes a plan. Returns when every action has succeeded or failed, or when the pod must terminate.
pub(crate) async fn execute(job: Arc<Job>, plan: PodPlan) {
    job.record_start(&plan);
    if !job.stop_all(&plan).await {
        return;
    }
    for reset in &plan.resets {
        if !job.reset(reset).await {
            return;
        }
    }
    for id in &plan.removes {
        job.remove(id).await;
    }
    if !prepares_volumes(&job.pod, &plan) {
        return job.resize(&plan).await;
    }
    let sandbox = match job.prepare_sandbox(&plan.sandbox).await {
        Ok(Some(sandbox)) => sandbox,
        Ok(None) => return,
        Err(NoSandbox::Failed(failure)) => return job.send(Progress::Failed(failure)),
        Err(NoSandbox::MountFailed(failure)) => return job.send(Progress::MountFailed(failure)),
        Err(NoSandbox::ClaimsFailed(message)) => return job.send(Progress::ClaimsFailed(message)),
    };
    for start in plan.start_ephemeral.iter().chain(&plan.start_init) {
        if !start_now(&job, &sandbox, start).await && start.blocks == Blocks::LaterStarts {
            return;
        }
    }
    job.resize(&plan).await;
    for start in &plan.start_apps {
        start_now(&job, &sandbox, start).await;
    }
}

/// Whether the execution of a plan prepares the pod's volumes.
pub(crate) fn prepares_volumes(pod: &Pod, plan: &PodPlan) -> bool {
    let creates = matches!(plan.sandbox, SandboxStep::Create { .. });
    let starts = plan.starts().any(|start| start.when == When::Now);
    creates || starts || pulls_volumes(pod, plan)
}

/// Records which pull secrets of the pod are missing. A kubelet does so at each sync of the pod once its volumes are mounted, even
/// if nothing is pulled (Kubernetes 1.36, pkg/kubelet/kubelet.go SyncPod).
pub(crate) fn note_missing_pull_secrets(shared: &Shared, pod: &Pod) {
    let missing = references::missing_pull_secrets(pod, &shared.objects.current());
    if !missing.is_empty() {
        shared.events.record(pod, None, &EventReason::MissingPullSecrets(missing));
    }
}

/// Records the warnings about a pod's DNS configuration. A kubelet does so whenever it builds the configuration of the pod's sandbox:
/// at each sync of the pod once its volumes are mounted, and once more to create a sandbox (Kubernetes 1.36,
/// pkg/kubelet/kuberuntime/kuberuntime_manager.go SyncPod).
pub(crate) fn note_dns_warnings(shared: &Shared, pod: &Pod) {
    // An invalid configuration is an error of the sandbox.
    if let Ok(PodDns { warnings, .. }) = dns::pod_dns(pod, &shared.node_now()) {
        record_dns_warnings(shared, pod, &warnings);
    }
}

fn record_dns_warnings(shared: &Shared, pod: &Pod, warnings: &[DnsWarning]) {
    for DnsWarning { of_node, reason, message } in warnings {
        if *of_node {
            let node = &shared.config.node_name;
            shared.events.record_node_warning(node, reason, message.clone());
        } else {
            shared.events.record_text(pod, None, EventType::Warning, reason, message);
        }
    }
}

/// Whether images that are volumes are pulled although no container starts: at each sync of a pod that has a sandbox (Kubernetes
/// 1.36, pkg/kubelet/kuberuntime/kuberuntime_manager.go SyncPod).
pub(crate) fn pulls_volumes(pod: &Pod, plan: &PodPlan) -> bool {
    let mut volumes = pod.spec().volumes.iter().flatten();
    matches!(plan.sandbox, SandboxStep::Keep { .. }) && volumes.any(|volume| volume.image.is_some())
}

/// Starts a container if its start is due. Returns whether it started.
async fn start_now(job: &Arc<Job>, sandbox: &SandboxContext, start: &Start) -> bool {
    start.when == When::Now && container::start(job, sandbox, start.clone()).await
}

impl Job {
    fn send(&self, progress: Progress) {
        // The worker receives until the execution ends.
        let _ = self.progress.send(Box::new(progress));
    }

    fn event(&self, container: Option<&str>, reason: &EventReason) {
        self.shared.events.record(&self.pod, container, reason);
    }

    fn record_start(&self, plan: &PodPlan) {
        if let SandboxStep::Create { replaces: Some(_), .. } = plan.sandbox {
            self.event(None, &EventReason::SandboxChanged);
        }
    }

    /// Carries out the plan's stops. Returns whether all of them succeeded.
    async fn stop_all(&self, plan: &PodPlan) -> bool {
        let killer = self.killer();
        for stop in &plan.stops {
            if !self.stop(&killer, stop, plan.kill_pod.is_some()).await {
                return false;
            }
        }
        let mut stopped = true;
        for id in &plan.stop_sandboxes {
            match stop_sandbox(&self.shared, id).await {
                Ok(()) => self.send(Progress::Done(CompletedCall::StopSandbox(id.clone()))),
                Err(error) => {
                    let message = format!("failed to stop sandbox: {error}");
                    self.send(Progress::Failed(pod_failure("KillPodSandboxError", message)));
                    stopped = false;
                }
            }
        }
        stopped
    }

    fn killer(&self) -> Killer {
        Killer {
            shared: Arc::clone(&self.shared),
            pod: self.pod.clone(),
            host: hook_host(&self.observed),
        }
    }

    /// Stops containers. A failure is the pod's if the whole pod is stopped.
    async fn stop(&self, killer: &Killer, stop: &Stop, of_pod: bool) -> bool {
        let mut failed = killer.kill(stop).await;
        if !of_pod {
            // Two attempts of a container must never run at the same time.
            failed.extend(self.still_running(stop).await);
        }
        for target in &stop.plan.targets {
            if failed.iter().all(|failure| failure.id != target.id) {
                self.send(Progress::Done(CompletedCall::Stop {
                    name: target.name.clone(),
                    id: target.id.clone(),
                }));
            }
        }
        for failure in &failed {
            self.send(Progress::Failed(if of_pod {
                let message =
                    format!("failed to stop container {}: {}", failure.name, failure.error);
                pod_failure("KillPodSandboxError", message)
            } else {
                Failure {
                    key: HoldKey::Container(failure.id.clone()),
                    container: Some(failure.name.clone()),
                    ..pod_failure("KillContainerError", failure.error.to_string())
                }
            }));
        }
        failed.is_empty()
    }

    /// The containers that run although their stop succeeded.
    async fn still_running(&self, stop: &Stop) -> Vec<StopFailure> {
        let mut running = Vec::new();
        for target in &stop.plan.targets {
            let mut seen = self.observed.containers.iter();
            let Some(seen) = seen.find(|seen| seen.id == target.id) else {
                continue;
            };
            let listed = listed(seen, &self.pod);
            let status = self.shared.cri.container_status(&listed).await;
            if status.is_ok_and(|seen| seen.state.is_running()) {
                running.push(StopFailure {
                    id: target.id.clone(),
                    name: target.name.clone(),
                    error: CriError {
                        call: "StopContainer",
                        code: Code::Internal,
                        message: "the call succeeded, but the container is still running"
                            .to_owned(),
                    },
                });
            }
        }
        running
    }

    /// Stops and removes a container of a pod that restarts as a whole.
    async fn reset(&self, reset: &Reset) -> bool {
        if let Some(stop) = &reset.stop
            && !self.stop(&self.killer(), stop, false).await
        {
            return false;
        }
        let removed = self.shared.cri.remove_container(&reset.id).await;
        match removed {
            Ok(()) => self.send(Progress::Done(CompletedCall::Remove {
                name: reset.name.clone(),
                id: reset.id.clone(),
            })),
            Err(error) => {
                self.send(Progress::Failed(Failure {
                    key: HoldKey::Container(reset.id.clone()),
                    container: Some(reset.name.clone()),
                    ..pod_failure("KillContainerError", error.to_string())
                }));
                return false;
            }
        }
        true
    }

    /// Removes an ended init container after its log: the restart count of an attempt without a predecessor is derived from the
    /// logs (Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_container.go purgeInitContainers).
    async fn remove(&self, id: &ContainerId) {
        let mut containers = self.observed.containers.iter();
        let seen = containers.find(|container| container.id == *id);
        if let Some(log) = seen.and_then(|seen| seen.log_path.clone()) {
            let dirs = self.dirs.clone();
            blocking(move || dirs.remove_log(&log)).await;
        }
        if let Err(error) = self.shared.cri.remove_container(id).await {
            tracing::warn!(pod = %self.pod.full_name(), container = %id, %error, "failed to remove container");
        }
    }
}

/// Converts an observed container of a pod into a listed one.
fn listed(seen: &ObservedContainer, pod: &Pod) -> ListedContainer {
    ListedContainer {
        id: seen.id.clone(),
        sandbox_id: seen.sandbox_id.clone(),
        pod: PodRef {
            uid: pod.uid().clone(),
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            agent: None,
        },
        name: seen.name.clone(),
        state: ListedState::Running,
        created_at: seen.created_at,
    }
}

/// The host of HTTP hooks: the address that the runtime reports for the pod, and none for a pod in the node's network, whose address
/// most runtimes do not report (Kubernetes 1.36, pkg/kubelet/lifecycle/handlers.go runHTTPHandler).
pub(crate) fn hook_host(observed: &Observed) -> Option<String> {
    let newest = observed.sandboxes.first().filter(|sandbox| sandbox.ready)?;
    newest.addresses().first().cloned()
}

/// The result of stopping a pod.
#[derive(Debug, Default)]
pub(crate) struct PodStopped {
    /// The successful calls.
    pub(crate) done: Vec<CompletedCall>,
    /// The errors of failed calls, in a kubelet's words.
    pub(crate) errors: Vec<String>,
}

impl PodStopped {
    /// The errors as a kubelet joins them.
    pub(crate) fn error(&self) -> String {
        match self.errors.as_slice() {
            [error] => error.clone(),
            errors => format!("[{}]", errors.join(", ")),
        }
    }
}

/// The error of a failed call (Kubernetes 1.36, pkg/kubelet/container/sync_result.go).
fn kill_error(action: &str, target: &str, error: &CriError) -> String {
    let message = error.go_text();
    format!("failed to {action:?} for {target:?} with {action}Error: {message:?}")
}

/// Stops containers according to a plan, then the sandboxes. A kubelet has one error for all sandboxes, that of the last one.
pub(crate) async fn stop_pod(killer: &Killer, stop: &Stop, sandboxes: &[SandboxId]) -> PodStopped {
    let failed = killer.kill(stop).await;
    let mut stopped = PodStopped::default();
    for target in &stop.plan.targets {
        match failed.iter().find(|failure| failure.id == target.id) {
            Some(failure) => {
                let error = kill_error("KillContainer", &failure.name, &failure.error);
                stopped.errors.push(error);
            }
            None => stopped
                .done
                .push(CompletedCall::Stop { name: target.name.clone(), id: target.id.clone() }),
        }
    }
    let mut of_sandboxes = None;
    for id in sandboxes {
        match stop_sandbox(&killer.shared, id).await {
            Ok(()) => stopped.done.push(CompletedCall::StopSandbox(id.clone())),
            Err(error) => {
                let uid = killer.pod.uid().as_str();
                of_sandboxes = Some(kill_error("KillPodSandbox", uid, &error));
            }
        }
    }
    stopped.errors.extend(of_sandboxes);
    stopped
}

/// Stops a sandbox. A sandbox that does not exist counts as stopped (Kubernetes 1.36,
/// pkg/kubelet/kuberuntime/kuberuntime_manager.go killPodWithSyncResult).
async fn stop_sandbox(shared: &Shared, id: &SandboxId) -> Result<(), CriError> {
    match shared.cri.stop_sandbox(id).await {
        Err(error) if error.is_not_found() => Ok(()),
        stopped => stopped,
    }
}

fn pod_failure(reason: &str, message: String) -> Failure {
    Failure {
        key: HoldKey::Pod,
        container: None,
        attempt: None,
        reason: reason.to_owned(),
        message,
        until: None,
        refused: false,
    }
}

/// The runtime's message of an error, as a kubelet shows it.
fn runtime_message(error: &CriError) -> String {
    if error.message.is_empty() { error.to_string() } else { error.message.clone() }
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
