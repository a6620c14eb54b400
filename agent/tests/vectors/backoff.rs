//! crash-backoff: delays between the restarts of a crashing container.

use agent::decide::backoff::{Backoff, Limits};
use agent::decide::plan::{self, History, When};
use agent::observed::Observed;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::judge::Set;
use crate::pods;
use crate::read::Case;
use crate::support;

pub(crate) const SET: Set = Set::new("crash-backoff", "how long a crashing container waits", judge);

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
        support::list(&case.input["steps"]).iter().zip(support::list(&case.expected)).enumerate()
    {
        let now = moment(&step["at"]);
        match support::text(&step["op"]) {
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
                support::same(&format!("step {index}"), &ours, expected)?;
            }
            other => panic!("step {other}"),
        }
    }
    Ok(())
}

fn start(history: &mut History, api: &Value, step: &Value, now: Timestamp) -> Value {
    let pod = pods::pod(api);
    let containers = support::list(&step["containers"])
        .iter()
        .map(|seen| pods::container(&pod, seen, moment))
        .collect();
    let observed = Observed { containers, ..Observed::nothing(now) };
    let start =
        plan::start_of(&pod, &observed, history, now, support::text(&step["container"])).unwrap();
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
