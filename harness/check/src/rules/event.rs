//! Rules of GetContainerEvents: order, completeness, and the statuses that events carry.

use std::time::{SystemTime, UNIX_EPOCH};

use cri::v1::ContainerEventType::{
    ContainerCreatedEvent as Created, ContainerDeletedEvent as Deleted,
    ContainerStartedEvent as Started, ContainerStoppedEvent as Stopped,
};
use cri::v1::{ContainerEventResponse, ContainerEventType};
use tokio::task::JoinSet;
use tonic::Streaming;

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-EVT-001": "Each state change of a sandbox and its container is reported in one event, and the events are in order.",
        CONTAINERD, tags ["kubelet", "evented-pleg", "order"], calls [GetContainerEvents],
        each_change_is_one_event, faults [
            "GetContainerEvents if container_event_type = \"CONTAINER_STARTED_EVENT\" lose",
            "GetContainerEvents if container_event_type = \"CONTAINER_STOPPED_EVENT\" repeat",
            "GetContainerEvents if container_event_type = \"CONTAINER_STARTED_EVENT\" late 2",
            "GetContainerEvents set container_event_type \"CONTAINER_STARTED_EVENT\"",
        ];
    Should "CRI-EVT-002": "Every subscriber receives every event.",
        CONTAINERD, tags ["evented-pleg"], calls [GetContainerEvents],
        every_subscriber_receives_every_event, faults [
            "GetContainerEvents after 1 lose",
            "GetContainerEvents after 1 if container_event_type = \"CONTAINER_DELETED_EVENT\" repeat",
        ];
    Should "CRI-EVT-003": "An event carries the statuses of its sandbox and containers at the time of the event, except that a sandbox's removal event carries no sandbox status.",
        CONTAINERD, tags ["kubelet", "evented-pleg"], calls [GetContainerEvents],
        events_carry_statuses, faults [
            "GetContainerEvents drop pod_sandbox_status",
            "GetContainerEvents drop containers_statuses",
            "GetContainerEvents set containers_statuses.state \"CONTAINER_RUNNING\"",
            "GetContainerEvents set pod_sandbox_status.state \"SANDBOX_NOTREADY\"",
            "GetContainerEvents if container_event_type = \"CONTAINER_DELETED_EVENT\" set pod_sandbox_status.id \"none\"",
        ];
    Should "CRI-EVT-004": "A container's CONTAINER_STOPPED_EVENT carries its exit code and reason.",
        KUBELET, tags ["kubelet", "evented-pleg", "exit"], calls [GetContainerEvents],
        exit_event_carries_exit_code, faults [
            "GetContainerEvents drop containers_statuses.exit_code",
            "GetContainerEvents drop containers_statuses.reason",
            "GetContainerEvents if container_event_type = \"CONTAINER_STOPPED_EVENT\" lose",
        ];
    Should "CRI-EVT-005": "created_at of a sandbox's events is the time of the state change in nanoseconds, and never decreases from one event to the next.",
        API, tags ["evented-pleg", "time"], calls [GetContainerEvents],
        event_times_do_not_go_back, faults [
            "GetContainerEvents drop created_at",
            "GetContainerEvents if container_event_type = \"CONTAINER_STARTED_EVENT\" set created_at 1500000000000000000",
            "GetContainerEvents set created_at 1700000000000000000",
            "GetContainerEvents set created_at 4000000000000000000",
        ];
    Should "CRI-EVT-006": "Each container exit is reported in one event with its exit code and reason, however the container ends.",
        KUBELET, tags ["evented-pleg", "exit"], calls [GetContainerEvents],
        each_end_is_an_event, faults [
            "GetContainerEvents if container_event_type = \"CONTAINER_STOPPED_EVENT\" lose",
            "GetContainerEvents if container_event_type = \"CONTAINER_STOPPED_EVENT\" repeat",
            "GetContainerEvents drop containers_statuses.exit_code",
            "GetContainerEvents if container_event_type == \"CONTAINER_STOPPED_EVENT\" and containers_statuses.exit_code == 137 lose",
            "GetContainerEvents set containers_statuses.reason \"Error\"",
        ];
    Should "CRI-EVT-007": "No event is lost or repeated when many containers start and exit concurrently.",
        KUBELET, tags ["evented-pleg", "concurrency"], calls [GetContainerEvents],
        burst_of_events_is_complete, faults [
            "GetContainerEvents if container_event_type == \"CONTAINER_STARTED_EVENT\" and containers_statuses.metadata.name == \"c13\" lose",
            "GetContainerEvents if container_event_type == \"CONTAINER_STOPPED_EVENT\" and containers_statuses.metadata.name == \"c13\" repeat",
        ];
    Should "CRI-EVT-008": "A new subscriber receives only events that occur after it subscribes.",
        CONTAINERD, tags ["evented-pleg"], calls [GetContainerEvents],
        second_subscriber_has_no_past, faults [
            "GetContainerEvents after 1 hang",
            "GetContainerEvents after 1 lose",
            "GetContainerEvents after 1 if container_event_type == \"CONTAINER_STARTED_EVENT\" set pod_sandbox_status.labels.past \"yes\"",
        ];
    Should "CRI-EVT-009": "A container's event carries the statuses of all containers in its pod, which the kubelet needs.",
        KUBELET, tags ["evented-pleg"], calls [GetContainerEvents],
        events_have_all_statuses, faults [
            "GetContainerEvents drop containers_statuses",
            "GetContainerEvents set containers_statuses.id \"other\"",
        ];
};

