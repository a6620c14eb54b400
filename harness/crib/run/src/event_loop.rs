//! The event loop of a run: signals, timers, the runtime, the agent and controllers send events, [`Lifecycle`] decides, the loop
//! executes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent::clock::{Clock as _, SystemClock};
use agent::objects::{ObjectMap, ObjectStore};
use agent::{Agent, ContainerPhase, Event as PodEvent, ReadinessChange, Transition};
use api::manifest::Workload;
use api::pod::Pod;
use cluster::controllers::Changes;
use cluster::manager::Manager;
use compact::{Map, Set};
use crib_base::exit::Exit;
use crib_base::signals::Signals;
use crib_base::waiting;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant as Alarm;

use crate::ending::{Ending, cause_of_end, ending, with_cause_of_removal};
use crate::history::History;
use crate::hub::{Deletion, Hub};
use crate::input::manifest_objects::ManifestObjects;
use crate::lifecycle::{Event, Lifecycle, PodCounts, Step, count_pods};
use crate::manifest_watch::Reloaded;
use crate::output::label::Label;
use crate::output::lines;
use crate::output::notes::Notes;
use crate::output::printer::{Print, Printer, State};
use crate::output::rollouts::Rollouts;
use crate::output::tail::{Tail, attempt_of};
use crate::processes::daemon::Daemon;
use crate::reports::{Reported, Reports, is_refused};
use crate::requests::PendingRequest;
use crate::services::Services;
use crate::snapshot::{PodSnapshot, RunSnapshot};
use crate::store_cluster::StoreCluster;

mod reload;
mod requests;
mod start;
mod starting;

pub(super) use self::start::Outside;
use self::starting::{Starting, starter_exited};

/// How long the agent and the runtime may take after the longest grace period of the pods.
const EXTRA_GRACE: Duration = Duration::from_secs(15);

/// The delay after which an ending run prints the pods that it waits for, and the interval at which it prints them again.
const FIRST_WAIT: Duration = Duration::from_secs(2);
const NEXT_WAIT: Duration = Duration::from_secs(5);

/// The grace period, in seconds, of pods that are killed.
const KILL_GRACE: i64 = 2;

const DAY: Duration = Duration::from_secs(86_400);

/// The timeout for the agent to stop its tasks; it does not wait for pods.
const STOP_AGENT: Duration = Duration::from_secs(10);

/// The state of a run while its pods run.
pub(super) struct Loop {
    agent: Agent,
    /// The store, as the cluster of the agent.
    cluster: Arc<StoreCluster>,
    /// The agent's reports that are written to the store.
    reports: watch::Receiver<Arc<Reports>>,
    transitions: mpsc::UnboundedReceiver<Transition>,
    readiness: mpsc::UnboundedReceiver<ReadinessChange>,
    events: mpsc::UnboundedReceiver<PodEvent>,
    /// Notes about node ports that are now served, and about problems with Services; closed if no Services are served.
    service_notes: mpsc::UnboundedReceiver<String>,
    /// The store's objects, and the pods of the agent.
    hub: Hub,
    manifest_pods: ManifestObjects<Pod>,
    /// The workloads of manifests.
    manifest_workloads: ManifestObjects<Workload>,
    keep: bool,
    /// Whether informational notes are omitted.
    is_quiet: bool,
    /// The warnings that were printed.
    warned: Set<String>,
    objects: Arc<ObjectStore>,
    /// The runtime's socket.
    socket: PathBuf,
    services: Services,
    /// The Secrets of `--pull-secrets`.
    pull_secrets: ObjectMap,
    /// Receives the manifests after each change.
    reloaded: Option<mpsc::UnboundedReceiver<Reloaded>>,
    /// Receives requests of other commands.
    requests: mpsc::UnboundedReceiver<PendingRequest>,
    /// The events of the pods.
    history: History,
    /// The grace periods of the pods, once the run is ending.
    ending: Option<Ending>,
    /// When the pods that the run waits for are printed next.
    waiting_due: Option<Alarm>,
    /// The pods of manifests, and the workloads, that set no grace period.
    without_grace: Set<String>,
    /// The workloads whose rollouts are in progress.
    rollouts: Rollouts,
    /// Whether the run continues until `crib down` after its pods have ended.
    in_background: bool,
    /// The command at the terminal, until the pods have started.
    starting: Option<Starting>,
    /// The controllers of the workloads.
    manager: Manager,
    /// When the controllers sync next.
    controllers_due: Option<Alarm>,
    /// The messages about the pods of manifests that had failed before the end began.
    failures: Option<Vec<String>>,
    lifecycle: Lifecycle,
    notes: Notes,
    printer: Printer,
    output_closed: mpsc::UnboundedReceiver<()>,
    tail: Tail,
    deadline: Option<Alarm>,
    overdue: Option<Alarm>,
}

