//! The latency of events: the time from an event's timestamp until the client receives it.

use std::time::{Duration, SystemTime};

use ContainerEventType::{ContainerStartedEvent as Started, ContainerStoppedEvent as Stopped};
use cri::v1::{ContainerEventResponse, ContainerEventType};
use harness::eventually::WAIT_LIMIT;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tonic::Code;

use super::BenchError;
use super::rows::{Key, Rows, Section};
use super::target::Target;
use super::target::alternate;

/// A received event.
struct Arrival {
    container: String,
    kind: ContainerEventType,
    /// In milliseconds.
    age: f64,
}

/// A subscription. A separate task reads it, so that an event never waits for the response of a call.
struct Subscription {
    arrivals: UnboundedReceiver<Arrival>,
    reader: AbortHandle,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Starts and stops containers, and measures the latency of their events.
pub(super) async fn measure(
    targets: &[Target],
    rounds: usize,
    rows: &mut Rows,
    notes: &mut Vec<String>,
) -> Result<(), BenchError> {
    let mut subscriptions = Vec::new();
    for target in targets {
        subscriptions.push(subscribe(target, notes).await?);
    }
    let sample = async |subject: usize, target: &Target| {
        let Some(Some(events)) = subscriptions.get_mut(subject) else {
            return Ok(None);
        };
        let pod = target.pod().await?;
        let created = pod.create(target.forever());
        let container = target.call("CreateContainer", created).await?;
        target.call("StartContainer", target.client.start(&container)).await?;
        let started = age(target, events, &container, Started).await?;
        target.call("StopContainer", target.client.stop(&container, 0)).await?;
        let stopped = age(target, events, &container, Stopped).await?;
        target.remove(&[pod]).await?;
        Ok(Some([(Started, started), (Stopped, stopped)]))
    };
    alternate(targets, rounds, sample, |subject, ages| {
        for (kind, age) in ages.into_iter().flatten() {
            let key = Key::time(Section::Events, kind.as_str_name());
            rows.add(key, subject, age);
        }
    })
    .await
}

/// Subscribes to the events of an endpoint; `None` and a note if it does not support them.
async fn subscribe(
    target: &Target,
    notes: &mut Vec<String>,
) -> Result<Option<Subscription>, BenchError> {
    let events = target.client.events();
    let mut events = match target.call("GetContainerEvents", events).await {
        Ok(events) => events,
        Err(BenchError::Refused { status, .. }) if status.code() == Code::Unimplemented => {
            let (name, endpoint, why) = (&target.name, target.socket.display(), status.message());
            notes.push(format!("events of {name} ({endpoint}) are not measured: {why}"));
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let (sender, arrivals) = unbounded_channel();
    let reader = tasks::spawn(async move {
        while let Ok(Some(event)) = events.message().await {
            if sender.send(arrival(&event)).is_err() {
                break;
            }
        }
    });
    Ok(Some(Subscription { arrivals, reader: reader.abort_handle() }))
}

fn arrival(event: &ContainerEventResponse) -> Arrival {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Arrival {
        container: event.container_id.clone(),
        kind: event.container_event_type(),
        age: age_at(now, event.created_at),
    }
}

/// The age in milliseconds of an event with the timestamp `created`, in nanoseconds since 1970.
fn age_at(now: Duration, created: i64) -> f64 {
    let created = Duration::from_nanos(u64::try_from(created).unwrap_or(0));
    now.saturating_sub(created).as_secs_f64() * 1e3
}

/// The age of the next event of this type about a container.
async fn age(
    target: &Target,
    events: &mut Subscription,
    container: &str,
    wanted: ContainerEventType,
) -> Result<f64, BenchError> {
    let name = wanted.as_str_name();
    let endpoint = target.socket.display();
    let found = async {
        while let Some(event) = events.arrivals.recv().await {
            if event.container == container && event.kind == wanted {
                return Some(event.age);
            }
        }
        None
    };
    match timeout(WAIT_LIMIT, found).await {
        Ok(Some(age)) => Ok(age),
        Ok(None) => {
            Err(BenchError::Wait(format!("the stream of events of {endpoint} ended before {name}")))
        }
        Err(_) => Err(BenchError::Wait(format!(
            "{endpoint} sent no {name} within {} s",
            WAIT_LIMIT.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::half_millisecond(1_000_500_000, 1_000_000_000, 0.5)]
    #[case::clock_was_set_back(1_000, 2_000, 0.0)]
    #[case::negative(2_000_000, -1, 2.0)]
    fn age_is_time_since_creation(#[case] now: u64, #[case] created: i64, #[case] age: f64) {
        assert_eq!(age_at(Duration::from_nanos(now), created), age);
    }
}
