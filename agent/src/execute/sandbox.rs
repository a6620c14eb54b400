//! Prepares a pod for its containers: volumes, the sandbox, the hosts file.

use std::time::Instant;

use compact::Map;

use super::{
    Failure, Job, MountFailure, NoSandbox, Progress, chain, note_dns_warnings,
    note_missing_pull_secrets, pod_failure, record_dns_warnings, volumes,
};
use crate::cri::CriError;
use crate::decide::plan::SandboxStep;
use crate::decide::plan::effects::CompletedCall;
use crate::decide::resize::actuated::{Actuated, has_resources};
use crate::images::{ImageError, ImageEvent, ImageRequest, PullError, PullPolicy};
use crate::managers::claims::has_claims;
use crate::observed::SandboxId;
use crate::pod_spec::spec::{self, HostVolume, ImageSpec, PodGrants, SandboxSpec, cgroup, memory};
use crate::pod_spec::user_namespaces::UserNamespaceError;
use crate::reporting::events::{EventReason, EventType};
use crate::reporting::measures::Counted;
use crate::storage::volumes::{MountError, Prepared, VolumeError};
use tasks::brief;

/// The sandbox for new containers.
pub(super) struct SandboxContext {
    pub(super) id: SandboxId,
    pub(super) spec: SandboxSpec,
    pub(super) ips: Vec<String>,
    /// The primary address that the runtime reports, for HTTP hooks.
    pub(super) host: Option<String>,
    pub(super) volumes: Map<String, HostVolume>,
    /// The errors of missing images that are volumes.
    pub(super) failed_images: Map<String, PullError>,
    pub(super) grants: PodGrants,
}

impl Job {
    /// Prepares volumes, the sandbox (created if the plan says so) and the hosts file. `None` if the pod must
    /// terminate.
    pub(super) async fn prepare_sandbox(
        &self,
        step: &SandboxStep,
    ) -> Result<Option<SandboxContext>, NoSandbox> {
        if self.terminating.is_cancelled() {
            return Ok(None);
        }
        let Some(mut volumes) = self.prepare_volumes().await? else {
            return Ok(None);
        };
        self.send(Progress::Mounted);
        note_missing_pull_secrets(&self.shared, &self.pod);
        let grants = self.grants().map_err(|error| {
            let message = chain(&error);
            self.event(None, &EventReason::FailedCreateSandbox(message.clone()));
            pod_failure("ConfigPodSandboxError", message)
        })?;
        let (id, spec, ips) = match step {
            SandboxStep::None { .. } => return Ok(None),
            SandboxStep::Keep { id, attempt } => {
                self.ensure_cgroup(true).await?;
                let seen = self.observed.sandboxes.iter().find(|sandbox| sandbox.id == *id);
                let ips = seen.map(|sandbox| sandbox.addresses().to_vec()).unwrap_or_default();
                {
                    let spec = self.sandbox_spec(*attempt, &grants, false).await?;
                    (id.clone(), spec, ips)
                }
            }
            SandboxStep::Create { attempt, .. } => {
                match self.create_sandbox(*attempt, &grants).await? {
                    // A kubelet builds the configuration again for the containers.
                    Some(created) => {
                        note_dns_warnings(&self.shared, &self.pod);
                        created
                    }
                    None => return Ok(None),
                }
            }
        };
        let host = ips.first().cloned();
        let ips = if self.pod.host_network() { self.shared.host_ips() } else { ips };
        let text = self.shared.hosts_file(&self.pod, &ips);
        brief(|| self.dirs.write_etc_hosts(&text)).map_err(|error| self.volume_failure(&error))?;
        let Some(failed_images) = self.pull_volumes(&spec, &mut volumes).await else {
            return Ok(None);
        };
        Ok(Some(SandboxContext { id, spec, ips, host, volumes, failed_images, grants }))
    }

    /// Pulls the images that are volumes. Returns the errors by the volume's name; `None` if the pod must terminate.
    async fn pull_volumes(
        &self,
        sandbox: &SandboxSpec,
        volumes: &mut Map<String, HostVolume>,
    ) -> Option<Map<String, PullError>> {
        let mut failed = Map::new();
        for volume in self.pod.spec().volumes.iter().flatten() {
            let Some(source) = &volume.image else {
                continue;
            };
            let reference = source.reference.as_deref().unwrap_or_default();
            let request = ImageRequest {
                pod: &self.pod,
                image: reference,
                policy: PullPolicy::of(source.pull_policy.as_deref()),
                sandbox,
            };
            let report = |event: ImageEvent| self.image_event(None, &event);
            let images = &self.shared.images;
            match Box::pin(images.ensure(request, &report, &self.terminating)).await {
                Ok(got) => {
                    let image = ImageSpec {
                        image: got.reference,
                        user_specified: reference.to_owned(),
                        runtime_handler: self.shared.config.images.handler_of(sandbox),
                        annotations: sandbox.annotations.clone(),
                    };
                    if let Some(volume) = volumes.get_mut(&volume.name) {
                        volume.image = Some(image);
                    }
                }
                Err(ImageError::Cancelled) => return None,
                Err(ImageError::Failed(error)) => {
                    failed.insert(volume.name.clone(), error);
                }
            }
        }
        Some(failed)
    }

