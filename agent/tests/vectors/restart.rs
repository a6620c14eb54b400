//! restart-decision: whether a container is restarted.

use agent::decide::plan::restart;
use jiff::Timestamp;
use serde_json::json;

use crate::judge::Set;
use crate::pods;
use crate::read::Case;
use crate::support;

pub(crate) const SET: Set =
    Set::new("restart-decision", "whether a container is started again", judge);

fn judge(case: &Case) -> Result<(), String> {
    let pod = pods::pod(&case.input["pod"]);
    let observed = pods::observed(&pod, &case.input, Timestamp::UNIX_EPOCH);
    let name = support::text(&case.input["container"]);
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
    support::same("decision", &ours, &case.expected)
}
