//! pod-actions: the next actions for a pod.

use agent::decide::plan::{self, History, PodPlan, SandboxStep, Start, When};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::judge::Set;
use crate::pods;
use crate::read::{self, Case};

pub(crate) const SET: Set = Set::new("pod-actions", "the next actions for a pod", judge);

fn judge(case: &Case) -> Result<(), String> {
    let now: Timestamp = "2026-03-01T13:00:00Z".parse().unwrap();
    let pod = pods::pod(&case.input["pod"]);
    let observed = pods::observed(&pod, &case.input, now);
    let history =
        History { restart_all: case.input["restartAllContainers"] == true, ..History::default() };
    let plan = plan::plan(&pod, &observed, &history, now);

    assert!(
        plan.starts().all(|start| start.when == When::Now),
        "no restart is on record, so nothing may wait"
    );
    assert!(
        plan.does_something() != plan.idle.is_some(),
        "either something to do, or a reason for nothing"
    );
    let ours = vector_format(&plan);
    for (what, ours) in &ours {
        read::same(what, ours, &case.expected[what])?;
    }
    let facts = &case.expected["facts"];
    read::same(
        "restartAllRuleMatched",
        &json!(plan::restart::restart_all_matched(&pod, &observed)),
        &facts["restartAllRuleMatched"],
    )?;
    read::same(
        "allContainersAlreadyRemoved",
        &json!(plan::restart::all_removed(&pod, &observed)),
        &facts["allContainersAlreadyRemoved"],
    )
}

fn vector_format(plan: &PodPlan) -> Map<String, Value> {
    let (id, attempt) = match &plan.sandbox {
        SandboxStep::Keep { id, attempt } => (id.as_str(), attempt),
        SandboxStep::Create { attempt, replaces: last, .. }
        | SandboxStep::None { last, attempt } => {
            (last.as_ref().map_or("", |id| id.as_str()), attempt)
        }
    };
    let names =
        |starts: &[Start]| starts.iter().map(|start| start.name.clone()).collect::<Vec<_>>();
    let kills: Map<String, Value> = plan
        .kills
        .iter()
        .map(|kill| {
            let what = json!({"name": kill.name, "message": kill.message, "reason": kill.reason.to_string()});
            (kill.id.to_string(), what)
        })
        .collect();
    let resets: Vec<Value> = plan
        .resets
        .iter()
        .map(|reset| json!({"id": reset.id.as_str(), "name": reset.name, "kill": reset.kill}))
        .collect();
    let words = json!({
        "killPod": plan.kill_pod.is_some(),
        "createSandbox": matches!(plan.sandbox, SandboxStep::Create { .. }),
        "sandboxId": id,
        "attempt": attempt,
        "initContainersToStart": names(&plan.start_init),
        "containersToStart": names(&plan.start_apps),
        "ephemeralContainersToStart": names(&plan.start_ephemeral),
        "containersToKill": kills,
        "containersToReset": resets,
    });
    words.as_object().unwrap().clone()
}
