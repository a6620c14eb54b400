//! crash-backoff: delays between the restarts of a crashing container. restart-decision: whether a container is restarted.

use agent::decide::backoff::{Backoff, Limits};
use agent::decide::plan::{self, History, When, restart};
use agent::observed::Observed;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::judge::Set;
use crate::pods;
use crate::read::{self, Case};

pub(crate) const SET: Set =
    Set::new("crash-backoff", "the back-off of a crashing container", judge);

/// Converts seconds since the start of the sequence to a time.
fn moment(seconds: &Value) -> Timestamp {
    let millis = (seconds.as_f64().unwrap() * 1000.0).round();
    Timestamp::from_millisecond(1_700_000_000_000 + millis as i64).unwrap()
}

fn seconds(at: Timestamp) -> f64 {
    (at.as_millisecond() - 1_700_000_000_000) as f64 / 1000.0
}

fn judge(case: &Case) -> Result<(), String> {
    let mut api = case.input["pod"].clone();
    let max = SignedDuration::from_secs(case.input["maxSeconds"].as_i64().unwrap());
    let mut history =
        History { backoff: Backoff::new(Limits::with_max(max)), ..History::default() };
    for (index, (step, expected)) in
        read::list(&case.input["steps"]).iter().zip(read::list(&case.expected)).enumerate()
    {
        let now = moment(&step["at"]);
        match read::text(&step["op"]) {
            "housekeeping" => history.backoff.forget_old(now),
            "image" => {
                for list in ["containers", "initContainers"] {
                    for container in api["spec"][list].as_array_mut().into_iter().flatten() {
                        if container["name"] == step["container"] {
                            container["image"] = step["image"].clone();
                        }
                    }
                }
            }
            "start" => {
                let ours = start(&mut history, &api, step, now);
                read::same(&format!("step {index}"), &ours, expected)?;
            }
            other => panic!("step {other}"),
        }
    }
    Ok(())
}

fn start(history: &mut History, api: &Value, step: &Value, now: Timestamp) -> Value {
    let pod = pods::pod(api);
    let containers = read::list(&step["containers"])
        .iter()
        .map(|seen| pods::container(&pod, seen, moment))
        .collect();
    let observed = Observed { containers, ..Observed::nothing(now) };
    let start =
        plan::start_of(&pod, &observed, history, now, read::text(&step["container"])).unwrap();
    let mut ours = match &start.when {
        When::Now => {
            history.started(&start, now);
            json!({"inBackoff": false})
        }
        When::Wait { until, message, .. } => json!({
            "inBackoff": true, "reason": "CrashLoopBackOff", "message": message, "until": pods::seconds(seconds(*until)),
        }),
    };
    ours["backoffSeconds"] = json!(history.backoff.delay(&start.backoff_key).as_secs());
    ours
}

pub(crate) const RESTART: Set =
    Set::new("restart-decision", "whether a container is restarted", judge_restart);

fn judge_restart(case: &Case) -> Result<(), String> {
    let pod = pods::pod(&case.input["pod"]);
    let observed = pods::observed(&pod, &case.input, Timestamp::UNIX_EPOCH);
    let name = read::text(&case.input["container"]);
    let (_, container) = pod.container(name).unwrap();
    let status = serde_json::from_value(case.input["apiStatus"].clone()).unwrap_or_default();
    let mut ours = json!({
        "shouldRestart": restart::should_start(&pod, container, &observed),
        "isRestartable": restart::is_restartable(&pod, container),
        "allContainersRestart": restart::restarts_all(&pod, &observed, &status),
        "allContainersRemoved": restart::all_removed(&pod, &observed),
        "podCouldRestartAll": restart::could_restart_all(&pod),
    });
    if let Some(exit) = observed.container(name).and_then(|seen| seen.state.exit()) {
        ours["policyAllowsRestart"] = json!(restart::policy_allows(&pod, container, exit.code));
        let rule = restart::matched_rule(container, exit.code).map(|(index, _)| index);
        ours["matchedRule"] = rule.map_or(json!(-1), |index| json!(index));
    }
    read::same("decision", &ours, &case.expected)
}