/// How many containers run concurrently.
const BURST: usize = 20;

pub(crate) type Subscription = Streaming<ContainerEventResponse>;

/// Subscribes. Some runtimes answer only with the first event, so this does not wait for the answer.
pub(crate) async fn subscribe(
    x: &Context,
) -> Verdict<tokio::task::JoinHandle<Result<Subscription, Status>>> {
    let client = x.client.clone();
    let mut subscribing = tasks::spawn(async move { client.events().await });
    // Runtimes refuse immediately; a slow call counts as subscribed.
    let answer = tokio::time::timeout(Duration::from_millis(500), &mut subscribing).await;
    match answer {
        Ok(Ok(Ok(stream))) => Ok(tasks::spawn(std::future::ready(Ok(stream)))),
        Ok(Ok(Err(status))) => Err(status.into()),
        Ok(Err(error)) => failed("GetContainerEvents", "an answer", error.to_string()),
        Err(_) => Ok(subscribing),
    }
}

/// The events of a sandbox and its containers, up to the one that deletes the sandbox.
pub(crate) async fn events_of(
    x: &Context,
    subscription: tokio::task::JoinHandle<Result<Subscription, Status>>,
    ids: &[&str],
) -> Verdict<Vec<ContainerEventResponse>> {
    let mut events = Vec::new();
    let reading = async {
        let mut stream = match subscription.await {
            Ok(answer) => answer?,
            Err(error) => return failed("GetContainerEvents", "an answer", error.to_string()),
        };
        loop {
            let event =
                present(stream.message().await?, "the stream of events", "to continue", "its end")?;
            if !ids.contains(&event.container_id.as_str()) {
                continue;
            }
            let last = Some(&event.container_id.as_str()) == ids.first()
                && event.container_event_type() == Deleted;
            events.push(event);
            if last {
                return Ok(());
            }
        }
    };
    match tokio::time::timeout(x.shared.wait_limit, reading).await {
        Ok(read) => read.map(|()| events),
        Err(_) => {
            let sandbox = ids.first().copied().unwrap_or_default();
            failed(
                "the events of a pod that was run and removed",
                format!(
                    "{} of the sandbox within {} s",
                    Deleted.as_str_name(),
                    x.shared.wait_limit.as_secs_f64()
                ),
                format!("no such event in: {}", in_words(&events, sandbox).join(", ")),
            )
        }
    }
}

/// The object and the type of each event, in order.
fn in_words(events: &[ContainerEventResponse], sandbox: &str) -> Vec<String> {
    let each = events.iter().map(|event| {
        let of = match event.container_id == sandbox {
            true => "the sandbox",
            false => "the container",
        };
        format!("{of}: {}", event.container_event_type().as_str_name())
    });
    each.collect()
}

pub(crate) fn kind(event: &ContainerEventResponse) -> (String, ContainerEventType) {
    (event.container_id.clone(), event.container_event_type())
}

/// Runs and removes a pod with a container that exits with 143.
async fn live(x: &Context) -> Verdict<(Pod, String)> {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    x.client.stop(&id, 30).await?;
    x.client.remove(&id).await?;
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    Ok((pod, id))
}

async fn run_and_collect_events(
    x: &Context,
) -> Verdict<(Pod, String, Vec<ContainerEventResponse>)> {
    let subscription = subscribe(x).await?;
    let (pod, id) = live(x).await?;
    let events = events_of(x, subscription, &[&pod.id, &id]).await?;
    Ok((pod, id, events))
}

