//! Replays recorded scenarios of a kubelet's pods: the same manifests and the same events must produce the same CRI calls and the
//! same statuses. See README.md in this directory.
#![allow(clippy::unwrap_used, reason = "a malformed recording has to fail the test")]

mod kubelet;
mod node;
mod objects;
mod operations;
mod pods;
mod probes;
mod record;
mod replay;

mod comparison {
    //! Compares a replay with its recording.

    pub(crate) mod compare;
    pub(crate) mod difference;
    pub(crate) mod judge;
    pub(crate) mod normal;
    pub(crate) mod patch;
}

mod runtimes {
    //! The runtimes on which scenarios are replayed.

    pub(crate) mod containerd;
    pub(crate) mod images;
    pub(crate) mod lost_sandboxes;
    pub(crate) mod recorded_images;
    pub(crate) mod runtime;
}

mod scenarios {
    //! Recorded scenarios: their files, steps and history.

    pub(crate) mod explanations;
    pub(crate) mod history;
    pub(crate) mod library;
    pub(crate) mod open;
    pub(crate) mod scenario;
    pub(crate) mod source;
    pub(crate) mod steps;
    pub(crate) mod table;
}

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use comparison::judge::{Outcome, Trial, Verdict};
use node::{AgentKind, Parts};
use runtimes::runtime::RuntimeKind;
use scenarios::scenario::Scenario;
use scenarios::source::Source;

/// The names of the scenarios to replay, separated by commas; by default all.
const CHOSEN: &str = "CRIB_SCENARIOS";
/// If set, the test rewrites the sample from all scenarios.
const UPDATE_SAMPLE: &str = "CRIB_UPDATE_TRACES_SAMPLE";
/// If set, the test rewrites `open.tsv` from all scenarios.
const UPDATE_OPEN: &str = "CRIB_UPDATE_TRACES_OPEN";
/// The program of a kubelet.
const KUBELET: &str = "KUBELET";
/// A directory for that kubelet's recordings, with a subdirectory for each scenario.
const RECORD: &str = "CRIB_RECORD";
/// The number of concurrent replays, which mostly wait.
const AT_ONCE: usize = 16;
const AT_ONCE_AGAIN: usize = 4;
/// The same with a containerd or a kubelet for each replay.
const AT_ONCE_OTHERS: usize = 5;
/// The maximum number of scenarios that are replayed again.
const FEW: usize = 40;

/// The scenarios that are replayed on containerd.
const ON_CONTAINERD: [&str; 10] = [
    "exit0-never",
    "ext-kill9-never",
    "grace0-ignore-term",
    "hostport",
    "init-two-ok",
    "liveness-http-ok",
    "pull-ifnotpresent-absent",
    "sidecar-end-short-grace",
    "termmsg-file",
    "vol-subpath",
];

/// The recorded scenarios in which a kubelet is run again for comparison, in addition to all of `tests/interop/kubelet/scenarios`.
const BESIDE_KUBELET: [&str; 20] = [
    "agent-restart-running",
    "cmd-not-found-always",
    "deadline",
    "exit0-never",
    "exit1-onfailure",
    "ext-kill-pause",
    "ext-stop-container",
    "image-missing",
    "init-fail-never",
    "init-two-ok",
    "liveness-exec-fail",
    "liveness-http-ok",
    "poststart-fail",
    "prestop-exec-short",
    "pull-never-absent",
    "sidecar-end-short-grace",
    "sidecar-job-never",
    "startup-slow",
    "two-apps-both-end-never",
    "update-env-slow-stop",
];

#[test]
fn agent_acts_as_kubelet_did() {
    harness::needs!(Root, Busybox);
    let source = Source::find();
    let all = source.scenarios();
    if std::env::var_os(UPDATE_SAMPLE).is_some() {
        scenarios::source::write_sample(&all);
    }
    let chosen = std::env::var(CHOSEN).ok();
    let scenarios = match &chosen {
        Some(names) => named(all, &names.split(',').collect::<Vec<_>>()),
        None => all,
    };
    let tokio = tokio_runtime();
    let open = scenarios::open::open();
    let trial = Arc::new(Trial::RECORDED);
    let mut verdicts = tokio.block_on(async {
        let verdicts = replay_all(scenarios.clone(), &trial, AT_ONCE).await;
        again(verdicts, scenarios, &trial, &open).await
    });
    verdicts.sort_by(|a, b| a.name.cmp(&b.name));
    scenarios::table::write(&verdicts);
    if std::env::var_os(UPDATE_OPEN).is_some() {
        assert!(chosen.is_none(), "the list is written from all scenarios");
        scenarios::open::write(&verdicts);
    }
    say(&format!("{source}\n{}", scenarios::table::text(&verdicts)));
    let (wrong, closed) = scenarios::table::against_open(&verdicts, &open);
    if !closed.is_empty() {
        // Some scenarios depend on the order of concurrent events, so this is not a failure.
        let closed = closed.join(", ");
        say(&format!("tests/traces/open.tsv lists scenarios that agreed: {closed}"));
    }
    assert!(wrong.is_empty(), "scenarios differ (see target/traces): {}", wrong.join(", "));
}

/// The same agent on another runtime.
#[test]
fn agent_acts_on_containerd_as_kubelet_did() {
    harness::needs!(Alone);
    let trial = Trial {
        parts: Parts { runtime: RuntimeKind::Containerd, agent: AgentKind::Crib },
        explanations: &scenarios::explanations::CONTAINERD,
        ..Trial::RECORDED
    };
    compare_few(Source::find().scenarios(), &ON_CONTAINERD, trial);
}

