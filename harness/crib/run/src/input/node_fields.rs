//! A warning about pods that select another node: all pods run on this machine.

use std::collections::BTreeMap;

use agent::pod_spec::admission::fields_of_other_nodes;
use api::manifest::Workload;
use api::manifest_set::named_pods;
use api::pod::Pod;
use crib_base::node::node_name;
use crib_base::node::with_own_labels;

/// One warning about all pods and workloads; `None` if no pod selects another node.
pub(crate) fn warning(pods: &[Pod], workloads: &[Workload]) -> Option<String> {
    let node = node_name();
    let labels = with_own_labels(&node, BTreeMap::new());
    let named: Vec<String> = named_pods(pods, workloads)
        .flat_map(|(name, pod)| {
            let fields = fields_of_other_nodes(&pod, &node, &labels);
            fields.into_iter().map(move |field| format!("{field} of {name}"))
        })
        .collect();
    let verb = match named.as_slice() {
        [] => return None,
        [_] => "names",
        [..] => "name",
    };
    let named = named.join(", ");
    Some(format!(
        "{named} {verb} another node, which has no effect: the only node, {node}, runs every pod"
    ))
}

#[cfg(test)]
mod tests {
    use api::manifest::{Strictness, parse};
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none("", None)]
    #[case::own_label("nodeSelector: {kubernetes.io/os: linux}", None)]
    #[case::selector("nodeSelector: {disk: ssd}", Some("spec.nodeSelector of pod default/p names"))]
    #[case::both(
        "nodeSelector: {disk: ssd}, nodeName: another.example",
        Some("spec.nodeName of pod default/p, spec.nodeSelector of pod default/p name")
    )]
    #[case::required(
        "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}",
        Some("spec.affinity.nodeAffinity of pod default/p names")
    )]
    #[case::required_and_met(
        "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/os, operator: In, values: [linux]}]}]}}}",
        None
    )]
    fn fields_with_other_nodes_are_reported(#[case] spec: &str, #[case] expected: Option<&str>) {
        let spec = [spec, "containers: [{name: c, image: i}]"];
        let spec = spec.map(str::to_owned).into_iter().filter(|part| !part.is_empty());
        let spec: Vec<String> = spec.collect();
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{{}}}\n",
            spec.join(", ")
        );
        let parsed = parse("m.yaml", &text, Strictness::Strict);
        assert_eq!(parsed.problems, []);
        let expected = expected.map(|named| {
            let node = node_name();
            format!(
                "{named} another node, which has no effect: the only node, {node}, runs every pod"
            )
        });
        assert_eq!(warning(&parsed.pods, &[]), expected);
    }
}
