//! Rules of times that a client cannot take from its own calls: it asks long after something has happened.

use std::time::Duration;

use cri::v1::ContainerEventType;

use super::event::{events_of, kind, subscribe};
use super::process::TICK;
use super::sandbox_echo::now;
use crate::check::context::Context;
use crate::check::outcome::{Verdict, ensure, failed};
use crate::check::rule::sources::{API, KUBELET};
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-PRC-015",
        severity: Severity::Must,
        says: "The status has the times of StartContainer and of the container's end, however late a client asks for it.",
        source: KUBELET,
        tags: &["kubelet", "time"],
        calls: &["StartContainer", "ContainerStatus"],
        faults: &[
            "ContainerStatus drop status.started_at",
            "ContainerStatus drop status.finished_at",
            "ContainerStatus set status.finished_at 1800000000",
        ],
        body: |x| Box::pin(times_are_those_of_what_happened(x)),
    },
    Rule {
        id: "CRI-EVT-010",
        severity: Severity::Should,
        says: "The time of an event is that of what it tells, not that of its container's creation.",
        source: API,
        tags: &["evented-pleg", "time"],
        calls: &["GetContainerEvents"],
        faults: &[
            "GetContainerEvents drop created_at",
            "GetContainerEvents set created_at 1700000000000000000",
        ],
        body: |x| Box::pin(event_times_are_those_of_what_happened(x)),
    },
];

/// How long nothing is done between two moments that are told apart.
const APART: Duration = Duration::from_secs(4);
/// How late a runtime may see what has happened, in nanoseconds.
const LATE: i64 = 3_000_000_000;

async fn times_are_those_of_what_happened(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = pod.create(x.script("c", "echo ended")).await?;
    tokio::time::sleep(APART).await;
    let started = now();
    x.client.start(&id).await?;
    // Its log is read, and the runtime is not asked.
    x.logged(&pod, "ended").await?;
    let ended = now();
    tokio::time::sleep(APART).await;
    let status = x.exited(&id).await?;
    ensure(
        status.started_at >= started - TICK && status.started_at <= ended,
        "started_at of a container that was made 4 s before",
        &format!("between {started} and {ended}"),
        status.started_at,
    )?;
    // Some runtimes know that a container has ended before they know that it has started.
    ensure(
        (started - TICK..=ended + LATE).contains(&status.finished_at),
        "finished_at of a container that ended 4 s ago",
        &format!("between {started} and {}", ended + LATE),
        status.finished_at,
    )
}

async fn event_times_are_those_of_what_happened(x: &Context) -> Verdict {
    let subscription = subscribe(x).await?;
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    tokio::time::sleep(APART).await;
    let stopped = now();
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    let events = events_of(x, subscription, &[&pod.id, &id]).await?;
    let wanted = (id, ContainerEventType::ContainerStoppedEvent);
    let Some(event) = events.iter().find(|event| kind(event) == wanted) else {
        return failed(
            "the events",
            "one of the container's end",
            format!("{events:?}"),
        );
    };
    ensure(
        event.created_at >= stopped - TICK,
        "created_at of the event of the end",
        &format!("{stopped} or later"),
        event.created_at,
    )
}
