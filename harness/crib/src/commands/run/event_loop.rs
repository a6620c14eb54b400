//! What happens while pods run: signals, timer, runtime, agent and controllers are events, [`Lifecycle`] decides, the loop executes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::clock::{Clock as _, SystemClock};
use agent::controllers::{Changes, Controllers, CronStarts, Refused};
use agent::objects::{ObjectMap, ObjectStore, Objects as _};
use agent::pod::{Pod, PodUid};
use agent::source::{self, PodsSender};
use agent::{Agent, Event as PodEvent, ReadinessChange, Transition};
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant as Alarm;

use super::args::RunArgs;
use super::daemon::Daemon;
use super::ending::{cause_of_end, ending, with_cause_of_removal};
use super::fixed_services::FixedServices;
use super::inputs::Inputs;
use super::label::Label;
use super::lifecycle::{Event, Lifecycle, PodCounts, Step, count_pods};
use super::manifest_watch::{self, Reloaded};
use super::means::Means;
use super::notes::Notes;
use super::printer::{Print, Printer, Style};
use super::reports::{Reports, is_refused};
use super::root::Root;
use super::services;
use super::tail::Tail;
use crate::exit::Exit;
use crate::pod_dialer::PodDialer;
use crate::report::chain;
use crate::signals::Signals;

mod reload;

/// How long the agent and the runtime may take beyond the longest grace period of the pods.
const EXTRA_GRACE: Duration = Duration::from_secs(15);

const DAY: Duration = Duration::from_secs(86_400);

/// How long the agent may take to stop its tasks; pods are not waited for.
const STOP_AGENT: Duration = Duration::from_secs(10);

/// Everything that lives while pods run.
pub(super) struct Loop {
    agent: Agent,
    reports: watch::Receiver<Arc<Reports>>,
    transitions: mpsc::UnboundedReceiver<Transition>,
    readiness: mpsc::UnboundedReceiver<ReadinessChange>,
    events: mpsc::UnboundedReceiver<PodEvent>,
    /// What goes wrong with Services; ends when there are none.
    service_problems: mpsc::UnboundedReceiver<String>,
    pods: PodsSender,
    /// The pods that the agent is to run.
    desired: Vec<Pod>,
    /// Why the others were taken out.
    removed: BTreeMap<PodUid, &'static str>,
    keep: bool,
    /// The pods of manifests.
    wanted: BTreeSet<PodUid>,
    /// The same, as the manifests have them.
    bare: Vec<Pod>,
    /// The uids of all pods that manifests ever had.
    used: BTreeSet<PodUid>,
    objects: Arc<ObjectStore>,
    services: FixedServices,
    /// The Secrets of `--pull-secrets`.
    pull_secrets: ObjectMap,
    /// The manifests after each change.
    reloaded: Option<mpsc::UnboundedReceiver<Reloaded>>,
    /// The objects that create the other pods.
    controllers: Controllers,
    /// When they are to look again.
    controllers_due: Option<Alarm>,
    longest_grace: Duration,
    lifecycle: Lifecycle,
    notes: Notes,
    printer: Printer,
    output_closed: mpsc::UnboundedReceiver<()>,
    tail: Tail,
    deadline: Option<Alarm>,
    overdue: Option<Alarm>,
}

