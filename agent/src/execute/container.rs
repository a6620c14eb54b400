//! Starts one container: image, configuration, CreateContainer, StartContainer, postStart hook.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use compact::{Map, Set};
use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use super::kill::{Killer, kill_requested};
use super::sandbox::SandboxContext;
use super::{Failure, Job, Progress, chain, hook, runtime_message, timed};
use crate::cri::CriError;
use crate::decide::plan::effects::CompletedCall;
use crate::decide::plan::{HoldKey, ProcessTarget, Start, stop};
use crate::decide::resize::actuated::{Actuated, CpuMemory};
use crate::images::{ImageError, ImageEvent, ImageRequest, PullError, PullPolicy};
use crate::managers::claims::has_claims;
use crate::observed::ContainerId;
use crate::pod_spec::env::{self, EnvFile, EnvFiles};
use crate::pod_spec::nested_mounts;
use crate::pod_spec::references::named_by_variables;
use crate::pod_spec::spec::{self, Assigned, ContainerInputs, ContainerSpec, HostVolume, SubPath};
use crate::reporting::events::EventReason;
use crate::reporting::measures::{Counted, kind_name};
use crate::storage::volumes::subpath::{self, SubPathError};
use crate::upkeep::logs::links;
use tasks::{blocking, brief};

/// Starts a container. Returns whether it started.
pub(super) async fn start(job: &Arc<Job>, sandbox: &SandboxContext, start: Start) -> bool {
    let (name, key) = (start.name.clone(), start.backoff_key.clone());
    let kind = kind_name(start.kind);
    match run(job, sandbox, start).await {
        Ok(()) => true,
        Err(NotStarted::Terminating) => false,
        Err(NotStarted::Failed { reason, message, until, refused, attempt }) => {
            job.shared.measures.count(Counted::NotStarted(kind, reason.to_string()));
            job.send(Progress::Failed(Failure {
                key: HoldKey::Start(key),
                container: Some(name),
                attempt,
                reason: reason.into_owned(),
                message,
                until,
                refused,
            }));
            false
        }
    }
}

/// Why a container was not started.
enum NotStarted {
    /// The pod must terminate.
    Terminating,
    /// A step failed.
    Failed {
        reason: Cow<'static, str>,
        message: String,
        until: Option<jiff::Timestamp>,
        /// Whether every retry fails too.
        refused: bool,
        /// The container that was created.
        attempt: Option<ContainerId>,
    },
}

fn failed(reason: &'static str, message: String) -> NotStarted {
    let reason = Cow::Borrowed(reason);
    NotStarted::Failed { reason, message, until: None, refused: false, attempt: None }
}

/// A failure after the container was created.
fn failed_after(id: &ContainerId, reason: &'static str, message: String) -> NotStarted {
    let reason = Cow::Borrowed(reason);
    NotStarted::Failed { reason, message, until: None, refused: false, attempt: Some(id.clone()) }
}

/// A failure that every retry of this manifest repeats.
fn refused(reason: &'static str, message: String) -> NotStarted {
    let reason = Cow::Borrowed(reason);
    NotStarted::Failed { reason, message, until: None, refused: true, attempt: None }
}

