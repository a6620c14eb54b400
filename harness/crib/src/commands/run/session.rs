//! The event loop of `crib run`: signals, timer, runtime and agent are its events, [`Lifecycle`] decides, the loop executes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::clock::SystemClock;
use agent::dialer::SystemDialer;
use agent::pod::{Pod, PodUid};
use agent::source::{self, PodsSender};
use agent::{Agent, Transition};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant as Alarm;

use super::args::RunArgs;
use super::clean_up;
use super::daemon::{Daemon, Launch};
use super::dead_runs::RunLock;
use super::inputs::Inputs;
use super::label::Label;
use super::lifecycle::{Event, Lifecycle, Step, count_pods};
use super::means::Means;
use super::notes::Notes;
use super::orphans;
use super::printer::{Print, Printer, Style};
use super::reach;
use super::reports::{Reports, is_refused};
use super::root::{self, Root, RootError};
use super::tail::Tail;
use crate::exit::Exit;
use crate::logging;
use crate::report::{chain, complain, say};
use crate::signals::Signals;

/// How long the agent and the runtime may take beyond the longest grace period of the pods.
const EXTRA_GRACE: Duration = Duration::from_secs(15);

/// How long the agent may take to stop its tasks; pods are not waited for.
const STOP_AGENT: Duration = Duration::from_secs(10);

/// Runs the pods to the end and cleans up. `started` is when the command began.
pub(crate) async fn session(
    args: &RunArgs,
    inputs: Inputs,
    image_archives: Vec<PathBuf>,
    started: Instant,
) -> Exit {
    // Before anything exists that would have to be cleaned up.
    let mut signals = match Signals::listen().and_then(Signals::and_hang_up) {
        Ok(signals) => signals,
        Err(error) => {
            say(&format!("failed to listen for signals: {error}"));
            return Exit::NoRuntime;
        }
    };
    orphans::adopt();
    clean_up::remove_dead_runs(args).await;
    let made = Root::make().and_then(|root| {
        let path = root.path().to_owned();
        let lock = RunLock::make(&path).map_err(|source| RootError::Lock { path, source })?;
        Ok((root, lock))
    });
    let (root, _lock) = match made {
        Ok(made) => made,
        Err(error) => {
            complain(&error);
            return Exit::NoRuntime;
        }
    };
    let launch = Launch {
        state_dir: args.state_dir.clone().unwrap_or_else(|| root.state()),
        root,
        isolation: args.isolation.to_string(),
        image_archives,
        keep: args.keep,
        live_dir: args.live_dir.clone(),
    };
    let (exit, kept) = with_root(args, inputs, &launch, started, &mut signals).await;
    if !kept && let Err(error) = root::remove(launch.root.path()) {
        complain(&error);
    }
    exit
}

/// What can be done once there is a directory. Says whether it is still needed.
async fn with_root(
    args: &RunArgs,
    inputs: Inputs,
    launch: &Launch,
    started: Instant,
    signals: &mut Signals,
) -> (Exit, bool) {
    let log = match (
        launch.root.log_file("runtime.log"),
        launch.root.log_file("agent.log"),
    ) {
        (Ok(runtime), Ok(agent)) => {
            logging::to_file(agent);
            runtime
        }
        (Err(error), _) | (_, Err(error)) => {
            complain(&error);
            return (Exit::NoRuntime, false);
        }
    };
    let mut daemon = match Daemon::spawn(launch, log) {
        Ok(daemon) => daemon,
        Err(error) => {
            complain(&error);
            return (Exit::NoRuntime, false);
        }
    };
    tokio::select! {
        ready = daemon.ready() => if let Err(error) = ready {
            complain(&error);
            orphans::end().await;
            return (Exit::NoRuntime, false);
        },
        _ = signals.next() => {
            stop(daemon, launch, signals).await;
            return (Exit::Interrupted, false);
        }
    }
    if let Err(problem) = announce(args, &inputs, &launch.root).await {
        say(&problem);
        stop(daemon, launch, signals).await;
        return (Exit::NoRuntime, false);
    }
    reach::announce(args, &launch.root);
    let exit = match Loop::start(args, inputs.pods, &launch.root, started).await {
        Ok(running) => running.run(&mut daemon, signals).await,
        Err(problem) => {
            say(&problem);
            Exit::NoRuntime
        }
    };
    if launch.root.is_full() {
        let path = launch.root.path().display();
        say(&format!(
            "the disk of {path} is full, and output of containers may be missing: free some space, or set TMPDIR to a directory elsewhere"
        ));
    }
    if args.keep && exit != Exit::NoRuntime {
        for line in keep_instructions(&launch.root, daemon.pid()) {
            say(&line);
        }
        return (exit, true);
    }
    stop(daemon, launch, signals).await;
    (exit, false)
}

