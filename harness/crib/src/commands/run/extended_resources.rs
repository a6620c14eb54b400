//! ◆ Which resources of devices are requested that this machine's containers are not given, in words. Pure.

use std::collections::BTreeSet;

use agent::manifest::Workload;
use agent::pod::Pod;
use k8s_openapi::api::core::v1::ResourceRequirements;

use super::named_pods;

/// One sentence for each such resource, as `nvidia.com/gpu`. A cluster's scheduler finds a node that has them.
pub(super) fn warnings(pods: &[Pod], workloads: &[Workload]) -> Vec<String> {
    let mut requested = BTreeSet::new();
    for (name, pod) in named_pods(pods, workloads) {
        requested.extend(extended(&pod).map(|resource| (resource, name.clone())));
    }
    let sentence = |(resource, name): &(String, String)| {
        format!(
            "{name} requests {resource}, which nothing here gives to containers: they run without it: leave it out"
        )
    };
    requested.iter().map(sentence).collect()
}

/// The names of resources that are not Kubernetes' own.
fn extended(pod: &Pod) -> impl Iterator<Item = String> {
    let of = |resources: Option<&ResourceRequirements>| {
        let lists = resources.map(|resources| [&resources.requests, &resources.limits]);
        let lists = lists.into_iter().flatten().flatten();
        let names = lists.flat_map(|list| list.keys());
        let names = names.filter(|name| name.contains('/') && !name.contains("kubernetes.io/"));
        names.cloned().collect::<Vec<_>>()
    };
    let containers = pod.all_containers();
    let all: BTreeSet<String> = containers
        .flat_map(|(_, container)| of(container.resources.as_ref()))
        .collect();
    all.into_iter()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case(json!({"limits": {"nvidia.com/gpu": "1"}}), &["pod d/p requests nvidia.com/gpu, which nothing here gives to containers: they run without it: leave it out"])]
    #[case(json!({"requests": {"cpu": "1"}, "limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}}), &[])]
    fn resources_of_devices_are_named(#[case] resources: Value, #[case] expected: &[&str]) {
        let pod = json!({
            "metadata": {"namespace": "d", "name": "p"},
            "spec": {"containers": [{"name": "c", "resources": resources}]},
        });
        let pods = [Pod::new(serde_json::from_value(pod).unwrap())];
        assert_eq!(warnings(&pods, &[]), expected);
    }
}