impl Loop {
    /// Starts the agent and hands it the pods.
    pub(super) async fn start(
        args: &RunArgs,
        inputs: Inputs,
        means: &Means,
        root: &Root,
        started: Instant,
    ) -> Result<Self, String> {
        let (mut pods, mut objects) = (inputs.pods, inputs.objects);
        let endpoint = format!("unix://{}", root.socket().display());
        let cri = agent::cri::grpc::connect(&endpoint)
            .await
            .map_err(|error| chain(&error))?;
        let (fixed, sender) = source::fixed();
        let mut config = agent::Config::new(root.agent(), root.pod_logs());
        config.volumes_dir = inputs.volumes_dir;
        config.node_name = crate::commands::node_name();
        config.node_ips = vec![agent::node_address::of_default_route().to_string()];
        config.host_names = means.host_names();
        // Lines may still have to be read when the pod is gone; the whole directory goes away in the end.
        config.remove_logs = false;
        // Each line is printed, also when the reader is slow: a rotated log could be gone before it is read.
        config.log_rotation = None;
        config.container_logs_dir = None;
        // The user's images stay, and as many of them are pulled as the pods need.
        config.images.garbage_collection = None;
        config.images.registry_pull_qps = 0;
        let pull_secrets = inputs.pull_secrets.apply(&mut config.images);
        objects.merge(pull_secrets.clone());
        let services = objects.all_services();
        let seed = RandomState::new().hash_one(std::process::id());
        let (served, mut service_notes) =
            match services::open(&root.socket(), &mut objects, seed).await {
                Ok(served) => (served, Vec::new()),
                Err(reason) if args.strict => {
                    return Err(format!("--strict: pods do not reach Services: {reason}"));
                }
                Err(reason) => {
                    let warning = format!("warning: pods do not reach Services: {reason}");
                    (None, vec![warning])
                }
            };
        let domain = config.cluster_domain.clone();
        let services = FixedServices::new(services, objects.all_services());
        let objects = Arc::new(ObjectStore::new(objects));
        let (service_problems, network) = match served {
            Some(served) => {
                config.cluster_dns = vec![served.dns];
                service_notes.extend(served.notes);
                if args.keep {
                    let warning = "warning: Services end with this command, also with --keep";
                    service_notes.push(warning.to_owned());
                }
                (served.problems, Some(served.network))
            }
            None => (mpsc::unbounded_channel().1, None),
        };
        let reloaded = if args.watch {
            let started = manifest_watch::start(args);
            Some(started.map_err(|error| format!("failed to watch the manifests: {error}"))?)
        } else {
            None
        };
        let parts = agent::Parts {
            objects: objects.clone(),
            cri,
            clock: Arc::new(SystemClock),
            dialer: Arc::new(PodDialer::new(&root.socket())),
            sources: vec![Box::new(fixed)],
        };
        let mut agent = agent::start(config, parts);
        if let Some(network) = network {
            agent.serve_services(&domain, objects.clone(), network);
        }
        let (reports, transitions) = (agent.reports(), agent.transitions());
        let (readiness, events) = (agent.readiness(), agent.events());

        let bare = pods.clone();
        let wanted: BTreeSet<PodUid> = pods.iter().map(|pod| pod.uid().clone()).collect();
        let refused = if args.keep {
            Refused::Kept
        } else {
            Refused::Deleted
        };
        let now = SystemClock.now();
        let starts = if args.now {
            CronStarts::Now
        } else {
            CronStarts::Scheduled
        };
        let mut controllers = Controllers::new(inputs.workloads, refused, starts, seed, now);
        let first = controllers.sync(&Reports::default(), now);
        pods.extend(first.created);

        let labels: Vec<Label> = pods
            .iter()
            .flat_map(|pod| {
                pod.all_containers()
                    .map(|(_, container)| label(&pod.full_name(), &container.name))
            })
            .collect();
        let (closed, output_closed) = mpsc::unbounded_channel();
        let style = Style::choose(args.output, args.quiet, args.events);
        let printer = Printer::start(style, &labels, started, closed);
        let tail = Tail::start(printer.clone())
            .map_err(|error| format!("failed to watch log files: {error}"))?;
        let notes = Notes::new(args.timeout, &pods);
        if !args.quiet {
            notes
                .at_start(&pods)
                .into_iter()
                .for_each(|line| printer.note(line));
        }
        service_notes
            .into_iter()
            .for_each(|line| printer.note(line));
        first.news.into_iter().for_each(|line| printer.note(line));
        let longest_grace = pods
            .iter()
            .map(|pod| u64::try_from(pod.grace_seconds()).unwrap_or_default())
            .max();
        sender.set(pods.clone());
        Ok(Self {
            desired: pods,
            removed: BTreeMap::new(),
            keep: args.keep,
            agent,
            reports,
            transitions,
            readiness,
            events,
            service_problems,
            pods: sender,
            used: wanted.clone(),
            wanted,
            bare,
            objects,
            services,
            pull_secrets,
            reloaded,
            controllers,
            // Once at once: there may be nothing to run, and then nothing is reported.
            controllers_due: Some(Alarm::now()),
            longest_grace: Duration::from_secs(longest_grace.unwrap_or_default()),
            lifecycle: Lifecycle::new(args.keep),
            notes,
            printer,
            output_closed,
            tail,
            deadline: args
                .timeout
                // One that is farther away than clocks go is never over.
                .and_then(|timeout| Alarm::from_std(started).checked_add(timeout)),
            overdue: None,
        })
    }

