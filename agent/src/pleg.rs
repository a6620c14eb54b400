//! Observes the runtime: one task receives its events, relists periodically, and sends each worker snapshots of its pod.
//!
//! An event or a difference between listings only triggers an inspection; a worker always gets a complete one's result.
//! The task owns the last listing. Inspections run in separate tasks, at most one per pod, so that none delays another's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cache::{Generation, Request, Snapshot};
use crate::causes::Causes;
use crate::clock::Clock;
use crate::cri::{Cri, CriError, EventKind, PodRef, RuntimeEvent};
use crate::pod::PodUid;

mod diff;
mod events;
mod inspect;
mod retry;

use diff::{Change, Listing};
use events::StreamEvent;
use inspect::{DetailCache, Inspection};
use retry::Retry;

/// The pods that have sandboxes or containers in the last full listing; `None` before the first listing.
pub(crate) type RuntimePods = watch::Receiver<Option<Arc<BTreeMap<PodUid, PodRef>>>>;

/// How often the runtime is relisted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelistPeriods {
    /// Without an event stream.
    pub(crate) alone: Duration,
    /// With an event stream.
    pub(crate) with_events: Duration,
}

/// A pod that a worker subscribed to.
struct WatchedPod {
    snapshots: watch::Sender<Option<Snapshot>>,
    listing: Listing,
    details: Arc<DetailCache>,
    inspecting: bool,
    /// The causes of the next inspection, which starts when the running one ends or the runtime answers again.
    pending: Option<Causes>,
    /// The newest generation requested for the pod.
    generation: Generation,
}

/// The result of work that a spawned task did.
enum Completed {
    Inspected(
        PodUid,
        Generation,
        Causes,
        Box<Result<Inspection, CriError>>,
    ),
    Listed(Result<BTreeMap<PodUid, (PodRef, Listing)>, CriError>),
}

struct Pleg {
    cri: Arc<dyn Cri>,
    clock: Arc<dyn Clock>,
    periods: RelistPeriods,
    pods: BTreeMap<PodUid, WatchedPod>,
    runtime_pods: watch::Sender<Option<Arc<BTreeMap<PodUid, PodRef>>>>,
    runtime_name: String,
    work: JoinSet<Completed>,
    listing: bool,
    events: bool,
    next_relist: Instant,
    retry: Retry,
}

/// Runs until every [`crate::cache::Cache`] is dropped.
pub(crate) async fn run(
    cri: Arc<dyn Cri>,
    clock: Arc<dyn Clock>,
    periods: RelistPeriods,
    mut requests: mpsc::UnboundedReceiver<Request>,
    runtime_pods: watch::Sender<Option<Arc<BTreeMap<PodUid, PodRef>>>>,
) {
    let (sender, mut stream) = mpsc::unbounded_channel();
    let mut streams = JoinSet::new();
    streams.spawn(events::subscribe(Arc::clone(&cri), sender));
    let mut pleg = Pleg {
        cri,
        clock,
        periods,
        pods: BTreeMap::new(),
        runtime_pods,
        runtime_name: String::new(),
        work: JoinSet::new(),
        listing: false,
        events: false,
        next_relist: Instant::now(),
        retry: Retry::new(Duration::from_millis(100), Duration::from_secs(5)),
    };
    loop {
        // Each arm is cancel safe: it only receives or sleeps.
        tokio::select! {
            request = requests.recv() => match request {
                Some(request) => pleg.request(request),
                None => return,
            },
            Some(event) = stream.recv() => pleg.stream_event(event),
            Some(Ok(work)) = pleg.work.join_next() => pleg.completed(work),
            () = tokio::time::sleep_until(pleg.next_relist), if !pleg.listing => pleg.relist(),
        }
    }
}