impl Loop {
    /// Runs until the lifecycle ends, then prints the last lines and stops the agent. Does not end the pods.
    pub(super) async fn run(mut self, daemon: &mut Daemon, signals: &mut Signals) -> Exit {
        let exit = loop {
            let event = self.next(daemon, signals).await;
            if let Some(exit) = self.follow(event) {
                break exit;
            }
        };
        // Includes the latest reports.
        self.cluster.take(&mut self.agent.reports(), SystemClock.now());
        let reports = self.reports.borrow_and_update().clone();
        self.handle_reports(&reports);
        let failures = self.failures(exit, &reports);
        let state = self.state(reports);
        if tokio::time::timeout(STOP_AGENT, self.agent.stop()).await.is_err() {
            self.printer.note("the agent did not stop in time");
        }
        while let Ok(transition) = self.transitions.try_recv() {
            let transition = with_cause_of_removal(transition, self.hub.deleted());
            self.printer.print(Print::Transition(transition));
        }
        while let Ok(change) = self.readiness.try_recv() {
            self.printer.print(Print::Readiness(change));
        }
        while let Ok(event) = self.events.try_recv() {
            self.printer.print(Print::Event(event));
        }
        let (tail, printer, jobs) = (self.tail, self.printer, self.manager.controllers().jobs());
        let final_output = async {
            tail.finish().await;
            printer.print(Print::Result(exit, state, jobs, failures));
            printer.flush().await;
        };
        // A blocked reader must not delay the removal of the pods after another signal.
        tokio::select! {
            () = final_output => {}
            _ = signals.next() => {}
        }
        exit
    }

    /// Waits for the next event of the lifecycle.
    async fn next(&mut self, daemon: &mut Daemon, signals: &mut Signals) -> Event {
        loop {
            // Every arm is cancel-safe: channels and signals keep unreceived items, and timers and the child process can be awaited
            // again.
            tokio::select! {
                _ = signals.next() => return Event::Signal,
                Some(()) = self.output_closed.recv() => return Event::OutputClosed,
                () = alarm(self.deadline), if self.deadline.is_some() => {
                    self.deadline = None;
                    return Event::TimedOut;
                }
                () = alarm(self.waiting_due), if self.waiting_due.is_some() => {
                    self.waiting_due = Some(Alarm::now() + NEXT_WAIT);
                    let ending: Vec<(String, Timestamp)> = self.hub.ending().collect();
                    let pods = ending.iter().map(|(name, until)| (name.as_str(), *until));
                    if let Some(line) = waiting::sentence(pods, SystemClock.now()) {
                        self.printer.print(Print::Progress(line));
                    }
                }
                () = alarm(self.overdue), if self.overdue.is_some() => {
                    self.overdue = None;
                    return Event::Overdue;
                }
                problem = daemon.ended() => {
                    self.printer.note(problem);
                    return Event::RuntimeEnded;
                }
                error = self.agent.failed() => {
                    self.printer.note(error.to_string());
                    return Event::RuntimeEnded;
                }
                Some(transition) = self.transitions.recv() => {
                    let transition = with_cause_of_removal(transition, self.hub.deleted());
                    self.printer.print(Print::Transition(transition));
                }
                Some(change) = self.readiness.recv() => self.printer.print(Print::Readiness(change)),
                Some(note) = self.service_notes.recv() => {
                    self.services.remember(&note);
                    self.printer.note(note);
                }
                Some(reloaded) = next_of(&mut self.reloaded) => self.reload(reloaded).await,
                Some(event) = self.events.recv() => {
                    self.history.add(event.clone());
                    self.printer.print(Print::Event(event));
                }
                Some(pending) = self.requests.recv() => if let Some(event) = self.handle_request(pending) {
                    return event;
                },
                () = starter_exited(&mut self.starting) => {
                    self.starting = None;
                    return Event::Signal;
                }
                Ok(()) = self.reports.changed() => {
                    let reports = self.reports.borrow_and_update().clone();
                    self.handle_reports(&reports);
                    return Event::Reported(self.count(&reports));
                }
                () = alarm(self.controllers_due), if self.controllers_due.is_some() => {
                    let reports = self.reports.borrow_and_update().clone();
                    self.handle_reports(&reports);
                    return Event::Reported(self.count(&reports));
                }
            }
        }
    }

