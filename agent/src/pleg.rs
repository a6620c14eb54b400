//! Looks at the runtime: one task that hears its events, lists everything from time to time, and shows each worker its pod.
//!
//! An event or a difference between listings is only a hint to look at a pod; what workers get is always a whole look. The
//! task owns what was seen last; looks run beside it, at most one a pod, so that a pod whose answers are slow holds up no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cache::{Ask, Snapshot, Ticket};
use crate::clock::Clock;
use crate::cri::{Cri, CriError, EventKind, PodRef, RuntimeEvent};
use crate::pod::PodUid;

mod diff;
mod events;
mod look;
mod retry;

use diff::Listing;
use events::News;
use look::{Known, Look};
use retry::Retry;

/// The pods that the runtime has something of, as the last full listing showed; `None` before the first.
pub(crate) type RuntimePods = watch::Receiver<Option<Arc<BTreeMap<PodUid, PodRef>>>>;

/// How often everything is listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Periods {
    /// Without events.
    pub(crate) alone: Duration,
    /// While events arrive.
    pub(crate) with_events: Duration,
}

/// One pod that a worker follows.
struct Followed {
    snapshots: watch::Sender<Option<Snapshot>>,
    listing: Listing,
    known: Arc<Known>,
    looking: bool,
    /// Why to look again, once the present look is over or the runtime answers again.
    wanted: Option<String>,
    /// The newest ticket given for the pod.
    ticket: Ticket,
}

/// What comes back from the work beside the task.
enum Done {
    Looked(PodUid, Ticket, String, Box<Result<Look, CriError>>),
    Listed(Result<BTreeMap<PodUid, (PodRef, Listing)>, CriError>),
}

struct Pleg {
    cri: Arc<dyn Cri>,
    clock: Arc<dyn Clock>,
    periods: Periods,
    pods: BTreeMap<PodUid, Followed>,
    runtime_pods: watch::Sender<Option<Arc<BTreeMap<PodUid, PodRef>>>>,
    runtime_name: String,
    work: JoinSet<Done>,
    listing: bool,
    events: bool,
    next_relist: Instant,
    retry: Retry,
}

/// Runs the looking task until every [`crate::cache::Cache`] is gone.
pub(crate) async fn run(
    cri: Arc<dyn Cri>,
    clock: Arc<dyn Clock>,
    periods: Periods,
    mut asks: mpsc::UnboundedReceiver<Ask>,
    runtime_pods: watch::Sender<Option<Arc<BTreeMap<PodUid, PodRef>>>>,
) {
    let (sender, mut news) = mpsc::unbounded_channel();
    let mut listeners = JoinSet::new();
    listeners.spawn(events::listen(Arc::clone(&cri), sender));
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
        // Each arm receives or waits, and is safe to drop: nothing is taken out before the arm is chosen.
        tokio::select! {
            ask = asks.recv() => match ask {
                Some(ask) => pleg.ask(ask),
                None => return,
            },
            Some(news) = news.recv() => pleg.news(news),
            Some(Ok(done)) = pleg.work.join_next() => pleg.done(done),
            () = tokio::time::sleep_until(pleg.next_relist), if !pleg.listing => pleg.relist(),
        }
    }
}