async fn each_change_is_one_event(x: &Context) -> Verdict {
    let (pod, id, events) = run_and_collect_events(x).await?;
    let of = |id: &str, kind: ContainerEventType| ContainerEventResponse {
        container_id: id.to_owned(),
        container_event_type: kind.into(),
        ..Default::default()
    };
    let expected = [
        of(&pod.id, Created),
        of(&pod.id, Started),
        of(&id, Created),
        of(&id, Started),
        of(&id, Stopped),
        of(&id, Deleted),
        of(&pod.id, Stopped),
        of(&pod.id, Deleted),
    ];
    let (seen, expected) = (in_words(&events, &pod.id), in_words(&expected, &pod.id));
    equal("the events", &seen, &expected)
}

async fn every_subscriber_receives_every_event(x: &Context) -> Verdict {
    let first = subscribe(x).await?;
    let second = subscribe(x).await?;
    let (pod, id) = live(x).await?;
    let ids = [pod.id.as_str(), id.as_str()];
    let first = in_words(&events_of(x, first, &ids).await?, &pod.id);
    let second = in_words(&events_of(x, second, &ids).await?, &pod.id);
    equal("the events of the second subscriber", &second, &first)
}

async fn events_carry_statuses(x: &Context) -> Verdict {
    let (pod, id, events) = run_and_collect_events(x).await?;
    let Some((last, before)) = events.split_last() else {
        return failed("the events", "at least one", "none");
    };
    for event in before {
        let sandbox = event.pod_sandbox_status.clone().unwrap_or_default();
        equal("the sandbox of an event", &sandbox.id, &pod.id)?;
        let expected = match (event.container_id == id, event.container_event_type()) {
            (true, Created) => ContainerState::ContainerCreated,
            (true, Started) => ContainerState::ContainerRunning,
            (true, Stopped) => ContainerState::ContainerExited,
            (false, Started) => {
                let what = "the sandbox's state in its CONTAINER_STARTED_EVENT";
                equal(what, &sandbox.state(), &PodSandboxState::SandboxReady)?;
                continue;
            }
            _ => continue,
        };
        let status = event.containers_statuses.iter().find(|status| status.id == id);
        let state = status.map(v1::ContainerStatus::state);
        let what =
            format!("the container's state in {}", event.container_event_type().as_str_name());
        equal(&what, &state, &Some(expected))?;
    }
    match &last.pod_sandbox_status {
        None => Ok(()),
        // The kubelet accepts both: it has removed the sandbox itself.
        Some(sandbox) if sandbox.state() == PodSandboxState::SandboxNotready => {
            diverges("the last event carries the removed sandbox")
        }
        Some(sandbox) => failed(
            "the sandbox in its last event",
            "none, or one that is not ready",
            format!("{sandbox:?}"),
        ),
    }
}

async fn exit_event_carries_exit_code(x: &Context) -> Verdict {
    let (_, id, events) = run_and_collect_events(x).await?;
    let stopped = events.iter().find(|event| kind(event) == (id.clone(), Stopped));
    let status =
        stopped.and_then(|event| event.containers_statuses.iter().find(|status| status.id == id));
    let seen = status.map(|status| (status.exit_code, status.reason.as_str()));
    equal("the exit code and reason in CONTAINER_STOPPED_EVENT", &seen, &Some((143, "Error")))
}

async fn event_times_do_not_go_back(x: &Context) -> Verdict {
    let before = now();
    let (_, _, events) = run_and_collect_events(x).await?;
    let times: Vec<i64> = events.iter().map(|event| event.created_at).collect();
    // Clocks of one machine may differ in their resolution.
    let (first, last) = (before - 1_000_000_000, now() + 1_000_000_000);
    let in_time = times.iter().all(|time| (first..=last).contains(time));
    let expected = format!("nanoseconds between {first} and {last}, in order");
    ensure(in_time && times.is_sorted(), "created_at of the events", &expected, times)
}

/// The time in nanoseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

async fn each_end_is_an_event(x: &Context) -> Verdict {
    let subscription = subscribe(x).await?;
    let pod = x.pod().await?;
    let mut ids = Vec::new();
    for (name, code) in [("c", 7), ("d", 8), ("e", 0)] {
        let id = pod.start(x.script(name, &format!("exit {code}"))).await?;
        x.exited(&id).await?;
        ids.push((id, code));
    }
    let id = pod.start(x.forever("f")).await?;
    x.client.stop(&id, 0).await?;
    ids.push((id, 137));
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    let mut of_pod = vec![pod.id.as_str()];
    of_pod.extend(ids.iter().map(|(id, _)| id.as_str()));
    let events = events_of(x, subscription, &of_pod).await?;
    for (id, code) in &ids {
        let ends = events.iter().filter(|event| kind(event) == (id.clone(), Stopped));
        let seen = ends.map(|event| {
            let mut statuses = event.containers_statuses.iter();
            let status = statuses.find(|status| status.id == *id)?;
            Some((status.exit_code, status.reason.as_str()))
        });
        let reason = if *code == 0 { "Completed" } else { "Error" };
        let what = format!("exit code and reason in each CONTAINER_STOPPED_EVENT of {id}");
        equal(&what, &seen.collect::<Vec<_>>(), &vec![Some((*code, reason))])?;
    }
    Ok(())
}