    /// Passes reports to the view and the notes, and log directories to the tail.
    fn handle_reports(&mut self, reports: &Arc<Reports>) {
        // A background run does not print logs; `crib logs` reads them.
        let followed = (!self.in_background).then(|| reports.values());
        for pod in followed.into_iter().flatten() {
            for container in &pod.containers {
                let Some(log) = container.log_path.as_deref() else {
                    continue;
                };
                if let Some(dir) = log.parent() {
                    let label = label(&format!("{}/{}", pod.namespace, pod.name), &container.name);
                    let has_ended = container.state == ContainerPhase::Terminated;
                    let ended = has_ended.then(|| attempt_of(log)).flatten();
                    self.tail.follow(Arc::new(label), dir.to_owned(), ended);
                }
            }
        }
        self.hub.observe(reports, SystemClock.now());
        if !self.keep {
            self.end_refused(reports);
        }
        let now = SystemClock.now();
        self.control(reports, now);
        for line in self.notes.on_reports(reports) {
            self.printer.note(line);
        }
        let state = self.state(reports.clone());
        self.print_rollouts(&state.snapshot, now);
        self.printer.print(Print::State(state));
        self.report_start(reports);
    }

    /// Syncs the controllers, applies their changes, and writes the statuses of their objects.
    fn control(&mut self, reports: &Reports, now: Timestamp) {
        let changes = self.manager.sync(&Reported(reports), now);
        self.apply(changes);
        for error in self.manager.write(now) {
            tracing::error!(%error, "store rejected a write of a controller");
        }
    }

    /// Prints the progress of rollouts.
    fn print_rollouts(&mut self, snapshot: &RunSnapshot, now: Timestamp) {
        if self.rollouts.is_empty() {
            return;
        }
        let controllers = self.manager.controllers();
        let of = |pod: &PodSnapshot| controllers.manifest_of(&pod.uid);
        let lines = self.rollouts.on_statuses(controllers.statuses(now), snapshot, of, now);
        for line in lines.into_iter().filter(|_| !self.is_quiet) {
            self.printer.note(line);
        }
    }

    fn state(&self, reports: Arc<Reports>) -> State {
        let next_job = self.manager.controllers().next_job();
        State { reports, snapshot: RunSnapshot { next_job, ..self.hub.snapshot() } }
    }

    /// Applies the changes of the controllers.
    fn apply(&mut self, changes: Changes) {
        self.controllers_due = changes.again.map(alarm_at);
        if !changes.created.is_empty() || !changes.deleted.is_empty() {
            self.notes.add(&changes.created);
            let now = SystemClock.now();
            let deleted: Map<_, _> = changes.deleted.into_iter().collect();
            self.delete(|pod| deleted.get(pod.uid()).copied(), Deletion::Forgotten);
            self.hub.create(changes.created, now);
        }
        self.print_notices(changes.messages);
        for line in changes.problems {
            self.printer.note(line);
        }
    }

    /// Prints informational notes.
    fn print_notices(&self, notices: Vec<String>) {
        for line in notices.into_iter().filter(|_| !self.is_quiet) {
            self.printer.note(line);
        }
    }

    /// Prints a warning unless it was printed before.
    fn warn(&mut self, warning: String) {
        if self.warned.insert(warning.clone()) {
            self.printer.note(format!("warning: {warning}"));
        }
    }

    /// The messages about the pods of manifests that have failed.
    fn failures_of_manifests(&self, reports: &Reports) -> Vec<String> {
        let pods = self.manifest_pods.uids().iter().filter_map(|uid| reports.get(uid));
        lines::failures(pods)
    }

    /// The messages at the end of the run about pods that failed.
    fn failures(&mut self, exit: Exit, reports: &Reports) -> Vec<String> {
        if exit == Exit::PodFailed {
            let own = reports.values().filter(|pod| self.hub.ended_by_itself(&pod.uid));
            return lines::failures(own);
        }
        if !matches!(exit, Exit::TimedOut | Exit::Interrupted) {
            return Vec::new();
        }
        let before = self.failures.take();
        before.unwrap_or_else(|| self.failures_of_manifests(reports))
    }

