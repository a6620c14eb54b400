//! Starts one container: image, configuration, CreateContainer, StartContainer.

use std::sync::Arc;

use super::{Failure, Job, Place, Progress, chain, timed};
use crate::blocking::blocking;
use crate::images::{NoImage, PullPolicy};
use crate::plan::Start;
use crate::spec::{self, ContainerInputs};

/// Starts a container. Says whether it was started.
pub(super) async fn start(job: &Arc<Job>, place: &Place, start: Start) -> bool {
    let name = start.name.clone();
    match run(job, place, start).await {
        Ok(()) => true,
        Err(Stop::Ending) => false,
        Err(Stop::Failed {
            reason,
            message,
            until,
        }) => {
            job.say(Progress::Failed(Failure {
                container: Some(name),
                reason: reason.to_owned(),
                message,
                until,
            }));
            false
        }
    }
}

/// Why a container was not started.
enum Stop {
    /// The pod is to end.
    Ending,
    /// It failed.
    Failed {
        reason: &'static str,
        message: String,
        until: Option<jiff::Timestamp>,
    },
}

fn failed(reason: &'static str, message: String) -> Stop {
    Stop::Failed {
        reason,
        message,
        until: None,
    }
}

async fn run(job: &Arc<Job>, place: &Place, start: Start) -> Result<(), Stop> {
    if job.ending.is_cancelled() {
        return Err(Stop::Ending);
    }
    let shared = &job.shared;
    let Some((_, container)) = job.pod.container(&start.name) else {
        return Err(failed(
            "CreateContainerConfigError",
            "the pod has no container of that name".to_owned(),
        ));
    };
    job.say(Progress::Attempting(start.clone()));

    let image = container.image.as_deref().unwrap_or_default();
    let policy = PullPolicy::of(container.image_pull_policy.as_deref());
    let got = shared
        .images
        .get(job.pod.uid(), image, policy, &place.spec, &job.ending)
        .await
        .map_err(|no| match no {
            NoImage::GivenUp => Stop::Ending,
            NoImage::Refused(refusal) => Stop::Failed {
                reason: refusal.reason,
                message: refusal.message,
                until: refusal.until,
            },
        })?;
    if let Some(took) = got.pull {
        job.say(Progress::Pulled(start.name.clone(), took));
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
        ips: place.ips.clone(),
        image_ref: got.reference,
        image_user: got.user,
        volumes: place.volumes.clone(),
        termination_log: Some(message_file),
        target,
    };
    let spec = spec::container(&job.pod, container, &inputs, &shared.node)
        .map_err(|error| failed("CreateContainerConfigError", error.to_string()))?;
    if job.ending.is_cancelled() {
        return Err(Stop::Ending);
    }

    let (created, took) = timed(
        shared,
        shared.cri.create_container(&place.id, &spec, &place.spec),
    )
    .await;
    let id = created.map_err(|error| failed("CreateContainerError", error.to_string()))?;
    job.say(Progress::Created(start.name.clone(), took));
    if job.ending.is_cancelled() {
        return Err(Stop::Ending);
    }
    let (started, took) = timed(shared, shared.cri.start_container(&id)).await;
    started.map_err(|error| failed("RunContainerError", error.to_string()))?;
    job.say(Progress::Started(start.name, took));
    Ok(())
}