    /// Records an event of an image.
    pub(super) fn image_event(&self, container: Option<&str>, event: &ImageEvent) {
        let kind = if event.warning { EventType::Warning } else { EventType::Normal };
        self.shared.events.record_text(&self.pod, container, kind, event.reason, &event.message);
    }

    /// Prepares the volumes; `None` if the pod must terminate. Volumes that drivers mount meanwhile are found when the pod's
    /// volumes are removed.
    async fn prepare_volumes(&self) -> Result<Option<Map<String, HostVolume>>, NoSandbox> {
        let runtime_name = &self.observed.runtime_name;
        let mut prepared = volumes::prepare(&self.shared, &self.dirs, &self.pod, runtime_name)
            .await
            .map_err(|error| self.directory_failure(&error))?;
        tokio::select! {
            biased;
            () = self.terminating.cancelled() => return Ok(None),
            () = volumes::mount(&self.shared, &self.dirs, &self.pod, &mut prepared) => {}
        }
        let Prepared { volumes, failed, .. } = prepared;
        volumes::record(&self.shared, &self.pod, &failed);
        volumes::count(&self.shared, &self.pod, |name| volumes.contains_key(name));
        // Containers may use a volume that is only outdated.
        let missing = failed.iter();
        let missing: Vec<&MountError> =
            missing.filter(|error| !volumes.contains_key(&error.volume)).collect();
        match missing.first() {
            None => Ok(Some(volumes)),
            Some(first) => Err(NoSandbox::MountFailed(MountFailure {
                volumes: missing.iter().map(|error| error.volume.clone()).collect(),
                message: chain(*first),
                refused: missing.iter().any(|error| error.source.is_of_manifest()),
                is_exhausted: missing.iter().any(|error| error.source.is_exhausted()),
            })),
        }
    }

    /// The agent's allocations for the pod: the ids of its user namespace. They are recorded in its directory.
    fn grants(&self) -> Result<PodGrants, UserNamespaceError> {
        if self.pod.spec().host_users != Some(false) {
            return Ok(PodGrants::default());
        }
        let user_namespace = brief(|| self.shared.user_namespaces.grant(&self.dirs.pod))?;
        Ok(PodGrants { user_namespace, ..PodGrants::default() })
    }

    /// Creates a sandbox. `None` if the pod must terminate: the call is cancelled, and the next listing finds a sandbox that it
    /// created anyway.
    async fn create_sandbox(
        &self,
        attempt: u32,
        grants: &PodGrants,
    ) -> Result<Option<(SandboxId, SandboxSpec, Vec<String>)>, NoSandbox> {
        let failure = |error: &CriError| Failure {
            refused: error.is_refusal(),
            ..pod_failure("CreatePodSandboxError", error.to_string())
        };
        let spec = self.sandbox_spec(attempt, grants, true).await?;
        self.ensure_cgroup(false).await?;
        if !self.prepare_claims().await? {
            return Ok(None);
        }
        brief(|| self.dirs.make_pod_log_directory()).map_err(|error| {
            let message = chain(&error);
            self.event(None, &EventReason::FailedCreateSandbox(message.clone()));
            pod_failure("CreatePodSandboxError", message)
        })?;
        let is_own = self.pod.spec().host_users == Some(false);
        if is_own {
            self.shared.measures.count(Counted::UserNamespacePod);
        }
        let began = Instant::now();
        let created = tokio::select! {
            biased;
            () = self.terminating.cancelled() => return Ok(None),
            created = self.shared.cri.run_sandbox(&spec) => created,
        };
        let (handler, failed) = (&spec.runtime_handler, created.is_err());
        self.shared.measures.record_sandbox_start(handler, failed, began.elapsed());
        if is_own && created.is_err() {
            self.shared.measures.count(Counted::UserNamespacePodFailed);
        }
        let id = match created {
            Ok(id) => id,
            // The error is no longer needed (Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_manager.go SyncPod).
            Err(_) if self.end_requested.is_cancelled() => return Ok(None),
            Err(error) => {
                self.event(None, &EventReason::FailedCreateSandbox(error.go_text()));
                return Err(failure(&error).into());
            }
        };
        self.send(Progress::Done(CompletedCall::RunSandbox(id.clone())));
        if has_resources(&self.pod) {
            let made = Actuated::new(&self.pod, &self.shared.node);
            let change = |now: &mut Actuated| (now.pod, now.cgroup) = (made.pod, made.cgroup);
            self.actuated.change(change).await;
        }
        let status = self.shared.cri.sandbox_status(&id).await.map_err(|error| {
            self.event(None, &EventReason::FailedSandboxStatus(error.go_text()));
            failure(&error)
        })?;
        Ok(Some((id, spec, status.addresses().to_vec())))
    }