/// Prints the isolation of the pods, and warns about what they will not get; with `--strict` that is an error.
async fn announce(args: &RunArgs, inputs: &Inputs, root: &Root) -> Result<(), String> {
    let means = Means::of_runtime(&root.socket())
        .await
        .map_err(|status| format!("failed to get the runtime's status: {}", status.message()))?;
    if !args.quiet {
        say(&format!("isolation: {}", means.isolation));
    }
    for warning in &inputs.warnings {
        say(&format!("warning: {warning}"));
    }
    match means.dropped_limits(&inputs.pods) {
        Some(dropped) if args.strict => Err(format!("--strict: {dropped}")),
        Some(dropped) => {
            say(&format!("warning: {dropped}"));
            Ok(())
        }
        None => Ok(()),
    }
}

/// Ends a runtime that served, and what it left if it has ended already. One more signal kills it.
async fn stop(daemon: Daemon, launch: &Launch, signals: &mut Signals) {
    let mut orderly = daemon.pid().is_some();
    let signal = async {
        signals.next().await;
    };
    if orderly && let Err(error) = daemon.stop(signal).await {
        complain(&error);
        orderly = false;
    }
    orphans::end().await;
    // A runtime that ended by itself, but in order, has removed everything.
    orderly |= !launch.root.path().exists();
    if !orderly && let Err(problem) = clean_up::clear(launch).await {
        say(&format!("failed to clean up after the runtime: {problem}"));
    }
}

/// The closing message of `--keep`.
fn keep_instructions(root: &Root, pid: Option<u32>) -> Vec<String> {
    let (path, socket) = (root.path().display(), root.socket());
    let mut lines = vec![
        format!(
            "the pods stay, with a runtime of their own at unix://{}",
            socket.display()
        ),
        format!(
            "look at them: crib --runtime-endpoint unix://{} pods",
            socket.display()
        ),
        format!(
            "their logs:   tail -n +1 -F {}/*/*/*.log",
            root.pod_logs().display()
        ),
    ];
    match pid {
        Some(pid) => lines.push(format!(
            "end them:     kill {pid} (this also removes {path})"
        )),
        None => lines.push(format!("the runtime has ended; remove {path}")),
    }
    lines
}