    fn count(&self, reports: &Reports) -> PodCounts {
        let mut tally = self.manager.controllers().tally();
        // The next change of the manifests may add pods.
        tally.open += usize::from(self.reloaded.is_some());
        // A background run continues until `crib down`, so that its result can be inspected.
        tally.open += usize::from(self.in_background);
        count_pods(self.manifest_pods.uids(), tally, reports, self.keep)
    }

    /// Deletes the pods that can never run. A kubelet and `crib agent` retry forever, but this command must end.
    fn end_refused(&mut self, reports: &Reports) {
        let wanted = self.manifest_pods.uids().clone();
        let refused = |pod: &Pod| {
            wanted.contains(pod.uid()) && reports.get(pod.uid()).is_some_and(is_refused)
        };
        self.delete(|pod| refused(pod).then_some("it cannot run"), Deletion::Refused);
    }

    /// Deletes the pods for which `why` returns a reason. While the run is ending, they count as stopped.
    fn delete(&mut self, why: impl Fn(&Pod) -> Option<&'static str>, deletion: Deletion) {
        let (controllers, ending) = (self.manager.controllers(), self.ending.as_ref());
        let grace = |pod: &Pod| ending?.grace_seconds(pod, controllers);
        let deletion = if ending.is_some() { Deletion::Stopped } else { deletion };
        self.hub.delete(why, grace, deletion, SystemClock.now());
    }

    /// Deletes the pods that match `which`, because the run is ending.
    fn end(&mut self, which: impl Fn(&Pod) -> bool, why: &'static str) {
        self.delete(|pod| which(pod).then_some(why), Deletion::Stopped);
    }

    /// Executes the step for an event; returns the exit code when the run is over.
    fn follow(&mut self, event: Event) -> Option<Exit> {
        let limit = match self.lifecycle.on(event) {
            Step::Wait => return None,
            Step::Finish(exit) => return Some(exit),
            Step::End => {
                self.reloaded = None;
                let reports = self.reports.borrow().clone();
                let now = SystemClock.now();
                let how = Ending::of(event, &self.without_grace);
                let seconds = |pod: &Pod| {
                    let own = how.grace_seconds(pod, self.manager.controllers());
                    own.unwrap_or_else(|| pod.grace_seconds())
                };
                let grace = self.hub.max_termination_time(seconds, now);
                let grace = grace.max(self.manager.controllers().max_termination_time(seconds));
                self.printer.note(ending(event, grace));
                self.ending = Some(how);
                self.waiting_due = Some(Alarm::now() + FIRST_WAIT);
                // Pods that end from now on are stopped by the run: they are not failures.
                self.failures = Some(self.failures_of_manifests(&reports));
                let mut changes = self.manager.end(&Reported(&reports), now);
                for (_, why) in &mut changes.deleted {
                    *why = cause_of_end(event);
                }
                self.apply(changes);
                let wanted = self.manifest_pods.uids().clone();
                self.end(|pod| wanted.contains(pod.uid()), cause_of_end(event));
                grace.saturating_add(EXTRA_GRACE)
            }
            Step::Kill => {
                self.reloaded = None;
                self.printer.note("killing the pods");
                self.end(|_| true, cause_of_end(event));
                self.hub.shorten(KILL_GRACE, SystemClock.now());
                self.agent.kill_now();
                EXTRA_GRACE
            }
        };
        // No deadline if the grace period exceeds the range of the clock.
        self.overdue = Alarm::now().checked_add(limit);
        // If no pod runs, there will be no further report.
        let reports = self.reports.borrow().clone();
        match self.lifecycle.on(Event::Reported(self.count(&reports))) {
            Step::Finish(exit) => Some(exit),
            Step::Wait | Step::End | Step::Kill => None,
        }
    }
}

/// Converts a timestamp to an instant of tokio's clock.
fn alarm_at(at: Timestamp) -> Alarm {
    let wait = Duration::try_from(at.duration_since(SystemClock.now())).unwrap_or_default();
    let now = Alarm::now();
    // A time beyond the range of the clock is checked again in a day.
    now.checked_add(wait).unwrap_or(now + DAY)
}

/// The next message; waits forever without a channel.
async fn next_of<T>(channel: &mut Option<mpsc::UnboundedReceiver<T>>) -> Option<T> {
    match channel {
        Some(channel) => channel.recv().await,
        None => std::future::pending().await,
    }
}

/// Sleeps until `at`; forever if `None`.
async fn alarm(at: Option<Alarm>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn label(pod: &str, container: &str) -> Label {
    Label { pod: pod.to_owned(), container: container.to_owned() }
}
