//! Observes the runtime: one task receives its events, relists periodically, and sends each worker snapshots of its pod.
//!
//! An event or a difference between listings only triggers an inspection; a worker always gets the result of a complete one. The
//! task owns the last listing. Inspections run in separate tasks, at most one per pod, so that none delays another's.

use std::sync::Arc;
use std::time::Duration;

use api::pod::PodUid;
use compact::Map;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::cri::{Cri, CriError, EventKind, LastLists, PodRef, RuntimeEvent};
use crate::observation::cache::{Generation, Request, Snapshot};
use crate::observed::ContainerId;
use crate::reporting::causes::Causes;
use crate::reporting::measures::Measures;

pub(crate) mod diff;
mod events;
mod inspect;
mod timers;

use diff::{Change, Listing};
use events::Retry;
use events::StreamEvent;
use inspect::Inspection;
pub(crate) use inspect::RuntimeListing;
use inspect::list;
pub(crate) use timers::RelistPeriods;
use timers::Timers;

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// The maximum delay of events of a pod that its worker is changing.
const BUSY: Duration = Duration::from_millis(100);
/// The delay between an event about a pod without a worker and the listing, like a kubelet's relist period.
const UNKNOWN_POD: Duration = Duration::from_secs(1);

/// The last full listing of the runtime; `None` before the first one.
pub(crate) type RuntimePods = watch::Receiver<Option<Arc<RuntimeListing>>>;

/// A failed observation, with the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FailedObservation {
    /// The inspection of a pod failed. An unreachable runtime is not counted as a failure of the pod.
    Inspection(PodUid, String),
    /// The listing of the runtime's pods failed, with this error in a kubelet's words.
    Listing(String),
}

/// A pod that a worker subscribed to.
struct WatchedPod {
    snapshots: watch::Sender<Option<Snapshot>>,
    /// Shared with the last listing of the runtime if both are equal.
    listing: Arc<Listing>,
    inspecting: bool,
    /// The causes of the next inspection, which starts when the running one ends or the runtime answers again.
    pending: Option<Causes>,
    /// Events that arrived during the running inspection, whose result may already show them.
    events: Vec<(String, Change, Causes)>,
    /// The newest generation requested for the pod.
    generation: Generation,
    /// Whether its worker is changing it.
    busy: bool,
    /// Whether its worker has resized running containers, and no inspection has begun since.
    resized: bool,
    /// Whether the running inspection queries the resized containers.
    inspecting_resized: bool,
    retry: Retry,
}

/// The result of a spawned task.
enum Completed {
    Inspected(PodUid, Generation, Causes, Box<Result<Inspection, CriError>>),
    /// An inspection of one container; `None` if the container was not inspected before.
    InspectedContainer(PodUid, Generation, Causes, Box<Result<Option<Inspection>, CriError>>),
    Listed(Result<RuntimeListing, CriError>, LastLists),
}

struct Pleg {
    cri: Arc<dyn Cri>,
    clock: Arc<dyn Clock>,
    periods: RelistPeriods,
    pods: Map<PodUid, WatchedPod>,
    runtime_pods: watch::Sender<Option<Arc<RuntimeListing>>>,
    failed: mpsc::UnboundedSender<FailedObservation>,
    measures: Measures,
    runtime_name: String,
    work: JoinSet<Completed>,
    listing: bool,
    /// The last responses, except during a listing.
    last_lists: LastLists,
    /// The start of the current or last listing.
    listing_since: Instant,
    /// Whether a listing has completed.
    has_listed: bool,
    events: bool,
    next_relist: Instant,
    /// Whether another listing was requested during the current one.
    relist_again: bool,
    retry: Retry,
    /// The times of delayed inspections, for pods that cannot be inspected now or whose events may wait.
    timers: Timers,
}

/// Runs until every [`crate::observation::cache::Cache`] is dropped.
pub(crate) async fn run(
    cri: Arc<dyn Cri>,
    clock: Arc<dyn Clock>,
    periods: RelistPeriods,
    mut requests: mpsc::UnboundedReceiver<Request>,
    runtime_pods: watch::Sender<Option<Arc<RuntimeListing>>>,
    failed: mpsc::UnboundedSender<FailedObservation>,
    measures: Measures,
) {
    let (sender, mut stream) = mpsc::unbounded_channel();
    let mut streams = JoinSet::new();
    if periods.with_events.is_some() {
        let (cri, clock) = (Arc::clone(&cri), Arc::clone(&clock));
        streams.spawn(tasks::boxed(events::subscribe(cri, clock, measures.clone(), sender)));
    }
    let mut pleg = Pleg {
        cri,
        clock,
        periods,
        pods: Map::new(),
        runtime_pods,
        failed,
        measures,
        runtime_name: String::new(),
        work: JoinSet::new(),
        listing: false,
        last_lists: LastLists::default(),
        listing_since: Instant::now(),
        has_listed: false,
        events: false,
        next_relist: Instant::now(),
        relist_again: false,
        retry: Retry::new(FIRST_RETRY, LONGEST_RETRY),
        timers: Timers::default(),
    };
    loop {
        let timer = pleg.timers.next();
        // Each arm is cancel safe: it only receives or sleeps.
        tokio::select! {
            request = requests.recv() => match request {
                Some(request) => pleg.request(request),
                None => return,
            },
            Some(event) = stream.recv() => pleg.stream_event(event),
            Some(work) = pleg.work.join_next() => if let Some(work) = tasks::output(work) {
                pleg.completed(work);
            },
            Some(ended) = streams.join_next() => { tasks::output(ended); }
            () = tokio::time::sleep_until(pleg.next_relist), if !pleg.listing => pleg.relist(),
            () = tokio::time::sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => {
                pleg.inspect_due();
            }
        }
    }
}