/// Everything that lives while pods run.
struct Loop {
    agent: Agent,
    reports: watch::Receiver<Arc<Reports>>,
    transitions: mpsc::UnboundedReceiver<Transition>,
    pods: PodsSender,
    /// The pods that the agent is to run.
    desired: Vec<Pod>,
    keep: bool,
    wanted: BTreeSet<PodUid>,
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
    async fn start(
        args: &RunArgs,
        pods: Vec<Pod>,
        root: &Root,
        started: Instant,
    ) -> Result<Self, String> {
        let endpoint = format!("unix://{}", root.socket().display());
        let cri = agent::cri::grpc::connect(&endpoint)
            .await
            .map_err(|error| chain(&error))?;
        let (fixed, sender) = source::fixed();
        let mut config = agent::Config::new(root.agent(), root.pod_logs());
        config.node_name = crate::commands::node_name();
        // Lines may still have to be read when the pod is gone; the whole directory goes away in the end.
        config.remove_logs = false;
        let parts = agent::Parts {
            cri,
            clock: Arc::new(SystemClock),
            dialer: Arc::new(SystemDialer),
            sources: vec![Box::new(fixed)],
        };
        let agent = agent::start(config, parts);
        let (reports, transitions) = (agent.reports(), agent.transitions());

        let labels: Vec<Label> = pods
            .iter()
            .flat_map(|pod| {
                pod.all_containers()
                    .map(|(_, container)| label(&pod.full_name(), &container.name))
            })
            .collect();
        let (closed, output_closed) = mpsc::unbounded_channel();
        let style = Style::choose(args.output, args.quiet);
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
        let longest_grace = pods
            .iter()
            .map(|pod| u64::try_from(pod.grace_seconds()).unwrap_or_default())
            .max();
        let wanted = pods.iter().map(|pod| pod.uid().clone()).collect();
        sender.set(pods.clone());
        Ok(Self {
            desired: pods,
            keep: args.keep,
            agent,
            reports,
            transitions,
            pods: sender,
            wanted,
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
    async fn run(mut self, daemon: &mut Daemon, signals: &mut Signals) -> Exit {
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
            self.printer.print(Print::Transition(transition));
        }
        let (tail, printer) = (self.tail, self.printer);
        let last_words = async {
            tail.finish().await;
            printer.print(Print::Result(exit, reports));
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
                Some(transition) = self.transitions.recv() => self.printer.print(Print::Transition(transition)),
                Ok(()) = self.reports.changed() => {
                    let reports = self.reports.borrow_and_update().clone();
                    self.hear(&reports);
                    return Event::Reported(count_pods(&self.wanted, &reports, self.keep));
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
        for line in self.notes.on_reports(reports) {
            self.printer.note(line);
        }
        self.printer.print(Print::Reports(reports.clone()));
    }

    /// Ends the pods that can never succeed. A kubelet tries for ever, and so does `crib agent`; this command has an end.
    fn end_refused(&mut self, reports: &Reports) {
        let count = self.desired.len();
        self.desired
            .retain(|pod| !reports.get(pod.uid()).is_some_and(is_refused));
        if self.desired.len() < count {
            self.pods.set(self.desired.clone());
        }
    }

    /// Executes the step for an event; `Some` when the run is over.
    fn follow(&mut self, event: Event) -> Option<Exit> {
        let limit = match self.lifecycle.on(event) {
            Step::Wait => return None,
            Step::Finish(exit) => return Some(exit),
            Step::End => {
                self.printer.note(ending(event, self.longest_grace));
                self.desired.clear();
                self.pods.set(Vec::new());
                self.longest_grace.saturating_add(EXTRA_GRACE)
            }
            Step::Kill => {
                self.printer.note("killing the pods");
                self.agent.kill_now();
                EXTRA_GRACE
            }
        };
        // A grace period that no clock can add is one that is never over.
        self.overdue = Alarm::now().checked_add(limit);
        // When nothing runs there will be no report to wait for.
        let reports = self.reports.borrow().clone();
        match self.lifecycle.on(Event::Reported(count_pods(
            &self.wanted,
            &reports,
            self.keep,
        ))) {
            Step::Finish(exit) => Some(exit),
            Step::Wait | Step::End | Step::Kill => None,
        }
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

/// The message when pods begin to end.
fn ending(event: Event, grace: Duration) -> String {
    let why = match event {
        Event::TimedOut => "timed out: ",
        Event::OutputClosed => "standard output was closed: ",
        Event::Signal | Event::Reported(_) | Event::Overdue | Event::RuntimeEnded => "",
    };
    format!(
        "{why}ending the pods, which may take {} s; Ctrl-C kills them at once",
        grace.as_secs()
    )
}
