//! kill-order and kill-grace: the order and grace periods of container stops.
//!
//! The plan holds the dependencies; a simulation in virtual time, with the hooks and exits of the case, yields the times.

use std::collections::{BTreeMap, BTreeSet};

use agent::decide::plan::KillReason;
use agent::decide::plan::terminate::{self, KillPlan, StopTarget};
use agent::observed::ContainerId;
use jiff::SignedDuration;
use serde_json::{Map, Value, json};

use crate::judge::Set;
use crate::pods;
use crate::read::{self, Case};

pub(crate) const ORDER: Set =
    Set::new("kill-order", "the order in which containers are stopped", kill_order);

fn kill_order(case: &Case) -> Result<(), String> {
    let pod = pods::pod(&case.input["pod"]);
    let running: Vec<_> = read::list(&case.input["running"])
        .iter()
        .map(|seen| {
            (ContainerId::new(read::text(&seen["id"])), read::text(&seen["name"]).to_owned())
        })
        .collect();
    let plan = terminate::end_pod(&pod, &running, case.input["graceOverride"].as_i64());
    let run = run(&plan, case);
    let mut ours = run.words();
    for (id, name) in terminate::unnamed(&pod, &running) {
        insert_unnamed(&mut ours, &running, id, name);
    }
    ours["sandboxesStopped"] = case.input["sandboxIds"].clone();
    ours["sandboxStopAt"] = json!(pods::seconds(run.end()));
    agree(&ours, &case.expected)
}

/// Adds a container that is not stopped itself, in its place among the running ones.
fn insert_unnamed(
    ours: &mut Value,
    running: &[(ContainerId, String)],
    id: &ContainerId,
    name: &str,
) {
    let place = running.iter().position(|(running, _)| running == id);
    let words = json!({"name": name, "id": id.as_str()});
    let containers = ours["containers"].as_array_mut().unwrap();
    containers.insert(place.unwrap(), words);
    let failed = ours["failedContainers"].as_array_mut().unwrap();
    failed.push(json!(name));
    failed.sort_by(|a, b| read::text(a).cmp(read::text(b)));
}

pub(crate) const GRACE: Set = Set::new("kill-grace", "the grace period of a container", kill_grace);

fn kill_grace(case: &Case) -> Result<(), String> {
    let pod = pods::pod(&case.input["pod"]);
    let reason = match read::text(&case.input["reason"]) {
        "" => KillReason::PodEnds,
        "LivenessProbe" => KillReason::LivenessProbe,
        "StartupProbe" => KillReason::StartupProbe,
        "FailedPostStartHook" => KillReason::FailedPostStartHook,
        "RestartAllContainers" => KillReason::RestartAllContainers,
        "Unknown" => KillReason::Unknown,
        other => panic!("reason {other}"),
    };
    let id = ContainerId::new(read::text(&case.input["running"][0]["id"]));
    let name = read::text(&case.input["container"]);
    let plan = terminate::stop_one(&pod, &id, name, reason, case.input["graceOverride"].as_i64());
    agree(&run(&plan, case).words(), &case.expected)
}

fn agree(ours: &Value, expected: &Value) -> Result<(), String> {
    for (what, theirs) in expected.as_object().unwrap() {
        read::same(what, &ours[what], theirs)?;
    }
    Ok(())
}

#[derive(Clone, Default)]
struct StopTimes {
    pre_stop_at: Option<f64>,
    stop_at: Option<f64>,
    grace: Option<i64>,
    done_at: Option<f64>,
    failed: bool,
}

struct Run {
    targets: Vec<(StopTarget, StopTimes)>,
}

/// Simulates the plan in virtual time: hooks first, then each target after its dependencies.
fn run(plan: &KillPlan, case: &Case) -> Run {
    let facts: BTreeMap<&str, &Value> = read::list(&case.input["running"])
        .iter()
        .map(|seen| (read::text(&seen["id"]), seen))
        .collect();
    let mut all_stop_times: BTreeMap<&str, StopTimes> = BTreeMap::new();
    while all_stop_times.len() < plan.targets.len() {
        let before = all_stop_times.len();
        for target in &plan.targets {
            let others: Option<Vec<&StopTimes>> =
                target.waits_for.iter().map(|name| all_stop_times.get(name.as_str())).collect();
            let Some(others) =
                others.filter(|_| !all_stop_times.contains_key(target.name.as_str()))
            else {
                continue;
            };
            // A container whose stop failed keeps running; the others wait for it up to the wait limit.
            let free_at = others.iter().map(|stop_times| {
                if stop_times.failed { f64::INFINITY } else { stop_times.done_at.unwrap() }
            });
            let stop_times =
                stop_times(target, facts[target.id.as_str()], free_at.fold(0.0, f64::max));
            all_stop_times.insert(&target.name, stop_times);
        }
        assert!(all_stop_times.len() > before, "the targets wait for each other");
    }
    let targets = plan
        .targets
        .iter()
        .map(|target| (target.clone(), all_stop_times[target.name.as_str()].clone()))
        .collect();
    Run { targets }
}

fn stop_times(target: &StopTarget, facts: &Value, free_at: f64) -> StopTimes {
    let span = |seconds: f64| SignedDuration::from_millis((seconds * 1000.0).round() as i64);
    let hook = if target.pre_stop {
        // A sleep hook takes its seconds; every other hook takes none.
        facts["preStopTakes"].as_f64().unwrap_or(0.0).min(target.grace as f64)
    } else {
        0.0
    };
    let waited = (free_at - hook).clamp(0.0, target.wait_limit(span(hook)).as_secs_f64());
    let grace = target.stop_timeout(span(hook), span(waited));
    let needed = facts["exitAfter"].as_f64().unwrap().min(grace as f64);
    let error = read::text(&facts["stopError"]);
    let stop_at = hook + waited;
    StopTimes {
        pre_stop_at: target.pre_stop.then_some(0.0),
        stop_at: Some(stop_at),
        grace: Some(grace),
        done_at: Some(if error == "notFound" { stop_at } else { stop_at + needed }),
        failed: error == "failed",
    }
}

impl Run {
    fn end(&self) -> f64 {
        self.targets.iter().filter_map(|(_, stop_times)| stop_times.done_at).fold(0.0, f64::max)
    }

    fn words(&self) -> Value {
        let mut stages: BTreeMap<i64, BTreeSet<&str>> = BTreeMap::new();
        let mut failed: Vec<&str> = Vec::new();
        let mut containers = Vec::new();
        for (target, stop_times) in &self.targets {
            let mut words = Map::new();
            words.insert("name".to_owned(), json!(target.name));
            words.insert("id".to_owned(), json!(target.id.as_str()));
            for (what, at) in [
                ("preStopAt", stop_times.pre_stop_at),
                ("stopAt", stop_times.stop_at),
                ("doneAt", stop_times.done_at),
            ] {
                if let Some(at) = at {
                    words.insert(what.to_owned(), pods::seconds(at));
                }
            }
            if let Some(grace) = stop_times.grace {
                words.insert("graceSeconds".to_owned(), json!(grace));
            }
            containers.push(Value::Object(words));
            if let Some(at) = stop_times.stop_at {
                stages.entry((at * 1000.0).round() as i64).or_default().insert(&target.name);
            }
            if stop_times.failed {
                failed.push(&target.name);
            }
        }
        failed.sort_unstable();
        json!({"containers": containers, "stages": stages.into_values().collect::<Vec<_>>(), "failedContainers": failed})
    }
}