async fn run(job: &Arc<Job>, sandbox: &SandboxContext, start: Start) -> Result<(), NotStarted> {
    if job.terminating.is_cancelled() {
        return Err(NotStarted::Terminating);
    }
    let shared = &job.shared;
    let Some((_, container)) = job.pod.container(&start.name) else {
        return Err(refused(
            "CreateContainerConfigError",
            "the pod has no container with this name".to_owned(),
        ));
    };
    job.send(Progress::Starting(start.clone()));

    let request = ImageRequest {
        pod: &job.pod,
        image: &start.image,
        policy: PullPolicy::of(start.pull_policy.as_deref()),
        sandbox: &sandbox.spec,
    };
    // Each missing image is an event, and the last one is the reason of the container's waiting state (Kubernetes 1.36,
    // pkg/kubelet/kuberuntime/kuberuntime_manager.go toKubeContainerImageVolumes).
    let mut has_images = Ok(());
    for mount in container.volume_mounts.iter().flatten() {
        if let Some(error) = sandbox.failed_images.get(&mount.name) {
            has_images = Err(no_image(job, &start.name, error.clone()));
        }
    }
    has_images?;
    let report = |event: ImageEvent| job.image_event(Some(&start.name), &event);
    // Short or rare steps are boxed, to keep the future of `run` small: a thousand pods may wait in it.
    let got =
        Box::pin(shared.images.ensure(request, &report, &job.terminating)).await.map_err(|no| {
            match no {
                ImageError::Cancelled => NotStarted::Terminating,
                ImageError::Failed(error) => no_image(job, &start.name, error),
            }
        })?;
    if let Some(took) = got.pull {
        job.send(Progress::Pulled(start.name.clone(), took));
    }

    let (attempt, message_file) = {
        let (dirs, name, count) = (job.dirs.clone(), start.name.clone(), start.restart_count);
        brief(move || {
            let attempt = count.unwrap_or_else(|| dirs.restart_count_by_logs(&name));
            let made = dirs.make_log_directory(&name);
            made.map(|()| (attempt, dirs.make_termination_message(&name, attempt)))
        })
        .map_err(|error| {
            let name = &start.name;
            let problem = chain(&error);
            let message =
                format!("create container log directory for container {name} failed: {problem}");
            job.event(Some(&start.name), &EventReason::Failed(message.clone()));
            failed("CreateContainerConfigError", message)
        })?
    };
    // Without the file the container runs, and has no message.
    let message_file = message_file.inspect_err(|error| {
        tracing::warn!(pod = %job.pod.full_name(), container = %start.name, error = %chain(error), "failed to create termination message file");
    });
    let message_file = message_file.ok();
    let target = match &start.target {
        None => None,
        Some(ProcessTarget::Container(id)) => Some(id.clone()),
        Some(ProcessTarget::Missing(name)) => {
            let message = format!("unable to find target container {name}");
            job.event(Some(&start.name), &EventReason::Failed(message.clone()));
            return Err(failed("CreateContainerConfigError", message));
        }
    };
    let env_files = if env::files(container).next().is_some() {
        let (container, volumes) = (container.clone(), sandbox.volumes.clone());
        Box::pin(blocking(move || read_env_files(&container, &volumes))).await
    } else {
        EnvFiles::default()
    };
    let assigned = assign(job, container).await.map_err(|message| {
        job.event(Some(&start.name), &EventReason::Failed(message.clone()));
        failed("CreateContainerConfigError", message)
    })?;
    let inputs = ContainerInputs {
        restart_count: attempt,
        ips: sandbox.ips.clone(),
        image_ref: got.reference,
        image_user: got.user,
        volumes: sandbox.volumes.clone(),
        env_files,
        termination_log: message_file,
        target,
        grants: sandbox.grants.clone(),
        assigned,
    };
    let named = named_by_variables(container);
    if !named.is_empty() {
        shared.cluster.sync_objects(job.pod.namespace(), &named).await.map_err(|message| {
            job.event(Some(&start.name), &EventReason::Failed(message.clone()));
            failed("CreateContainerConfigError", message)
        })?;
    }
    let node = shared.node_with_capabilities();
    let objects = shared.objects.current();
    let plan = spec::container(&job.pod, container, &inputs, Some(&objects), &node);
    let sub_paths = prepare_sub_paths(job, &start.name, plan.sub_paths).await?;
    let mut spec = plan.spec.map_err(|error| {
        let message = error.to_string();
        job.event(Some(&start.name), &EventReason::Failed(message.clone()));
        let not_started = if error.is_of_manifest() { refused } else { failed };
        not_started(error.reason(), message)
    })?;
    // Other runtimes follow symbolic links.
    if !sub_paths.is_empty() && job.observed.runtime_name == "crib" {
        let parts = subpath::annotation(&sub_paths);
        spec.annotations.insert(subpath::ANNOTATION.to_owned(), parts);
    }
    if job.terminating.is_cancelled() {
        return Err(NotStarted::Terminating);
    }

    let (own, has) =
        (CpuMemory::of_container(&job.pod, container), job.actuated.now().container(&start.name));
    if own != has {
        let change = |now: &mut Actuated| {
            now.containers.insert(start.name.clone(), own);
        };
        job.actuated.change(change).await;
    }
    let (created, took) =
        timed(shared, shared.cri.create_container(&sandbox.id, &spec, &sandbox.spec)).await;
    count_images(job, container, created.as_ref().err());
    let id = created.map_err(|error| {
        let message = runtime_message(&error);
        job.event(Some(&start.name), &EventReason::Failed(message.clone()));
        // The request stays the same, but another container may create or replace a mount point.
        let may_end = nested_mounts::is_retryable(&job.pod, container, &error.message);
        let not_started = if error.is_refusal() && !may_end { refused } else { failed };
        not_started("CreateContainerError", message)
    })?;
    job.event(Some(&start.name), &EventReason::Created);
    job.send(Progress::Created(start.name.clone(), took));
    shared.managers.created(&job.pod, &start.name, &id);
    if job.terminating.is_cancelled() {
        return Err(NotStarted::Terminating);
    }
    let (started, took) = timed(shared, shared.cri.start_container(&id)).await;
    started.map_err(|error| {
        let message = runtime_message(&error);
        // Without the id, the event of each attempt is the same (Kubernetes 1.36,
        // pkg/kubelet/kuberuntime/kuberuntime_container.go recordContainerEvent).
        let without_id = match id.as_str() {
            "" => message.clone(),
            id => message.replace(id, &start.name),
        };
        job.event(Some(&start.name), &EventReason::Failed(without_id));
        failed_after(&id, "RunContainerError", message)
    })?;
    job.event(Some(&start.name), &EventReason::Started);
    shared.measures.count(Counted::Started(kind_name(start.kind)));
    job.send(Progress::Started(start.name.clone(), took));
    link_log(job, sandbox, &spec, &id);
    job.send(Progress::Done(CompletedCall::Start {
        name: start.name.clone(),
        id: id.clone(),
        backoff_key: start.backoff_key.clone(),
    }));
    let lifecycle = container.lifecycle.as_ref();
    match lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref()) {
        None => Ok(()),
        Some(hook) => Box::pin(post_start(job, sandbox, container, hook, &id)).await,
    }
}