    /// Runs until the lifecycle ends, then prints the last lines and stops the agent. Does not touch the pods.
    pub(super) async fn run(mut self, daemon: &mut Daemon, signals: &mut Signals) -> Exit {
        let exit = loop {
            let event = self.next(daemon, signals).await;
            if let Some(exit) = self.follow(event) {
                break exit;
            }
        };
        let reports = self.reports.borrow_and_update().clone();
        self.hear(&reports);
        if tokio::time::timeout(STOP_AGENT, self.agent.stop())
            .await
            .is_err()
        {
            self.printer.note("the agent did not stop in time");
        }
        while let Ok(transition) = self.transitions.try_recv() {
            let transition = with_cause_of_removal(transition, &self.removed);
            self.printer.print(Print::Transition(transition));
        }
        while let Ok(change) = self.readiness.try_recv() {
            self.printer.print(Print::Readiness(change));
        }
        while let Ok(event) = self.events.try_recv() {
            self.printer.print(Print::Event(event));
        }
        let (tail, printer, jobs) = (self.tail, self.printer, self.controllers.jobs());
        let last_words = async {
            tail.finish().await;
            printer.print(Print::Result(exit, reports, jobs));
            printer.flush().await;
        };
        // A blocked reader must not delay the removal of the pods after another signal.
        tokio::select! {
            () = last_words => {}
            _ = signals.next() => {}
        }
        exit
    }

    /// Waits for the next event of the lifecycle.
    async fn next(&mut self, daemon: &mut Daemon, signals: &mut Signals) -> Event {
        loop {
            // Every arm is cancel-safe: channels and signals keep what is not taken, and alarms and a child can be waited
            // for again.
            tokio::select! {
                _ = signals.next() => return Event::Signal,
                Some(()) = self.output_closed.recv() => return Event::OutputClosed,
                () = alarm(self.deadline), if self.deadline.is_some() => {
                    self.deadline = None;
                    return Event::TimedOut;
                }
                () = alarm(self.overdue), if self.overdue.is_some() => {
                    self.overdue = None;
                    return Event::Overdue;
                }
                problem = daemon.ended() => {
                    self.printer.note(problem);
                    return Event::RuntimeEnded;
                }
                Some(transition) = self.transitions.recv() => {
                    let transition = with_cause_of_removal(transition, &self.removed);
                    self.printer.print(Print::Transition(transition));
                }
                Some(change) = self.readiness.recv() => self.printer.print(Print::Readiness(change)),
                Some(problem) = self.service_problems.recv() => self.printer.note(problem),
                Some(reloaded) = next_of(&mut self.reloaded) => self.reload(reloaded),
                Some(event) = self.events.recv() => self.printer.print(Print::Event(event)),
                Ok(()) = self.reports.changed() => {
                    let reports = self.reports.borrow_and_update().clone();
                    self.hear(&reports);
                    return Event::Reported(self.count(&reports));
                }
                () = alarm(self.controllers_due), if self.controllers_due.is_some() => {
                    let reports = self.reports.borrow_and_update().clone();
                    self.hear(&reports);
                    return Event::Reported(self.count(&reports));
                }
            }
        }
    }

    /// Passes reports to the view and the notes, and log directories to the tail.
    fn hear(&mut self, reports: &Arc<Reports>) {
        for pod in reports.values() {
            for container in &pod.containers {
                if let Some(dir) = container.log_path.as_deref().and_then(Path::parent) {
                    let label = label(&format!("{}/{}", pod.namespace, pod.name), &container.name);
                    self.tail.follow(Arc::new(label), dir.to_owned());
                }
            }
        }
        if !self.keep {
            self.end_refused(reports);
        }
        let changes = self.controllers.sync(reports, SystemClock.now());
        self.apply(changes);
        for line in self.notes.on_reports(reports) {
            self.printer.note(line);
        }
        self.printer.print(Print::Reports(reports.clone()));
    }