    /// Lets drivers prepare the devices of the pod's ResourceClaims. Returns false if the pod must terminate; devices that drivers
    /// prepare meanwhile are released when its containers have ended.
    async fn prepare_claims(&self) -> Result<bool, NoSandbox> {
        if !has_claims(&self.pod) {
            return Ok(true);
        }
        let Some(claims) = &self.shared.claim_manager else {
            let message = "the node prepares no ResourceClaims: it has no cluster".to_owned();
            self.event(None, &EventReason::FailedPrepareClaims(message.clone()));
            return Err(pod_failure("FailedPrepareDynamicResources", message).into());
        };
        let prepared = tokio::select! {
            biased;
            () = self.terminating.cancelled() => return Ok(false),
            prepared = claims.prepare(&self.pod) => prepared,
        };
        prepared.map(|()| true).map_err(|error| {
            self.event(None, &EventReason::FailedPrepareClaims(error.clone()));
            NoSandbox::ClaimsFailed(error)
        })
    }

    /// Creates the pod's cgroup, if the agent manages pod cgroups.
    async fn ensure_cgroup(&self, has_sandbox: bool) -> Result<(), Failure> {
        let Some(cgroups) = &self.shared.cgroups else {
            return Ok(());
        };
        let quota = self.shared.enforces_cpu_quota(&self.pod);
        cgroups.ensure(&self.pod, has_sandbox, quota).await.map_err(|error| {
            const REASON: &str = "FailedCreatePodContainer";
            let message = format!("unable to ensure pod container exists: {error}");
            let events = &self.shared.events;
            events.record_text(&self.pod, None, EventType::Warning, REASON, &message);
            pod_failure(REASON, message)
        })
    }

    /// `warn` logs the warnings about the pod's manifest; once per sandbox is enough. Their events are recorded each time.
    async fn sandbox_spec(
        &self,
        attempt: u32,
        grants: &PodGrants,
        warn: bool,
    ) -> Result<SandboxSpec, Failure> {
        let mut node = self.shared.node_now();
        let (mut spec, warnings) =
            spec::sandbox(&self.pod, attempt, grants, &node).map_err(|error| {
                let message = error.to_string();
                self.event(None, &EventReason::FailedCreateSandbox(message.clone()));
                Failure { refused: true, ..pod_failure("ConfigPodSandboxError", message) }
            })?;
        if node.cpu_quota && !self.shared.enforces_cpu_quota(&self.pod) {
            node.cpu_quota = false;
            spec.resources.cpu_quota = -1;
        }
        for warning in warnings.iter().filter(|_| warn) {
            tracing::warn!(pod = %self.pod.full_name(), reason = warning.reason, warning = %warning.message, "pod DNS configuration was adjusted");
        }
        record_dns_warnings(&self.shared, &self.pod, &warnings);
        let path = |name: &str| self.dirs.empty_dir(name);
        if let Some(volumes) = memory::annotation(&self.pod, &node, path) {
            spec.annotations.insert(memory::ANNOTATION.to_owned(), volumes);
        }
        // If the agent creates the pod's cgroup, it also limits it.
        if self.observed.runtime_name == "crib" && self.shared.cgroups.is_none() {
            let limits = cgroup::limits_annotation(&self.pod, &node);
            let class = cgroup::class_annotation(&self.pod, &node).map(str::to_owned);
            let requested =
                [(cgroup::LIMITS_ANNOTATION, limits), (cgroup::CLASS_ANNOTATION, class)];
            let requested = requested.into_iter();
            spec.annotations
                .extend(requested.filter_map(|(key, value)| Some((key.to_owned(), value?))));
        }
        spec.log_directory.clone_from(&self.dirs.logs);
        Ok(spec)
    }

    /// The pod's directory could not be created.
    fn directory_failure(&self, error: &VolumeError) -> Failure {
        const REASON: &str = "Failed";
        let message = format!("error making pod data directories: {}", chain(error));
        let events = &self.shared.events;
        events.record_text(&self.pod, None, EventType::Warning, REASON, &message);
        pod_failure(REASON, message)
    }

    fn volume_failure(&self, error: &VolumeError) -> Failure {
        let message = chain(error);
        self.event(None, &EventReason::FailedMount(message.clone()));
        Failure { refused: error.is_of_manifest(), ..pod_failure("FailedMount", message) }
    }
}
