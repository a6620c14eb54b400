//! Rules of the events of containers that are removed with their sandbox.

use cri::v1::ContainerEventType;

use crate::prelude::*;
use crate::rules::event::{events_of, kind, subscribe};

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-EVT-011": "RemovePodSandbox sends one CONTAINER_DELETED_EVENT for each container that it removes.",
        CONTAINERD, tags ["evented-pleg"], calls [GetContainerEvents, RemovePodSandbox],
        removed_sandbox_tells_of_its_containers, faults [
            "GetContainerEvents if container_event_type == \"CONTAINER_DELETED_EVENT\" lose",
            "GetContainerEvents if container_event_type == \"CONTAINER_DELETED_EVENT\" repeat",
        ];
};

async fn removed_sandbox_tells_of_its_containers(x: &Context) -> Verdict {
    let subscription = subscribe(x).await?;
    let pod = x.pod().await?;
    let ended = x.running(&pod).await?;
    let created = pod.create(x.forever("created")).await?;
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    let ids = [pod.id.as_str(), ended.as_str(), created.as_str()];
    let events = events_of(x, subscription, &ids).await?;
    for (what, id) in
        [("a container that has run", &ended), ("a container that was only created", &created)]
    {
        let deleted = (id.clone(), ContainerEventType::ContainerDeletedEvent);
        let count = events.iter().filter(|event| kind(event) == deleted);
        let what = format!(
            "the number of {} for {what}",
            ContainerEventType::ContainerDeletedEvent.as_str_name()
        );
        equal(&what, &count.count(), &1)?;
    }
    Ok(())
}
