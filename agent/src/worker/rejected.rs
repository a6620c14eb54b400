//! The lifecycle of a pod that the node rejects: reported as failed until no source has it.
//!
//! Its rejection is stored in a file, so that it stays rejected after a restart of the agent, whatever resources the node then has.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::pod::{Pod, PodUid};
use compact::Set;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::watch;

use super::PodUpdate;
use super::reporting::{Timings, pod_report};
use crate::observed::Observed;
use crate::pod_spec::admission::Rejection;
use crate::reporting::causes::Causes;
use crate::reporting::events::EventReason;
use crate::reporting::measures::Counted;
use crate::reporting::report::transitions::Stage;
use crate::shared::Shared;
use crate::storage::volumes::component;
use tasks::blocking;

/// The directory of the records.
fn records(root: &Path) -> PathBuf {
    root.join("rejected")
}

/// The file of a pod's rejection.
fn record(root: &Path, uid: &PodUid) -> PathBuf {
    records(root).join(component(uid.as_str()).as_str())
}

/// Removes the records of pods that were removed while no agent ran: those whose name is not in `kept`.
pub(crate) fn forget_others(root: &Path, kept: &Set<OsString>) {
    let Ok(entries) = std::fs::read_dir(records(root)) else {
        return;
    };
    for entry in entries.flatten() {
        if !kept.contains(&entry.file_name()) {
            forget(&entry.path());
        }
    }
}

/// The rejection by an earlier agent, if its record can be read.
pub(crate) fn recorded(root: &Path, uid: &PodUid) -> Option<Rejection> {
    let text = std::fs::read(record(root, uid)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Reports a pod as rejected until its last update ends it.
pub(crate) async fn run(
    shared: Arc<Shared>,
    pod: Pod,
    rejection: Rejection,
    mut updates: watch::Receiver<PodUpdate>,
) {
    tracing::warn!(pod = %pod.full_name(), reason = rejection.reason, message = rejection.message, "pod rejected");
    let file = record(&shared.config.root_dir, pod.uid());
    if let Err(error) = keep(file.clone(), rejection.clone()).await {
        tracing::warn!(path = %file.display(), %error, "failed to record the rejection of a pod");
    }
    shared.measures.count(Counted::Rejected(rejection.reason.to_string()));
    let reason = EventReason::Rejected(rejection.clone());
    shared.events.record(&pod, None, &reason);
    let now = shared.clock.now();
    let mut status = rejection.status(&pod);
    status.start_time = Some(Time(now));
    let status = Arc::new(status);
    let observed = Observed::nothing(now);
    let report = |stage| pod_report(&pod, &status, &observed, &Timings::default(), stage);
    let cause = Causes::pod(format!("{}: {}", rejection.reason, rejection.message));
    shared.status_store.publish(report(Stage::Terminated), Stage::Terminated, cause);

    let is_ended = |update: &PodUpdate| matches!(update, PodUpdate::Terminate { .. });
    let agent_stops = updates.wait_for(is_ended).await.is_err();
    if agent_stops {
        return std::future::pending().await;
    }
    blocking(move || forget(&file)).await;
    shared.status_store.publish(
        report(Stage::Removed),
        Stage::Removed,
        Causes::pod("pod was removed"),
    );
}

async fn keep(file: PathBuf, rejection: Rejection) -> io::Result<()> {
    blocking(move || {
        if let Some(directory) = file.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(file, serde_json::to_vec(&rejection)?)
    })
    .await
}

fn forget(file: &Path) {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %file.display(), %error, "failed to remove the record of a rejected pod");
        }
        Ok(()) | Err(_) => {}
    }
}
