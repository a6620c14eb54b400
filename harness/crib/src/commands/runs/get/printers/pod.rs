//! ◆ The columns of pods. Pure.

use crib_base::columns::NONE;
use crib_base::columns::fields::{age_of, list, text, text_or};
use crib_base::columns::pod_summary::{PodSummary, is_open};
use serde_json::Value;

use super::TableOptions;

/// The cells of a pod.
pub(super) fn cells(pod: &Value, options: TableOptions) -> Vec<String> {
    let summary = PodSummary::of(pod);
    let gates = list(pod, "/spec/readinessGates");
    let open = gates.iter().filter(|gate| is_open(pod, text(gate, "/conditionType")));
    let gates = match gates.len() {
        0 => NONE.to_owned(),
        all => format!("{}/{all}", open.count()),
    };
    vec![
        summary.ready(),
        summary.status,
        summary.restarts.shown(options.now),
        age_of(pod, options.now),
        text_or(pod, "/status/podIPs/0/ip", NONE),
        text_or(pod, "/spec/nodeName", NONE),
        text_or(pod, "/status/nominatedNodeName", NONE),
        gates,
    ]
}
