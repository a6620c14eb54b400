//! Rules for calls during a pull, and for mounts on the host after a pod's removal.

use registry::Fault;

use crate::prelude::*;
use crate::rules::image::{add, refusal};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-CON-011": "A PullImage in progress does not delay ListImages, ImageStatus or the start of a container: a pull may take minutes.",
        KUBELET, tags ["kubelet", "pull", "time"], calls [PullImage, ListImages, ImageStatus, CreateContainer],
        pull_hinders_nothing given [pod], faults [
            "ListImages delay 3",
            "ImageStatus delay 3",
            "CreateContainer delay 3",
            "PullImage answer UNKNOWN",
        ];
    Should "CRI-SBX-024": "After RemoveContainer and RemovePodSandbox, the host has no mount whose path contains the id of the container or sandbox.",
        API, tags ["leaks"], calls [RemovePodSandbox, RemoveContainer],
        no_mounts_are_left given [pod, container], faults ["RemovePodSandbox answer UNKNOWN", "RemoveContainer hang"];
};

/// How long the registry delays a layer.
const PULL: Duration = Duration::from_secs(6);
/// How long the other calls may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

async fn pull_hinders_nothing(x: &Context, pod: Pod) -> Verdict {
    let (name, _) = add(x, "1", |image| image)?;
    let images = x.images()?;
    let repository = images.repository(&x.rule.to_lowercase());
    let (blobs, manifests) = (format!("{repository}/blobs/"), format!("{repository}/manifests/"));
    images.fail(Fault::delay(PULL).method("GET").on(&blobs).times(1));
    let client = x.client.clone();
    let mut pull = tasks::spawn(async move { client.pull(&name).await });
    // The registry counts a request when it has answered it, so the delayed request for the content is not counted yet.
    let requested = x.until("the runtime to get the image's manifest", async || {
        match images.seen(&manifests) {
            0 => Err("no request"),
            _ => Ok(()),
        }
    });
    tokio::select! {
        requested = requested => requested?,
        pulled = &mut pull => {
            joined("PullImage", pulled)?.map_err(refusal)?;
            return failed("PullImage", "to wait for the content", "an answer");
        }
    }
    let calls = async {
        x.client.list_images().await?;
        x.client.image(&x.shared.image).await?;
        pod.start(x.forever("c")).await
    };
    let answered = tokio::time::timeout(ANSWER_LIMIT, calls).await;
    let pulls = !pull.is_finished();
    // Wait for its end, so that the image can be removed.
    let pulled = pull.await;
    match answered {
        Ok(answer) => drop(answer?),
        Err(_) => {
            let what = "ListImages, ImageStatus and the start of a container during a pull";
            return failed(what, format!("answers within {ANSWER_LIMIT:?}"), "none");
        }
    }
    ensure(pulls, "PullImage", "not answered yet", &pulled)?;
    joined("PullImage", pulled)?.map(drop).map_err(refusal)
}

async fn no_mounts_are_left(x: &Context, pod: Pod, id: String) -> Verdict {
    x.client.stop(&id, 0).await?;
    x.client.remove(&id).await?;
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    x.until("no mount with the ids in its path", async || {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let left = |line: &&str| line.contains(&pod.id) || line.contains(&id);
        let left: Vec<String> = table.lines().filter(left).map(str::to_owned).collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await
}
