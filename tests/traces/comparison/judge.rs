//! Judges a scenario: replays it, and compares both sides in their normal form.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use registry::Registry;
use serde_json::Value;

use crate::comparison::compare::Sides;
use crate::comparison::difference::{Difference, NONE};
use crate::comparison::normal::{Symbols, text, without_empty};
use crate::node::{Parts, cgroup_root};
use crate::operations::operations;
use crate::record::record;
use crate::replay::{Replayed, replay};
use crate::scenarios::explanations::{self, Explanation};
use crate::scenarios::history::{Entry, Histories, containers, is_restarted};
use crate::scenarios::open::EXCEPTIONS;
use crate::scenarios::scenario::Scenario;
use crate::scenarios::steps::Mode;
use crate::scenarios::table;

/// How long a container counts as starting after its first start, in seconds: a kubelet begins to probe up to a second after the
/// start.
const FIRST_PROBES: f64 = 1.5;

/// The resolution of the recorded times of steps is 0.1 s, so an event may be recorded this much later.
const AT_ONCE: f64 = 0.1;

/// The two sides of a comparison.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    /// The tested side.
    pub(crate) parts: Parts,
    /// A kubelet that runs the scenario now on crib's runtime, in place of the recorded one.
    pub(crate) kubelet: Option<PathBuf>,
    /// A directory for the recording of that kubelet.
    pub(crate) record: Option<PathBuf>,
    /// Differences that neither the agent nor the kubelet causes.
    pub(crate) explanations: &'static [Explanation],
}

impl Trial {
    /// crib's agent and runtime, compared with the recorded kubelet and containerd.
    pub(crate) const RECORDED: Self = Self {
        parts: Parts::CRIB,
        kubelet: None,
        record: None,
        explanations: &explanations::RECORDED,
    };
}

/// The result of a scenario.
pub(crate) struct Verdict {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) outcome: Outcome,
}