/// Counts the images that a new container mounts. `failed` is the error of its creation.
fn count_images(job: &Job, container: &Container, failed: Option<&CriError>) {
    // The prefix of a runtime's message (Kubernetes 1.36, k8s.io/cri-api/pkg/errors ErrImageVolumeMountFailed).
    const MOUNT_FAILED: &str = "ImageVolumeMountFailed";
    let is_image = |name: &str| {
        let mut volumes = job.pod.spec().volumes.iter().flatten();
        volumes.any(|volume| volume.name == name && volume.image.is_some())
    };
    let mounts = container.volume_mounts.iter().flatten().map(|mount| mount.name.as_str());
    let images: Vec<&str> = mounts.filter(|name| is_image(name)).collect();
    let measures = &job.shared.measures;
    for _ in images.iter().collect::<Set<_>>() {
        measures.count(Counted::ImageVolume);
    }
    let failed = failed.is_some_and(|error| error.message.starts_with(MOUNT_FAILED));
    for _ in &images {
        measures.count(match failed {
            true => Counted::ImageVolumeFailed,
            false => Counted::ImageVolumeMounted,
        });
    }
}

/// Allocates a container's devices: those of its ResourceClaims come before those of device plugins.
async fn assign(job: &Job, container: &Container) -> Result<Assigned, String> {
    let claims = job.shared.claim_manager.as_ref().filter(|_| has_claims(&job.pod));
    let of_claims = claims.map(|claims| claims.cdi_devices(&job.pod, container)).transpose()?;
    let mut assigned = job.shared.managers.prepare(&job.pod, container).await?;
    if let Some(devices) = of_claims {
        assigned.cdi_devices.splice(..0, devices);
    }
    Ok(assigned)
}

/// Creates the directories of a container's subPath mounts.
async fn prepare_sub_paths(
    job: &Job,
    container: &str,
    wanted: Vec<SubPath>,
) -> Result<Vec<subpath::Prepared>, NotStarted> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let prepare =
        move || -> Result<Vec<_>, SubPathError> { wanted.iter().map(subpath::prepare).collect() };
    blocking(prepare).await.map_err(|error| {
        tracing::warn!(pod = %job.pod.full_name(), container, error = %chain(&error), "failed to prepare subPath");
        let message = error.to_string();
        job.event(Some(container), &EventReason::Failed(message.clone()));
        failed("CreateContainerConfigError", message)
    })
}

/// The failure of an image pull: the container's own image, or one that it mounts.
fn no_image(job: &Job, container: &str, error: PullError) -> NotStarted {
    let reason = EventReason::Failed(error.reason.to_string());
    job.event(Some(container), &reason);
    NotStarted::Failed {
        reason: Cow::Owned(error.reason.into_string()),
        refused: error.refused,
        message: error.message,
        until: error.until,
        attempt: None,
    }
}

