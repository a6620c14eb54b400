//! Rules for timestamps that a client reads long after the event.

use cri::v1::ContainerEventType;

use crate::prelude::*;
use crate::rules::event::{events_of, kind, subscribe};
use crate::rules::process::TICK;
use crate::rules::sandbox::echo::now;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-PRC-015": "started_at and finished_at are the times of StartContainer and of the exit, however late ContainerStatus is called.",
        KUBELET, tags ["kubelet", "time"], calls [StartContainer, ContainerStatus],
        times_are_those_of_what_happened given [pod], faults [
            "ContainerStatus drop status.started_at",
            "ContainerStatus drop status.finished_at",
            "ContainerStatus set status.finished_at 1800000000",
        ];
    Should "CRI-EVT-010": "created_at of an event is the time of the event, not the time at which its container was created.",
        API, tags ["evented-pleg", "time"], calls [GetContainerEvents],
        event_times_are_those_of_what_happened, faults [
            "GetContainerEvents drop created_at",
            "GetContainerEvents set created_at 1700000000000000000",
        ];
};

/// The pause between two moments that the rule must distinguish.
const INTERVAL: Duration = Duration::from_secs(4);
/// How late a runtime may notice an exit, in nanoseconds.
const LATE: i64 = 3_000_000_000;

async fn times_are_those_of_what_happened(x: &Context, pod: Pod) -> Verdict {
    let id = pod.create(x.script("c", "echo ended")).await?;
    tokio::time::sleep(INTERVAL).await;
    let started = now();
    x.client.start(&id).await?;
    // `logged` reads the log without calling the runtime.
    x.logged(&pod, "ended").await?;
    let ended = now();
    tokio::time::sleep(INTERVAL).await;
    let status = x.exited(&id).await?;
    let what = "started_at of a container created 4 s before";
    let holds = status.started_at >= started - TICK && status.started_at <= ended;
    ensure(holds, what, &format!("between {started} and {ended}"), status.started_at)?;
    // Some runtimes notice a container's exit before its start.
    let what = "finished_at of a container that ended 4 s ago";
    let holds = (started - TICK..=ended + LATE).contains(&status.finished_at);
    ensure(holds, what, &format!("between {started} and {}", ended + LATE), status.finished_at)
}

async fn event_times_are_those_of_what_happened(x: &Context) -> Verdict {
    let subscription = subscribe(x).await?;
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    tokio::time::sleep(INTERVAL).await;
    let stopped = now();
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    let events = events_of(x, subscription, &[&pod.id, &id]).await?;
    let wanted = (id, ContainerEventType::ContainerStoppedEvent);
    let Some(event) = events.iter().find(|event| kind(event) == wanted) else {
        return failed("the events", "an event of the container's exit", format!("{events:?}"));
    };
    let what = "created_at of the container's exit event";
    let holds = event.created_at >= stopped - TICK;
    ensure(holds, what, &format!("{stopped} or later"), event.created_at)
}