/// The reference for all questions about a kubelet's behaviour.
#[test]
fn agent_acts_as_kubelet_does() {
    harness::needs!(Alone, Kubelet);
    let kubelet = std::env::var_os(KUBELET).unwrap();
    let trial = Trial {
        parts: Parts { runtime: RuntimeKind::Crib, agent: AgentKind::CribOfDirectory },
        kubelet: Some(kubelet.into()),
        record: std::env::var_os(RECORD).map(PathBuf::from),
        explanations: &scenarios::explanations::KUBELET,
    };
    let mut scenarios = Source::find().scenarios();
    let unrecorded = scenarios::source::unrecorded();
    let names: Vec<String> = unrecorded.iter().map(|it| it.name.clone()).collect();
    let names = BESIDE_KUBELET.into_iter().chain(names.iter().map(String::as_str));
    let names: Vec<&str> = names.collect();
    scenarios.extend(unrecorded);
    compare_few(scenarios, &names, trial);
}

/// Judges the scenarios of these names, or the selected ones.
fn compare_few(scenarios: Vec<Scenario>, names: &[&str], trial: Trial) {
    let chosen = std::env::var(CHOSEN).ok();
    let chosen: Option<Vec<&str>> = chosen.as_ref().map(|names| names.split(',').collect());
    let scenarios = named(scenarios, chosen.as_deref().unwrap_or(names));
    let trial = Arc::new(trial);
    let mut verdicts = tokio_runtime().block_on(replay_all(scenarios, &trial, AT_ONCE_OTHERS));
    verdicts.sort_by(|a, b| a.name.cmp(&b.name));
    scenarios::table::write(&verdicts);
    say(&scenarios::table::text(&verdicts));
    let (wrong, _) = scenarios::table::against_open(&verdicts, &scenarios::open::open());
    assert!(wrong.is_empty(), "scenarios differ (see target/traces): {}", wrong.join(", "));
}

/// The scenarios with these names.
fn named(mut scenarios: Vec<Scenario>, names: &[&str]) -> Vec<Scenario> {
    for name in names {
        assert!(
            scenarios.iter().any(|scenario| scenario.name == *name),
            "there is no scenario {name}"
        );
    }
    scenarios.retain(|scenario| names.contains(&scenario.name.as_str()));
    scenarios
}

fn tokio_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

/// Writes a text that is always visible: the test runner does not capture it.
fn say(text: &str) {
    writeln!(std::io::stderr().lock(), "{text}").unwrap();
}

/// Replays unexpectedly differing scenarios twice more, if they are few: on a busy machine a call may come too late. Each must
/// agree both times. The first differences are printed.
async fn again(
    mut verdicts: Vec<Verdict>,
    mut scenarios: Vec<Scenario>,
    trial: &Arc<Trial>,
    open: &[(String, String)],
) -> Vec<Verdict> {
    let wrong: Vec<String> = {
        let (wrong, _) = scenarios::table::against_open(&verdicts, open);
        wrong.into_iter().map(str::to_owned).collect()
    };
    if wrong.is_empty() || wrong.len() > FEW {
        return verdicts;
    }
    scenarios.retain(|scenario| wrong.contains(&scenario.name));
    let (first, rest) =
        verdicts.into_iter().partition::<Vec<_>, _>(|verdict| wrong.contains(&verdict.name));
    verdicts = rest;
    say(&format!(
        "replayed twice more, since they differed among many:\n{}",
        scenarios::table::text(&first)
    ));
    let mut twice = scenarios.clone();
    twice.extend(scenarios);
    let mut replayed = replay_all(twice, trial, AT_ONCE_AGAIN).await;
    // The worse of the two results counts: each name keeps its first verdict.
    replayed.sort_by_key(|verdict| (verdict.name.clone(), !verdict.is_wrong()));
    replayed.dedup_by(|later, first| later.name == first.name);
    verdicts.extend(replayed);
    verdicts
}

/// Replays scenarios concurrently, the long ones first.
async fn replay_all(
    mut scenarios: Vec<Scenario>,
    trial: &Arc<Trial>,
    at_once: usize,
) -> Vec<Verdict> {
    scenarios.sort_by(|a, b| b.plan.end().total_cmp(&a.plan.end()));
    let registry = Arc::new(runtimes::images::registry(&mut scenarios).await);
    let places = Arc::new(Semaphore::new(at_once));
    // Only one scenario at a time can use a host port.
    let host_ports = Arc::new(Semaphore::new(1));
    let mut running = JoinSet::new();
    for scenario in scenarios {
        let (registry, places, host_ports) = (registry.clone(), places.clone(), host_ports.clone());
        let trial = trial.clone();
        running.spawn(async move {
            let _port = match scenario.manifest.contains("hostPort:") {
                true => Some(host_ports.acquire_owned().await.unwrap()),
                false => None,
            };
            let _place = places.acquire_owned().await.unwrap();
            let (name, about) = (scenario.name.clone(), scenario.plan.about.clone());
            let judging = tokio::spawn(async move {
                comparison::judge::judge(&scenario, &registry, &trial).await
            });
            let outcome = judging.await.unwrap_or_else(|error| {
                Outcome::Broken(
                    error.try_into_panic().map_or_else(|error| error.to_string(), panic_message),
                )
            });
            Verdict { name, about, outcome }
        });
    }
    running.join_all().await
}

/// The message of a panic.
fn panic_message(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}