pub(crate) enum Outcome {
    /// With the explanations of the differences, if any.
    Agrees(BTreeSet<&'static str>),
    Differs(Vec<Difference>),
    /// With the reason of the exception.
    Excluded(&'static str),
    /// The scenario could not be replayed.
    Broken(String),
}

/// Replays and judges a scenario.
pub(crate) async fn judge(scenario: &Scenario, registry: &Registry, trial: &Trial) -> Outcome {
    if let Some(exception) = EXCEPTIONS.iter().find(|exception| (exception.applies)(scenario)) {
        return Outcome::Excluded(exception.reason);
    }
    let recorded = match &trial.kubelet {
        Some(kubelet) => match record(scenario, registry, kubelet, trial.record.as_deref()).await {
            Ok(recorded) => recorded,
            Err(problem) => return Outcome::Broken(problem),
        },
        None => scenario.clone(),
    };
    let replayed = replay(&recorded, registry, &trial.parts).await;
    if !replayed.problems.is_empty() {
        return Outcome::Broken(replayed.problems.join("; "));
    }
    let mut differences = compare(&recorded, &replayed);
    let mut explained = BTreeSet::new();
    differences.retain(|difference| {
        let mut known = trial.explanations.iter();
        let explanation = known.find(|explanation| (explanation.applies)(difference));
        explained.extend(explanation.map(|explanation| explanation.reason));
        explanation.is_none()
    });
    if differences.is_empty() {
        Outcome::Agrees(explained)
    } else {
        table::write_calls(&recorded.name, &replayed.calls);
        Outcome::Differs(differences)
    }
}

fn compare(scenario: &Scenario, replayed: &Replayed) -> Vec<Difference> {
    let hostdir = format!("{}/hostdir", replayed.root);
    let mut kubelet = Symbols::new(&scenario.calls, &scenario.status, &[]);
    let cgroups = format!("{}/kubepods", cgroup_root(Path::new(&replayed.root)));
    let directories = [
        (cgroups.as_str(), "/kubepods"),
        (hostdir.as_str(), "${HOSTDIR}"),
        (replayed.root.as_str(), "${ROOT}"),
    ];
    let mut crib = Symbols::new(&replayed.calls, &replayed.status, &directories);
    let sides = Sides {
        kubelet: &operations(&scenario.calls, &mut kubelet),
        crib: &operations(&replayed.calls, &mut crib),
        steps: &scenario.plan.steps,
        shifts: &replayed.shifts,
        stalls: &replayed.stalls,
        removed_at: scenario.plan.removed_at(),
        our_removal: replayed.removed_at,
        end: scenario.plan.end(),
    };
    let mut found = sides.differences();
    for wanted in latest(&scenario.status) {
        let name = text(&wanted["metadata"]["name"]);
        let ours = latest(&replayed.status);
        let ours = ours.iter().find(|status| status["metadata"]["name"] == name);
        let ours = ours.map_or(&Value::Null, |status| &status["metadata"]["uid"]);
        let history = match scenario.plan.mode {
            Mode::Static => replayed.history.clone(),
            Mode::Api => at_server(&replayed.history, &replayed.gone),
        };
        let crib = entries(&history, ours, replayed.removed_at, &mut crib);
        let addresses = crib.last().map(|entry| entry.status.clone());
        let mut recorded = scenario.history_of(wanted);
        if scenario.plan.mode == Mode::Static {
            for entry in &mut recorded {
                add_addresses(scenario, &mut entry["status"], addresses.as_ref());
            }
        }
        let uid = &wanted["metadata"]["uid"];
        let histories = Histories {
            pod: name,
            kubelet: &entries(&recorded, uid, f64::MAX, &mut kubelet),
            crib: &crib,
            removed_at: (scenario.plan.removed_at(), replayed.removed_at),
        };
        found.extend(histories.differences());
    }
    let loops = restarted(&[&scenario.status, &replayed.status]);
    let until = |events: &[Value], removed_at: f64| -> Vec<Value> {
        let hangs_on_moment = |event: &&Value| is_of_moment(event, removed_at, &loops);
        let compared = events.iter().filter(|event| !hangs_on_moment(event));
        compared.cloned().collect()
    };
    found.extend(events(
        &until(&scenario.events, scenario.plan.removed_at()),
        &until(&replayed.events, replayed.removed_at),
    ));
    found
}

/// The statuses of a pod before `until`, in their normal form. Repeated statuses are omitted.
fn entries(history: &[Value], uid: &Value, until: f64, symbols: &mut Symbols) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for entry in history.iter().filter(|entry| entry["metadata"]["uid"] == *uid) {
        let at = entry["t"].as_f64().unwrap();
        let status = without_empty(symbols.value(&entry["status"]));
        let same = entries.last().is_some_and(|last| last.status == status);
        if at < until && !same {
            entries.push(Entry { at, status });
        }
    }
    entries
}

/// The statuses at an API server: a pod is not finished there while a container runs, and a removed object gets no status
/// (Kubernetes 1.36, pkg/kubelet/status/status_manager.go mergePodStatus and syncPod).
fn at_server(history: &[Value], gone: &[(String, f64)]) -> Vec<Value> {
    let is_over = |status: &Value| ["Succeeded", "Failed"].contains(&text(&status["phase"]));
    let runs = |status: &Value| containers(status).any(|it| it["state"]["running"].is_object());
    let mut kept: Vec<Value> = Vec::new();
    for entry in history {
        let uid = &entry["metadata"]["uid"];
        let mut removals = gone.iter().filter(|(of, _)| *uid == **of);
        if removals.any(|(_, at)| entry["t"].as_f64() >= Some(*at)) {
            continue;
        }
        let before = kept.iter().rfind(|it| it["metadata"]["uid"] == *uid);
        let mut entry = entry.clone();
        let status = &mut entry["status"];
        if let Some(before) = before
            && is_over(status)
            && runs(status)
            && !is_over(&before["status"])
        {
            for field in ["phase", "reason", "message"] {
                status[field].clone_from(&before["status"][field]);
            }
        }
        kept.push(entry);
    }
    kept
}

/// A kubelet without an API server omits the node's addresses from a status: they are copied from crib's.
fn add_addresses(scenario: &Scenario, status: &mut Value, ours: Option<&Value>) {
    let ours = ours.unwrap_or(&Value::Null);
    let of_pod = scenario.manifest.contains("hostNetwork: true");
    let fields = ["hostIP", "hostIPs", "podIP", "podIPs"];
    for field in fields.iter().take(if of_pod { 4 } else { 2 }) {
        status[*field].clone_from(&ours[*field]);
    }
}

/// The events that only one side has, compared by pod, container, type and reason.
fn events(kubelet: &[Value], crib: &[Value]) -> Vec<Difference> {
    let set = |events: &[Value]| -> BTreeSet<[String; 4]> {
        let keys = ["pod", "field_path", "type", "reason"];
        let key = |event: &Value| keys.map(|key| text(&event[key]).to_owned());
        let counted = events.iter().filter(|event| !is_early_probe(event, events));
        counted.map(key).collect()
    };
    let (kubelet, crib) = (set(kubelet), set(crib));
    let sides = kubelet.symmetric_difference(&crib);
    sides
        .map(|event| {
            let [pod, field, kind, reason] = event;
            let shown = |side: &BTreeSet<[String; 4]>| match side.contains(event) {
                true => format!("{kind} {reason}"),
                false => NONE.to_owned(),
            };
            Difference {
                kind: "events",
                place: format!("{pod} {field}"),
                kubelet: shown(&kubelet),
                crib: shown(&crib),
            }
        })
        .collect()
}

/// The containers that had been restarted when their pod was removed: the pod's name, and the field path of their events.
fn restarted(sides: &[&[Value]]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for status in sides.iter().copied().flatten() {
        let pod = text(&status["metadata"]["name"]);
        for container in containers(&status["status"]).filter(|it| is_restarted(it)) {
            let name = text(&container["name"]);
            found.push((pod.to_owned(), format!("{{{name}}}")));
        }
    }
    found
}

/// Whether an event reports that a repeatedly restarting container was killed with its pod: it may have exited before.
fn is_of_moment(event: &Value, removed_at: f64, loops: &[(String, String)]) -> bool {
    let field = text(&event["field_path"]);
    event["reason"] == "Killing"
        && event["t"].as_f64() >= Some(removed_at - AT_ONCE)
        && loops
            .iter()
            .any(|(pod, container)| event["pod"] == **pod && field.ends_with(container.as_str()))
}

/// Whether a probe failed during its container's first start.
fn is_early_probe(event: &Value, all: &[Value]) -> bool {
    let is_start = |other: &&Value| {
        other["reason"] == "Started"
            && ["pod", "field_path"].iter().all(|key| other[key] == event[key])
    };
    let started = all.iter().find(is_start).and_then(|start| start["t"].as_f64());
    let at = event["t"].as_f64();
    event["reason"] == "Unhealthy"
        && at.zip(started).is_some_and(|(at, started)| at - started < FIRST_PROBES)
}

/// The status of the latest pod of each name.
fn latest(statuses: &[Value]) -> Vec<&Value> {
    let mut latest: Vec<&Value> = Vec::new();
    for status in statuses {
        latest.retain(|earlier| earlier["metadata"]["name"] != status["metadata"]["name"]);
        latest.push(status);
    }
    latest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn probes_of_a_container_that_is_starting_do_not_count() {
        let event = |reason: &str, t: f64| json!({"pod": "p", "field_path": "spec.containers{c}", "type": "Warning", "reason": reason, "t": t});
        let started = || event("Started", 4.0);
        let differ = |kubelet: &[Value], crib: &[Value]| {
            let found = events(kubelet, crib);
            found.iter().map(|one| one.kubelet.clone()).collect::<Vec<_>>()
        };
        let early = [started(), event("Unhealthy", 5.0)];
        assert!(differ(&early, &[started()]).is_empty());
        // The second start of a container is not its first one.
        let late = [started(), started(), event("Unhealthy", 5.6)];
        assert_eq!(differ(&late, &[started()]), ["Warning Unhealthy"]);
    }

    #[test]
    fn deleted_object_gets_no_status() {
        let entry = |uid: &str, t: f64| json!({"t": t, "metadata": {"uid": uid}, "status": {"phase": "Running"}});
        let history = [entry("a", 1.0), entry("b", 1.0), entry("a", 5.0), entry("b", 5.0)];
        let kept = at_server(&history, &[("a".to_owned(), 3.0)]);
        assert_eq!(kept, [entry("a", 1.0), entry("b", 1.0), entry("b", 5.0)]);
    }
}
