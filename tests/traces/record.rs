//! Records a scenario again: the real kubelet runs its pods on crib's runtime, with the steps of the scenario.

use std::fs;
use std::path::Path;

use registry::Registry;
use serde_json::Value;

use crate::node::{AgentKind, Parts};
use crate::replay::replay;
use crate::runtimes::runtime::RuntimeKind;
use crate::scenarios::scenario::{Scenario, method};
use crate::scenarios::steps::Mode;

/// Calls whose responses are about more than the scenario: recordings omit these responses.
const WITHOUT_ANSWER: [&str; 4] = ["Version", "Status", "ImageFsInfo", "GetContainerEvents"];

/// The kubelet's recording, also written to a directory below `into` if given. An error is the reason why there is no recording.
pub(crate) async fn record(
    scenario: &Scenario,
    registry: &Registry,
    kubelet: &Path,
    into: Option<&Path>,
) -> Result<Scenario, String> {
    if scenario.plan.mode != Mode::Static {
        return Err("a kubelet without an API server runs no API objects".to_owned());
    }
    let parts = Parts { runtime: RuntimeKind::Crib, agent: AgentKind::Kubelet(kubelet.to_owned()) };
    let replayed = replay(scenario, registry, &parts).await;
    if !replayed.problems.is_empty() {
        return Err(replayed.problems.join("; "));
    }
    let root = &replayed.root;
    let hostdir = format!("{root}/hostdir");
    let portable = |values: &[Value]| -> Vec<Value> {
        let text = serde_json::to_string(values).unwrap();
        let text = text.replace(&hostdir, "${HOSTDIR}").replace(root, "${ROOT}");
        serde_json::from_str(&text).unwrap()
    };
    let mut calls = portable(&replayed.calls);
    for call in &mut calls {
        let name = method(call);
        let listing = name.starts_with("List") || name.ends_with("Stats");
        if (listing || WITHOUT_ANSWER.contains(&name))
            && let Some(call) = call.as_object_mut()
        {
            call.remove("response");
            call.remove("responses");
        }
    }
    let recorded = scenario.recorded_as(
        replayed.steps,
        calls,
        portable(&replayed.status),
        portable(&replayed.history),
        replayed.events,
    );
    if let Some(into) = into {
        let directory = into.join(&recorded.name);
        recorded.write(&directory);
        fs::write(directory.join("kubelet.log"), replayed.log).unwrap();
    }
    Ok(recorded)
}
