//! ◆ Labels that a kubelet may give its own node. Pure.
//!
//! Source: Kubernetes 1.36, cmd/kubelet/app/options/options.go ValidateKubeletFlags, k8s.io/kubelet/pkg/apis/well_known_labels.go.

use std::collections::BTreeMap;

/// Labels in Kubernetes' own domains that a kubelet may set.
const OWN: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// Domains of Kubernetes in which a kubelet may set any label.
const OWN_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// The problems of the labels of `--node-labels`.
#[must_use]
pub fn label_problems(labels: &BTreeMap<String, String>) -> Vec<String> {
    let mut problems = Vec::new();
    for (key, value) in labels {
        if is_of_kubernetes(key) && !is_own(key) {
            problems.push(format!(
                "{key}: a node must not set this label on itself: labels of kubernetes.io and k8s.io must begin with {}, or be one of {}",
                OWN_DOMAINS.join("/ or "),
                OWN.join(", "),
            ));
        }
        if let Some(expected) = api::manifest::qualified(key) {
            problems.push(format!("{key:?}: {expected}"));
        }
        if let Some(expected) = api::manifest::label_value(value) {
            problems.push(format!("{key}: {value:?}: {expected}"));
        }
    }
    problems
}

fn is_in(domain: &str, of: &str) -> bool {
    domain.strip_suffix(of).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

fn domain(key: &str) -> &str {
    key.split_once('/').map_or("", |(domain, _)| domain)
}

fn is_of_kubernetes(key: &str) -> bool {
    ["kubernetes.io", "k8s.io"].iter().any(|of| is_in(domain(key), of))
}

fn is_own(key: &str) -> bool {
    OWN.contains(&key) || OWN_DOMAINS.iter().any(|of| is_in(domain(key), of))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("disk", "ssd", "")]
    #[case("node-role.kubernetes.io/worker", "", "must not set this label on itself")]
    #[case("node.kubernetes.io/worker", "", "")]
    #[case("x.node.kubernetes.io/worker", "", "")]
    #[case("topology.kubernetes.io/zone", "z", "")]
    #[case("x.k8s.io/a", "", "must not set this label on itself")]
    #[case("mykubernetes.io/a", "", "")]
    #[case("a b", "", "must be a name")]
    #[case("a", "b c", "must be empty or")]
    fn node_has_few_labels_of_kubernetes(
        #[case] key: &str,
        #[case] value: &str,
        #[case] expected: &str,
    ) {
        let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let problems = label_problems(&labels).join("; ");
        assert_eq!(problems.is_empty(), expected.is_empty(), "{problems}");
        assert!(problems.contains(expected), "{problems}");
    }
}