impl Pleg {
    fn ask(&mut self, ask: Ask) {
        match ask {
            Ask::Follow(uid, snapshots) => {
                let followed = Followed {
                    snapshots,
                    listing: Listing::default(),
                    known: Arc::default(),
                    looking: false,
                    wanted: None,
                    ticket: Ticket::default(),
                };
                self.pods.insert(uid.clone(), followed);
                self.want(&uid, "first look");
            }
            Ask::Look(uid, ticket, cause) => {
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.ticket = ticket;
                }
                self.want(&uid, &cause);
            }
            Ask::Forget(uid) => {
                self.pods.remove(&uid);
            }
        }
    }

    fn news(&mut self, news: News) {
        match news {
            News::Connected => {
                self.events = true;
                self.next_relist = Instant::now();
            }
            News::Lost => {
                self.events = false;
                self.next_relist = Instant::now();
            }
            News::Event(event) => self.event(&event),
        }
    }

    fn event(&mut self, event: &RuntimeEvent) {
        let what = match event.kind {
            // What was made is about to be started, by the worker that made it.
            EventKind::Created => return,
            EventKind::Started => "started",
            EventKind::Stopped => "ended",
            EventKind::Deleted => "was removed",
        };
        let knows = |pod: &Followed| {
            pod.listing
                .containers
                .iter()
                .find(|(id, _)| id.as_str() == event.id)
                .map(|(_, (name, _))| name.clone())
        };
        let (uid, name) = match &event.pod {
            Some(uid) => (Some(uid.clone()), self.pods.get(uid).and_then(knows)),
            None => match self
                .pods
                .iter()
                .find_map(|(uid, pod)| Some((uid.clone(), knows(pod)?)))
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
                self.want(&uid, &format!("{name} {what}"));
            }
            // A sandbox, or a pod that nobody follows: the listing tells.
            None => self.next_relist = Instant::now(),
        }
    }

    /// Looks at a pod, now or when the look that is under way is over.
    fn want(&mut self, uid: &PodUid, cause: &str) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        if pod.looking {
            let causes = pod
                .wanted
                .take()
                .map_or_else(|| cause.to_owned(), |other| joined(other, cause));
            pod.wanted = Some(causes);
            return;
        }
        pod.looking = true;
        let cause = pod
            .wanted
            .take()
            .map_or_else(|| cause.to_owned(), |other| joined(other, cause));
        let (cri, now, known, ticket) = (
            Arc::clone(&self.cri),
            self.clock.now(),
            Arc::clone(&pod.known),
            pod.ticket,
        );
        let (uid, name) = (uid.clone(), self.runtime_name.clone());
        self.work.spawn(async move {
            let result = look::look(&*cri, &uid, known, name, now).await;
            Done::Looked(uid, ticket, cause, Box::new(result))
        });
    }

    fn relist(&mut self) {
        self.listing = true;
        let cri = Arc::clone(&self.cri);
        self.work
            .spawn(async move { Done::Listed(list(&*cri).await) });
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Looked(uid, ticket, cause, result) => self.looked(&uid, ticket, cause, *result),
            Done::Listed(result) => self.listed(result),
        }
    }

    fn looked(
        &mut self,
        uid: &PodUid,
        answers: Ticket,
        cause: String,
        result: Result<Look, CriError>,
    ) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        pod.looking = false;
        match result {
            Ok(look) => {
                self.retry.succeeded();
                self.runtime_name.clone_from(&look.observed.runtime_name);
                pod.listing = look.listing;
                pod.known = Arc::new(look.known);
                pod.snapshots.send_replace(Some(Snapshot {
                    observed: Arc::new(look.observed),
                    answers,
                    cause,
                }));
                if let Some(again) = pod.wanted.take() {
                    self.want(uid, &again);
                }
            }
            Err(error) => {
                tracing::warn!(pod = %uid, %error, "cannot see what the runtime has of a pod");
                pod.wanted = Some(
                    pod.wanted
                        .take()
                        .map_or_else(|| cause.clone(), |other| joined(cause.clone(), &other)),
                );
                self.next_relist = Instant::now() + self.retry.failed();
            }
        }
    }

    fn listed(&mut self, result: Result<BTreeMap<PodUid, (PodRef, Listing)>, CriError>) {
        self.listing = false;
        let pods = match result {
            Ok(pods) => pods,
            Err(error) => {
                tracing::warn!(%error, "cannot list the runtime's pods");
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
        let hints: Vec<(PodUid, String)> = self
            .pods
            .iter()
            .filter_map(|(uid, pod)| {
                let listing = pods.get(uid).map_or(&nothing, |(_, listing)| listing);
                let cause = diff::cause(&diff::diff(&pod.listing, listing));
                // A look that failed is owed even when nothing differs.
                (!cause.is_empty() || (pod.wanted.is_some() && !pod.looking))
                    .then(|| (uid.clone(), cause))
            })
            .collect();
        for (uid, cause) in hints {
            self.want(&uid, &cause);
        }
        self.runtime_pods.send_replace(Some(Arc::new(
            pods.into_iter().map(|(uid, (pod, _))| (uid, pod)).collect(),
        )));
    }
}

fn joined(one: String, other: &str) -> String {
    match (one.is_empty(), other.is_empty() || one == other) {
        (_, true) => one,
        (true, false) => other.to_owned(),
        (false, false) => format!("{one}, {other}"),
    }
}

/// Lists everything, by pod.
async fn list(cri: &dyn Cri) -> Result<BTreeMap<PodUid, (PodRef, Listing)>, CriError> {
    let (sandboxes, containers) =
        tokio::try_join!(cri.list_sandboxes(None), cri.list_containers(None))?;
    let mut pods: BTreeMap<PodUid, (PodRef, Listing)> = BTreeMap::new();
    for sandbox in &sandboxes {
        of(&mut pods, &sandbox.pod).add_sandbox(sandbox);
    }
    for container in &containers {
        of(&mut pods, &container.pod).add_container(container);
    }
    Ok(pods)
}

fn of<'a>(pods: &'a mut BTreeMap<PodUid, (PodRef, Listing)>, pod: &PodRef) -> &'a mut Listing {
    &mut pods
        .entry(pod.uid.clone())
        .or_insert_with(|| (pod.clone(), Listing::default()))
        .1
}

#[cfg(test)]
mod tests;
