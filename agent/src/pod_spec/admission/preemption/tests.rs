//! Tables of the pods that are preempted for a critical pod.
#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::fixtures;
use crate::pod_spec::admission::{AdmittedPods, NodeInfo, admit_or_preempt};

/// A pod: its name, its priority, and the requests of its container. `guaranteed` makes the requests limits too.
fn pod(name: &str, priority: i64, requests: Value, guaranteed: bool) -> Pod {
    let mut resources = json!({"requests": requests});
    if guaranteed {
        resources["limits"] = resources["requests"].clone();
    }
    let spec = json!({
        "priority": priority,
        "containers": [{"name": "c", "image": "i", "resources": resources}],
    });
    fixtures::pod_of(name, name, spec)
}

fn node_info() -> NodeInfo {
    let amounts = [("cpu", "4"), ("memory", "4Gi"), ("pods", "6")];
    let amounts = amounts.map(|(name, amount)| (name.to_owned(), amount.to_owned()));
    NodeInfo { allocatable: BTreeMap::from(amounts), ..NodeInfo::default() }
}

const CRITICAL: i64 = 2_000_000_000;

/// The names of the pods that are evicted so that a pod with these requests fits beside the pods of the table.
fn victims(priority: i64, requests: Value) -> String {
    let of = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
    let others = [
        pod("besteffort", 0, json!({}), false),
        pod("small", 0, of("200m", "100Mi"), false),
        pod("middle", 0, of("600m", "200Mi"), false),
        pod("large", 0, of("1200m", "2Gi"), false),
        pod("sure", 0, of("1", "1Gi"), true),
        pod("critical", CRITICAL, of("1", "512Mi"), true),
    ];
    let others: AdmittedPods = others.into_iter().collect();
    match admit_or_preempt(&pod("new", priority, requests, false), &others, &node_info()) {
        Ok(victims) => {
            let names: Vec<&str> = victims.iter().map(PodUid::as_str).collect();
            names.join(" ")
        }
        Err(rejection) => format!("{}: {}", rejection.reason, rejection.message),
    }
}

const NO_PODS: &str = "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: ";

#[rstest]
// The node is full of pods, and has 0 of 4 CPUs and 192 MiB of memory left.
#[case::a_place(json!({}), "besteffort")]
#[case::nearest_burstable(json!({"cpu": "500m"}), "middle")]
#[case::smallest_that_suffices(json!({"cpu": "150m"}), "small")]
#[case::several(json!({"cpu": "1500m"}), "large middle")]
#[case::memory(json!({"memory": "1Gi"}), "large")]
#[case::two_resources(json!({"cpu": "700m", "memory": "1Gi"}), "large")]
#[case::guaranteed_last(json!({"cpu": "2500m"}), "large middle sure")]
#[case::too_much(json!({"cpu": "3100m"}), format!("{NO_PODS}[(res: cpu, q: 100), ]"))]
fn critical_pod_preempts_others(#[case] requests: Value, #[case] expected: impl AsRef<str>) {
    assert_eq!(victims(CRITICAL, requests), expected.as_ref());
}

#[test]
fn other_pods_preempt_none() {
    let rejected = victims(CRITICAL - 1, json!({"cpu": "100m"}));
    assert!(rejected.starts_with("OutOfpods: "), "{rejected}");
}

#[test]
fn critical_pods_are_preempted_only_by_higher_priority() {
    let other = pod("other", CRITICAL, json!({"cpu": "4"}), true);
    let other = AdmittedPods::from_iter([other]);
    let verdict = |priority| {
        let new = pod("new", priority, json!({"cpu": "1"}), false);
        admit_or_preempt(&new, &other, &node_info()).map_err(|rejection| rejection.reason)
    };
    assert_eq!(verdict(CRITICAL), Err("UnexpectedAdmissionError".to_owned()));
    assert_eq!(verdict(CRITICAL + 1), Ok(vec![PodUid::new("other")]));
}

#[test]
fn other_rejections_precede_resources_for_a_critical_pod() {
    let mut new = pod("new", CRITICAL, json!({"cpu": "9"}), false).api().clone();
    new.spec.as_mut().unwrap().node_selector = Some([("disk".to_owned(), "ssd".to_owned())].into());
    let node_info = NodeInfo { labels: Some(BTreeMap::new()), ..node_info() };
    let rejection =
        admit_or_preempt(&Pod::new(new), &AdmittedPods::default(), &node_info).unwrap_err();
    assert_eq!(rejection.reason, "NodeAffinity");
}

#[test]
fn static_pods_are_critical() {
    let with = |key: &str, value: &str| {
        let mut api = pod("p", 0, json!({}), false).api().clone();
        api.metadata.annotations = Some([(key.to_owned(), value.to_owned())].into());
        is_critical(&Pod::new(api))
    };
    assert!(with("kubernetes.io/config.source", "file"));
    assert!(with("kubernetes.io/config.mirror", "hash"));
    assert!(!with("kubernetes.io/config.source", "api"));
}