impl Pleg {
    fn request(&mut self, request: Request) {
        match request {
            Request::Subscribe(uid, snapshots) => {
                let watched = WatchedPod {
                    snapshots,
                    listing: Listing::default(),
                    details: Arc::default(),
                    inspecting: false,
                    pending: None,
                    generation: Generation::default(),
                };
                self.pods.insert(uid.clone(), watched);
                self.refresh(&uid, Causes::pod("first inspection"));
            }
            Request::Refresh(uid, generation, causes) => {
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.generation = generation;
                }
                self.refresh(&uid, causes);
            }
            Request::Unsubscribe(uid) => {
                self.pods.remove(&uid);
            }
        }
    }

    fn stream_event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Connected => {
                self.events = true;
                self.next_relist = Instant::now();
            }
            StreamEvent::Disconnected => {
                self.events = false;
                self.next_relist = Instant::now();
            }
            StreamEvent::Event(event) => self.event(&event),
        }
    }

    fn event(&mut self, event: &RuntimeEvent) {
        let change = match event.kind {
            // The worker that created the container is about to start it.
            EventKind::Created => return,
            EventKind::Started => Change::Started,
            EventKind::Stopped => Change::Died,
            EventKind::Deleted => Change::Removed,
        };
        let container_name = |pod: &WatchedPod| {
            pod.listing
                .containers
                .iter()
                .find(|(id, _)| id.as_str() == event.id)
                .map(|(_, (name, _))| name.clone())
        };
        let (uid, name) = match &event.pod {
            Some(uid) => (
                Some(uid.clone()),
                self.pods.get(uid).and_then(container_name),
            ),
            None => match self
                .pods
                .iter()
                .find_map(|(uid, pod)| Some((uid.clone(), container_name(pod)?)))
            {
                Some((uid, name)) => (Some(uid), Some(name)),
                None => (None, None),
            },
        };
        match uid {
            Some(uid) => {
                let name = event
                    .name
                    .clone()
                    .or(name)
                    .unwrap_or_else(|| event.id.chars().take(12).collect());
                self.refresh(&uid, change.cause(&name));
            }
            // A sandbox, or a pod without a subscriber: relist.
            None => self.next_relist = Instant::now(),
        }
    }

    /// Inspects a pod, now or when the running inspection ends.
    fn refresh(&mut self, uid: &PodUid, causes: Causes) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        let causes = pod.pending.take().unwrap_or_default().and(causes);
        if pod.inspecting {
            pod.pending = Some(causes);
            return;
        }
        pod.inspecting = true;
        let (cri, now, details, generation) = (
            Arc::clone(&self.cri),
            self.clock.now(),
            Arc::clone(&pod.details),
            pod.generation,
        );
        let (uid, name) = (uid.clone(), self.runtime_name.clone());
        self.work.spawn(async move {
            let result = inspect::inspect(&*cri, &uid, details, name, now).await;
            Completed::Inspected(uid, generation, causes, Box::new(result))
        });
    }

    fn relist(&mut self) {
        self.listing = true;
        let cri = Arc::clone(&self.cri);
        self.work
            .spawn(async move { Completed::Listed(list(&*cri).await) });
    }

    fn completed(&mut self, work: Completed) {
        match work {
            Completed::Inspected(uid, generation, causes, result) => {
                self.inspected(&uid, generation, causes, *result)
            }
            Completed::Listed(result) => self.listed(result),
        }
    }

    fn inspected(
        &mut self,
        uid: &PodUid,
        generation: Generation,
        causes: Causes,
        result: Result<Inspection, CriError>,
    ) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        pod.inspecting = false;
        match result {
            Ok(inspection) => {
                self.retry.succeeded();
                self.runtime_name
                    .clone_from(&inspection.observed.runtime_name);
                pod.listing = inspection.listing;
                pod.details = Arc::new(inspection.details);
                pod.snapshots.send_replace(Some(Snapshot {
                    observed: Arc::new(inspection.observed),
                    generation,
                    causes,
                }));
                if let Some(again) = pod.pending.take() {
                    self.refresh(uid, again);
                }
            }
            Err(error) => {
                tracing::warn!(pod = %uid, %error, "failed to inspect pod");
                pod.pending = Some(causes.and(pod.pending.take().unwrap_or_default()));
                self.next_relist = Instant::now() + self.retry.failed();
            }
        }
    }

    fn listed(&mut self, result: Result<BTreeMap<PodUid, (PodRef, Listing)>, CriError>) {
        self.listing = false;
        let pods = match result {
            Ok(pods) => pods,
            Err(error) => {
                tracing::warn!(%error, "failed to list pods of the runtime");
                self.next_relist = Instant::now() + self.retry.failed();
                return;
            }
        };
        self.retry.succeeded();
        self.next_relist = Instant::now()
            + if self.events {
                self.periods.with_events
            } else {
                self.periods.alone
            };
        let nothing = Listing::default();
        let stale: Vec<(PodUid, Causes)> = self
            .pods
            .iter()
            .filter_map(|(uid, pod)| {
                let listing = pods.get(uid).map_or(&nothing, |(_, listing)| listing);
                let causes = diff::causes(&diff::diff(&pod.listing, listing));
                // Repeat a failed inspection even if the listing did not change.
                (!causes.is_empty() || (pod.pending.is_some() && !pod.inspecting))
                    .then(|| (uid.clone(), causes))
            })
            .collect();
        for (uid, causes) in stale {
            self.refresh(&uid, causes);
        }
        self.runtime_pods.send_replace(Some(Arc::new(
            pods.into_iter().map(|(uid, (pod, _))| (uid, pod)).collect(),
        )));
    }
}

/// Lists all sandboxes and containers, grouped by pod.
async fn list(cri: &dyn Cri) -> Result<BTreeMap<PodUid, (PodRef, Listing)>, CriError> {
    let (sandboxes, containers) =
        tokio::try_join!(cri.list_sandboxes(None), cri.list_containers(None))?;
    let mut pods: BTreeMap<PodUid, (PodRef, Listing)> = BTreeMap::new();
    for sandbox in &sandboxes {
        listing_of(&mut pods, &sandbox.pod).add_sandbox(sandbox);
    }
    for container in &containers {
        listing_of(&mut pods, &container.pod).add_container(container);
    }
    Ok(pods)
}

fn listing_of<'a>(
    pods: &'a mut BTreeMap<PodUid, (PodRef, Listing)>,
    pod: &PodRef,
) -> &'a mut Listing {
    &mut pods
        .entry(pod.uid.clone())
        .or_insert_with(|| (pod.clone(), Listing::default()))
        .1
}

#[cfg(test)]
mod tests;