async fn burst_of_events_is_complete(x: &Context) -> Verdict {
    let subscription = subscribe(x).await?;
    let pod = x.pod().await?;
    let names: Vec<String> = (0..BURST).map(|number| format!("c{number}")).collect();
    let mut lives = JoinSet::new();
    for name in names {
        let (x, pod) = (x.clone(), pod.clone());
        lives.spawn(tasks::boxed(async move {
            let id = pod.start(x.script(&name, "exit 0")).await?;
            x.exited(&id).await?;
            x.client.remove(&id).await?;
            Verdict::Ok(id)
        }));
    }
    let mut ids = Vec::new();
    while let Some(ended) = lives.join_next().await {
        ids.push(joined("a container", ended)??);
    }
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    let mut of_pod = vec![pod.id.as_str()];
    of_pod.extend(ids.iter().map(String::as_str));
    let events = events_of(x, subscription, &of_pod).await?;
    for id in &ids {
        let seen = events.iter().filter(|event| event.container_id == *id);
        let seen: Vec<_> = seen.map(ContainerEventResponse::container_event_type).collect();
        let what = format!("the events of container {id}, one of {BURST}");
        equal(&what, &seen, &vec![Created, Started, Stopped, Deleted])?;
    }
    Ok(())
}

async fn second_subscriber_has_no_past(x: &Context) -> Verdict {
    let first = subscribe(x).await?;
    let mut config = x.sandbox();
    config.labels.insert("past".to_owned(), "yes".to_owned());
    let past = x.pod_of(config).await?;
    let of_past = x.running(&past).await?;
    x.client.remove_pod(&past.id).await?;
    // When the first subscriber has the last event, the runtime has sent all of them.
    events_of(x, first, &[&past.id, &of_past]).await?;
    let second = subscribe(x).await?;
    let pod = x.pod().await?;
    x.client.remove_pod(&pod.id).await?;
    let seen = events_of(x, second, &[&pod.id, &past.id, &of_past]).await?;
    let is_past = |event: &ContainerEventResponse| {
        let sandbox = event.pod_sandbox_status.as_ref();
        event.container_id != pod.id
            || sandbox.is_some_and(|sandbox| sandbox.labels.contains_key("past"))
    };
    let old: Vec<_> = seen.iter().filter(|event| is_past(event)).collect();
    ensure(old.is_empty(), "events of an earlier sandbox for the second subscriber", "none", old)
}

async fn events_have_all_statuses(x: &Context) -> Verdict {
    let subscription = subscribe(x).await?;
    let pod = x.pod().await?;
    let first = pod.start(x.script("c", "exit 0")).await?;
    x.exited(&first).await?;
    let second = pod.start(x.forever("d")).await?;
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    let events = events_of(x, subscription, &[&pod.id, &first, &second]).await?;
    let mut events = events.iter();
    let started = events.find(|event| kind(event) == (second.clone(), Started));
    let mut seen: Vec<&String> = started
        .into_iter()
        .flat_map(|event| event.containers_statuses.iter().map(|status| &status.id))
        .collect();
    seen.sort();
    let mut both = vec![&first, &second];
    both.sort();
    equal("containers_statuses when the second container starts", &seen, &both)
}

pub(crate) const DELETION: &[Rule] = rules! {
    Should "CRI-EVT-011": "RemovePodSandbox sends one CONTAINER_DELETED_EVENT for each container that it removes.",
        CONTAINERD, tags ["evented-pleg"], calls [GetContainerEvents, RemovePodSandbox],
        removed_sandbox_reports_its_containers, faults [
            "GetContainerEvents if container_event_type == \"CONTAINER_DELETED_EVENT\" lose",
            "GetContainerEvents if container_event_type == \"CONTAINER_DELETED_EVENT\" repeat",
        ];
};

async fn removed_sandbox_reports_its_containers(x: &Context) -> Verdict {
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
