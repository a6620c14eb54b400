//! ◆ Warnings about requested device resources that this machine does not provide. Pure.

use compact::Set;

use crate::manifest::{Workload, is_extended};
use crate::pod::Pod;

use super::named_pods;

/// One sentence for each such resource, as `nvidia.com/gpu`. In a cluster, the scheduler finds a node that has them.
pub fn warnings(pods: &[Pod], workloads: &[Workload]) -> Vec<String> {
    let mut requested = Set::new();
    for (name, pod) in named_pods(pods, workloads) {
        for (_, container) in pod.all_containers() {
            let resources = container.resources.iter();
            let lists = resources.flat_map(|resources| [&resources.requests, &resources.limits]);
            let names = lists.flatten().flat_map(|list| list.keys());
            let extended = names.filter(|resource| is_extended(resource));
            requested.extend(extended.map(|resource| (name.clone(), resource.clone())));
        }
    }
    let sentence = |(name, resource): &(String, String)| {
        format!(
            "{name} requests {resource}, which crib does not provide: the containers run without it; leave it out"
        )
    };
    requested.iter().map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case(json!({"limits": {"nvidia.com/gpu": "1"}}), &["pod d/p requests nvidia.com/gpu, which crib does not provide: the containers run without it; leave it out"])]
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
