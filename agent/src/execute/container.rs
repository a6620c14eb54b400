//! Starts one container: image, configuration, CreateContainer, StartContainer.

use std::sync::Arc;

use super::{Failure, Job, Progress, SandboxContext, chain, timed};
use crate::blocking::blocking;
use crate::images::{ImageError, PullPolicy};
use crate::plan::Start;
use crate::spec::{self, ContainerInputs};

/// Starts a container. Returns whether it started.
pub(super) async fn start(job: &Arc<Job>, sandbox: &SandboxContext, start: Start) -> bool {
    let name = start.name.clone();
    match run(job, sandbox, start).await {
        Ok(()) => true,
        Err(NotStarted::Terminating) => false,
        Err(NotStarted::Failed {
            reason,
            message,
            until,
            refused,
        }) => {
            job.send(Progress::Failed(Failure {
                container: Some(name),
                reason: reason.to_owned(),
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
        reason: &'static str,
        message: String,
        until: Option<jiff::Timestamp>,
        /// Every other attempt fails too.
        refused: bool,
    },
}

fn failed(reason: &'static str, message: String) -> NotStarted {
    NotStarted::Failed {
        reason,
        message,
        until: None,
        refused: false,
    }
}

/// A failure of what the manifest asks for, which no attempt can give.
fn refused(reason: &'static str, message: String) -> NotStarted {
    NotStarted::Failed {
        reason,
        message,
        until: None,
        refused: true,
    }
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

    let image = container.image.as_deref().unwrap_or_default();
    let policy = PullPolicy::of(container.image_pull_policy.as_deref());
    let got = shared
        .images
        .get(
            job.pod.uid(),
            image,
            policy,
            &sandbox.spec,
            &job.terminating,
        )
        .await
        .map_err(|no| match no {
            ImageError::Cancelled => NotStarted::Terminating,
            ImageError::Failed(error) => NotStarted::Failed {
                reason: error.reason,
                // The reference in the manifest.
                refused: error.reason == "InvalidImageName",
                message: error.message,
                until: error.until,
            },
        })?;
    if let Some(took) = got.pull {
        job.send(Progress::Pulled(start.name.clone(), took));
    }

    let (attempt, message_file) = {
        let (dirs, name, count) = (job.dirs.clone(), start.name.clone(), start.restart_count);
        blocking(move || {
            let attempt = count.unwrap_or_else(|| dirs.restart_count_by_logs(&name));
            dirs.make_termination_message(&name, attempt)
                .map(|file| (attempt, file))
        })
        .await
        .map_err(|error| failed("CreateContainerConfigError", chain(&error)))?
    };
    let target = job.target_of(&start.name);
    let inputs = ContainerInputs {
        restart_count: attempt,
        ips: sandbox.ips.clone(),
        image_ref: got.reference,
        image_user: got.user,
        volumes: sandbox.volumes.clone(),
        termination_log: Some(message_file),
        target,
    };
    let spec = spec::container(&job.pod, container, &inputs, &shared.node)
        .map_err(|error| refused("CreateContainerConfigError", error.to_string()))?;
    if job.terminating.is_cancelled() {
        return Err(NotStarted::Terminating);
    }

    let (created, took) = timed(
        shared,
        shared
            .cri
            .create_container(&sandbox.id, &spec, &sandbox.spec),
    )
    .await;
    let id = created.map_err(|error| {
        let not_started = if error.is_refusal() { refused } else { failed };
        not_started("CreateContainerError", error.to_string())
    })?;
    job.send(Progress::Created(start.name.clone(), took));
    if job.terminating.is_cancelled() {
        return Err(NotStarted::Terminating);
    }
    let (started, took) = timed(shared, shared.cri.start_container(&id)).await;
    started.map_err(|error| failed("RunContainerError", error.to_string()))?;
    job.send(Progress::Started(start.name, took));
    Ok(())
}