/// Creates the link by which log collectors find the container's log. A failure does not prevent the start.
fn link_log(job: &Job, sandbox: &SandboxContext, container: &ContainerSpec, id: &ContainerId) {
    let Some(directory) = job.shared.config.container_logs_dir.clone() else {
        return;
    };
    let name = links::name(&job.pod, &container.name, id);
    let log = Path::new(&sandbox.spec.log_directory).join(&container.log_path);
    if let Err(error) = brief(|| links::make(&directory, &name, &log)) {
        tracing::warn!(pod = %job.pod.full_name(), container = container.name, %error, "failed to link to the container's log");
    }
}

/// Runs the postStart hook. If it fails, the container is stopped. The pod's termination waits for the hook, as in a kubelet,
/// unless the agent must kill its pods.
async fn post_start(
    job: &Arc<Job>,
    sandbox: &SandboxContext,
    container: &Container,
    handler: &LifecycleHandler,
    id: &ContainerId,
) -> Result<(), NotStarted> {
    let host = sandbox.host.as_deref();
    let mut kill_now = job.shared.kill_now.clone();
    let result = tokio::select! {
        result = hook::run(&job.shared, &job.pod, container, handler, id, host) => result,
        () = kill_requested(&mut kill_now) => Ok(()),
    };
    let Err(message) = result else {
        job.send(Progress::HookEnded(container.name.clone()));
        return Ok(());
    };
    tracing::warn!(pod = %job.pod.full_name(), container = %container.name, error = %message, "postStart hook failed");
    // The event has no details, which may contain secrets.
    job.event(Some(&container.name), &EventReason::FailedPostStartHook);
    let failed = Progress::HookFailed(container.name.clone(), message.clone());
    job.send(failed);
    let stop = stop::after_failed_post_start(&job.pod, id, &container.name);
    let killer = Killer { host: sandbox.host.clone(), ..job.killer() };
    for failure in killer.kill(&stop).await {
        tracing::warn!(pod = %job.pod.full_name(), container = %failure.name, error = %failure.error, "failed to stop container");
    }
    Err(failed_after(id, "PostStartHookError", message))
}

/// The maximum size of a container's files of environment variables together. The kernel starts no process with as many variables.
const MOST_IN_ENV_FILES: usize = 8 << 20;

/// Reads the files of environment variables that a container refers to, in the mounted volumes. Those beyond the limit count as
/// unreadable: a container may link to one large file by thousands of names.
fn read_env_files(container: &Container, volumes: &Map<String, HostVolume>) -> EnvFiles {
    let (mut files, mut room) = (EnvFiles::default(), MOST_IN_ENV_FILES);
    for (volume, path) in env::files(container) {
        let place = (volume.to_owned(), path.to_owned());
        let Some(mounted) = volumes.get(volume).filter(|_| !files.contains_key(&place)) else {
            continue;
        };
        let (shown, text) = match room {
            0 => (mounted.host_path.join(path), None),
            _ => subpath::read_file(&mounted.host_path, Path::new(path)),
        };
        let size = text.as_ref().map_or(0, String::len);
        let text = text.filter(|_| size <= room);
        room = room.saturating_sub(size);
        files.insert(place, EnvFile { path: shown, text });
    }
    files
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn files_of_environment_variables_have_a_limit_together() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("large"), vec![b'#'; 1 << 20]).unwrap();
        let variable = |number: usize| {
            let path = format!("f{number}");
            std::os::unix::fs::symlink("large", place.path().join(&path)).unwrap();
            let file = json!({"volumeName": "v", "path": path, "key": "KEY"});
            json!({"name": "A", "valueFrom": {"fileKeyRef": file}})
        };
        let env: Vec<_> = (0..10).map(variable).collect();
        let container = serde_json::from_value(json!({"name": "c", "env": env})).unwrap();
        let volume = HostVolume { host_path: place.path().to_owned(), ..HostVolume::default() };
        let volumes = Map::from([("v".to_owned(), volume)]);
        let files = read_env_files(&container, &volumes);
        let read = files.iter().filter(|(_, file)| file.text.is_some()).count();
        assert_eq!((files.iter().count(), read), (10, MOST_IN_ENV_FILES >> 20));
    }
}