impl Pleg {
    fn request(&mut self, request: Request) {
        match request {
            Request::Subscribe(uid, snapshots) => {
                let watched = WatchedPod {
                    snapshots,
                    listing: Arc::default(),
                    inspecting: false,
                    pending: None,
                    events: Vec::new(),
                    generation: Generation::default(),
                    busy: false,
                    resized: false,
                    inspecting_resized: false,
                    retry: Retry::new(FIRST_RETRY, LONGEST_RETRY),
                };
                self.pods.insert(uid.clone(), watched);
                self.refresh(&uid, Causes::pod("first inspection"));
            }
            Request::Refresh(uid, generation, causes) => {
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.generation = generation;
                    pod.busy = false;
                }
                self.refresh(&uid, causes);
            }
            Request::Busy(uid) => {
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.busy = true;
                }
            }
            Request::Relist => {
                // The current listing may be older than the requested state.
                self.relist_again = self.listing;
                self.next_relist = Instant::now();
            }
            Request::Resized(uid) => {
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.resized = true;
                }
            }
            Request::Unsubscribe(uid) => {
                self.pods.remove(&uid);
                self.timers.clear(&uid);
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
            let (name, _) = pod.listing.container(&event.id)?;
            Some(name.to_owned())
        };
        let (uid, name) = match &event.pod {
            Some(uid) => (Some(uid.clone()), self.pods.get(uid).and_then(container_name)),
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
                self.changed(&uid, &event.id, change, change.cause(&name));
            }
            // A sandbox, or a pod without a subscriber: relist.
            None => self.next_relist = Instant::now(),
        }
    }

    /// Handles a change of a pod's container or sandbox: inspects it alone if it is a container that was inspected before.
    fn changed(&mut self, uid: &PodUid, id: &str, change: Change, causes: Causes) {
        let Some(pod) = self.pods.get_mut(uid) else {
            // The pod may be an orphan.
            self.next_relist = self.next_relist.min(Instant::now() + UNKNOWN_POD);
            return;
        };
        if pod.inspecting {
            pod.events.push((id.to_owned(), change, causes));
            return;
        }
        if pod.listing.shows(id, change) && pod.snapshots.borrow().is_some() {
            return;
        }
        if pod.busy {
            let causes = pod.pending.take().unwrap_or_default().and(causes);
            pod.pending = Some(causes);
            self.timers.set(uid, Instant::now() + BUSY);
            return;
        }
        let last = pod.snapshots.borrow().clone();
        let known = pod.listing.container(id).is_some();
        let id = ContainerId::new(id);
        let (Some(last), true, None) = (last, known, &pod.pending) else {
            return self.refresh(uid, causes);
        };
        pod.inspecting = true;
        let (cri, uid) = (Arc::clone(&self.cri), uid.clone());
        let listing = Listing::clone(&pod.listing);
        self.work.spawn(tasks::boxed(async move {
            // Only the id is used.
            let pod = PodRef {
                uid: uid.clone(),
                namespace: String::new(),
                name: String::new(),
                agent: None,
            };
            let observed = &last.observed;
            let result = inspect::inspect_container(&*cri, pod, &id, listing, observed).await;
            Completed::InspectedContainer(uid, last.generation, causes, Box::new(result))
        }));
    }

    fn inspect_due(&mut self) {
        while let Some(uid) = self.timers.take_due(Instant::now()) {
            self.refresh(&uid, Causes::default());
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
        let resized = std::mem::take(&mut pod.resized);
        pod.inspecting_resized = resized;
        let last = pod.snapshots.borrow().as_ref().map(|last| Arc::clone(&last.observed));
        self.timers.clear(uid);
        let (cri, now, generation) = (Arc::clone(&self.cri), self.clock.now(), pod.generation);
        let (uid, name) = (uid.clone(), self.runtime_name.clone());
        let measures = self.measures.clone();
        self.work.spawn(tasks::boxed(async move {
            let since = Instant::now();
            let result = inspect::inspect(&*cri, &uid, last, resized, name, now).await;
            measures.record_inspection(since.elapsed());
            Completed::Inspected(uid, generation, causes, Box::new(result))
        }));
    }

    fn relist(&mut self) {
        self.listing = true;
        let last = std::mem::replace(&mut self.listing_since, Instant::now());
        let since_last = std::mem::replace(&mut self.has_listed, true).then(|| last.elapsed());
        let (cri, begun) = (Arc::clone(&self.cri), self.clock.now());
        self.measures.record_relist_start(begun, since_last);
        let (mut last, before) = match self.runtime_pods.borrow().as_ref() {
            Some(before) => (std::mem::take(&mut self.last_lists), Arc::clone(&before.pods)),
            None => Default::default(),
        };
        self.work.spawn(tasks::boxed(async move {
            let listed = list(&*cri, begun, &mut last, before).await;
            Completed::Listed(listed, last)
        }));
    }

    fn completed(&mut self, work: Completed) {
        match work {
            Completed::Inspected(uid, generation, causes, result) => {
                self.inspected(&uid, generation, causes, *result)
            }
            Completed::InspectedContainer(uid, generation, causes, result) => match *result {
                Ok(Some(inspection)) => self.inspected(&uid, generation, causes, Ok(inspection)),
                Err(error) => self.inspected(&uid, generation, causes, Err(error)),
                Ok(None) => {
                    if let Some(pod) = self.pods.get_mut(&uid) {
                        pod.inspecting = false;
                    }
                    self.refresh(&uid, causes);
                }
            },
            Completed::Listed(result, last) => {
                self.last_lists = last;
                self.listed(result);
            }
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
        let resized = std::mem::take(&mut pod.inspecting_resized);
        match result {
            Ok(inspection) => {
                pod.retry.succeeded();
                self.runtime_name.clone_from(&inspection.observed.runtime_name);
                pod.listing = Arc::new(inspection.listing);
                pod.snapshots.send_replace(Some(Snapshot {
                    observed: Arc::new(inspection.observed),
                    generation,
                    causes,
                }));
                let again = std::mem::take(&mut pod.events)
                    .into_iter()
                    .filter(|(id, change, _)| !pod.listing.shows(id, *change))
                    .map(|(_, _, causes)| causes)
                    .chain(pod.pending.take())
                    .reduce(Causes::and);
                if let Some(again) = again {
                    self.refresh(uid, again);
                }
            }
            Err(error) => {
                tracing::warn!(pod = %uid, %error, "failed to inspect pod");
                pod.resized |= resized;
                pod.pending = Some(causes.and(pod.pending.take().unwrap_or_default()));
                if error.is_unavailable() {
                    // The next listing that succeeds repeats the inspections of all pods.
                    self.next_relist = Instant::now() + self.retry.failed();
                } else {
                    self.timers.set(uid, Instant::now() + pod.retry.failed());
                    let error = error.to_string();
                    self.send_failure(FailedObservation::Inspection(uid.clone(), error));
                }
            }
        }
    }

    fn send_failure(&self, failure: FailedObservation) {
        // The send fails only if the agent ends.
        let _ = self.failed.send(failure);
    }

    fn listed(&mut self, result: Result<RuntimeListing, CriError>) {
        self.listing = false;
        self.measures.record_relist(self.listing_since.elapsed());
        let listed = match result {
            Ok(listed) => listed,
            Err(error) => {
                tracing::warn!(%error, "failed to list pods of the runtime");
                self.next_relist = Instant::now() + self.retry.failed();
                self.send_failure(FailedObservation::Listing(error.go_text()));
                return;
            }
        };
        self.retry.succeeded();
        let period = if std::mem::take(&mut self.relist_again) {
            Duration::ZERO
        } else {
            self.periods.next(self.events, self.listing_since.elapsed())
        };
        self.next_relist = Instant::now() + period;
        let nothing = Arc::default();
        let mut stale: Vec<(PodUid, Causes)> = Vec::new();
        for (uid, pod) in &mut self.pods {
            let listing = listed.pods.get(uid).map_or(&nothing, |(_, listing)| listing);
            let causes = diff::causes(&diff::diff(&pod.listing, listing));
            // Repeat a failed inspection even if the listing did not change.
            let forgotten = pod.pending.is_some() && !pod.inspecting && !self.timers.is_set(uid);
            if !causes.is_empty() || forgotten {
                stale.push((uid.clone(), causes));
            } else {
                pod.listing = Arc::clone(listing);
            }
        }
        for (uid, causes) in stale {
            self.refresh(&uid, causes);
        }
        self.runtime_pods.send_replace(Some(Arc::new(listed)));
    }
}

#[cfg(test)]
mod tests;