    /// Carries out what the controllers want.
    fn apply(&mut self, changes: Changes) {
        self.controllers_due = changes.again.map(alarm_at);
        if !changes.created.is_empty() || !changes.deleted.is_empty() {
            self.notes.add(&changes.created);
            self.removed.extend(changes.deleted);
            let removed = &self.removed;
            self.desired.retain(|pod| !removed.contains_key(pod.uid()));
            self.desired.extend(changes.created);
            self.pods.set(self.desired.clone());
        }
        for line in changes.news {
            self.printer.note(line);
        }
    }

    fn count(&self, reports: &Reports) -> PodCounts {
        let mut tally = self.controllers.tally();
        // The next change may bring more pods.
        tally.open += usize::from(self.reloaded.is_some());
        count_pods(&self.wanted, tally, reports, self.keep)
    }

    /// Ends the pods that can never succeed. A kubelet tries for ever, and so does `crib agent`; this command has an end.
    fn end_refused(&mut self, reports: &Reports) {
        let wanted = self.wanted.clone();
        let refused = |pod: &Pod| {
            wanted.contains(pod.uid()) && reports.get(pod.uid()).is_some_and(is_refused)
        };
        self.end(refused, "it cannot run");
    }

    /// Ends the pods that `which` chooses, for this reason.
    fn end(&mut self, which: impl Fn(&Pod) -> bool, why: &'static str) {
        let (ended, kept): (Vec<Pod>, Vec<Pod>) = self.desired.drain(..).partition(which);
        self.desired = kept;
        if !ended.is_empty() {
            let ended = ended.iter().map(|pod| (pod.uid().clone(), why));
            self.removed.extend(ended);
            self.pods.set(self.desired.clone());
        }
    }

    /// Executes the step for an event; `Some` when the run is over.
    fn follow(&mut self, event: Event) -> Option<Exit> {
        let limit = match self.lifecycle.on(event) {
            Step::Wait => return None,
            Step::Finish(exit) => return Some(exit),
            Step::End => {
                self.reloaded = None;
                let grace = self.longest_grace.max(self.controllers.longest_end());
                self.printer.note(ending(event, grace));
                let reports = self.reports.borrow().clone();
                let mut changes = self.controllers.end(&reports, SystemClock.now());
                for (_, why) in &mut changes.deleted {
                    *why = cause_of_end(event);
                }
                self.apply(changes);
                let wanted = self.wanted.clone();
                self.end(|pod| wanted.contains(pod.uid()), cause_of_end(event));
                grace.saturating_add(EXTRA_GRACE)
            }
            Step::Kill => {
                self.reloaded = None;
                self.printer.note("killing the pods");
                self.end(|_| true, cause_of_end(event));
                self.agent.kill_now();
                EXTRA_GRACE
            }
        };
        // A grace period that no clock can add is one that is never over.
        self.overdue = Alarm::now().checked_add(limit);
        // When nothing runs there will be no report to wait for.
        let reports = self.reports.borrow().clone();
        match self.lifecycle.on(Event::Reported(self.count(&reports))) {
            Step::Finish(exit) => Some(exit),
            Step::Wait | Step::End | Step::Kill => None,
        }
    }
}

/// When tokio's clock shows a time.
fn alarm_at(at: Timestamp) -> Alarm {
    let wait = Duration::try_from(at.duration_since(SystemClock.now())).unwrap_or_default();
    let now = Alarm::now();
    // One that is farther away than clocks go is looked at again in a day.
    now.checked_add(wait).unwrap_or(now + DAY)
}

/// The next message; waits for ever where there is no channel.
async fn next_of<T>(channel: &mut Option<mpsc::UnboundedReceiver<T>>) -> Option<T> {
    match channel {
        Some(channel) => channel.recv().await,
        None => std::future::pending().await,
    }
}

/// Returns at `at`; never if `None`.
async fn alarm(at: Option<Alarm>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn label(pod: &str, container: &str) -> Label {
    Label {
        pod: pod.to_owned(),
        container: container.to_owned(),
    }
}
