//! ◆ Warnings about amounts of memory or disk with a fraction of a byte: `100m` is a tenth of a byte. Pure.

use crate::manifest::Workload;
use crate::pod::Pod;
use crate::quantity::Quantity;

use super::named_pods;

/// One sentence for each, as in an API server's warnings (Kubernetes 1.36, pkg/api/pod/warnings.go).
pub fn warnings(pods: &[Pod], workloads: &[Workload]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, pod) in named_pods(pods, workloads) {
        for (_, container) in pod.all_containers() {
            let Some(resources) = &container.resources else {
                continue;
            };
            let lists = [("requests", &resources.requests), ("limits", &resources.limits)];
            for (list, amounts) in lists {
                let bytes = amounts.iter().flatten().filter(|(resource, _)| {
                    resource.as_str() == "memory" || resource.as_str() == "ephemeral-storage"
                });
                for (resource, amount) in bytes.filter(|(_, amount)| has_fraction(&amount.0)) {
                    let (container, amount) = (&container.name, &amount.0);
                    warnings.push(format!(
                        "{name}, container {container}: resources.{list}.{resource} is {amount}, which is not a whole number of bytes{}",
                        suggestion(amount)
                    ));
                }
            }
        }
    }
    warnings
}

fn has_fraction(amount: &str) -> bool {
    // Larger amounts are far above a byte.
    const LARGEST: i64 = i64::MAX / 1000;
    let parsed = Quantity::parse(amount).ok();
    parsed.is_some_and(|amount| amount.value() < LARGEST && amount.milli_value() % 1000 != 0)
}

/// The amount that was probably intended: `m` means thousandths, and is often a typo for `Mi`.
fn suggestion(amount: &str) -> String {
    let thousandths = amount.strip_suffix('m');
    thousandths.map_or_else(String::new, |number| format!(": did you mean {number}Mi?"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case(json!({"limits": {"memory": "100m"}}), &["pod d/p, container c: resources.limits.memory is 100m, which is not a whole number of bytes: did you mean 100Mi?"])]
    #[case(json!({"requests": {"ephemeral-storage": "1.5"}}), &["pod d/p, container c: resources.requests.ephemeral-storage is 1.5, which is not a whole number of bytes"])]
    #[case(json!({"requests": {"cpu": "100m", "memory": "1.5Gi"}, "limits": {"memory": "2000m", "ephemeral-storage": "16E"}}), &[])]
    fn amounts_with_fraction_are_named(#[case] resources: Value, #[case] expected: &[&str]) {
        let pod = json!({
            "metadata": {"namespace": "d", "name": "p"},
            "spec": {"containers": [{"name": "c", "resources": resources}]},
        });
        let pods = [Pod::new(serde_json::from_value(pod).unwrap())];
        assert_eq!(warnings(&pods, &[]), expected);
    }
}
