//! ◆ The declared features of the node, on which the scheduler and the API server rely. Pure.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/component-helpers/nodedeclaredfeatures/features and
//! pkg/kubelet/kubelet_node_declared_features.go.

use agent::cri::Capabilities;
use agent::local_node::kubelet_config::Gates;

/// The gate without which a node declares no feature.
const NODE_DECLARED_FEATURES: &str = "NodeDeclaredFeatures";

/// The feature that also depends on the runtime.
const HOST_NETWORK: &str = "UserNamespacesHostNetworkSupport";

/// All features, sorted. Each has a feature gate of the same name.
const FEATURES: [&str; 5] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
    HOST_NETWORK,
];

/// The features that a node with these gates and this runtime declares, sorted.
#[must_use]
pub(crate) fn declared_features(
    gates: &Gates,
    capabilities: Option<&Capabilities>,
) -> Vec<&'static str> {
    if !gates.enabled(NODE_DECLARED_FEATURES) {
        return Vec::new();
    }
    let on_host_network = capabilities.is_some_and(|it| it.user_namespaces_host_network);
    let is_declared =
        |name: &&'static str| gates.enabled(name) && (*name != HOST_NETWORK || on_host_network);
    FEATURES.into_iter().filter(is_declared).collect()
}

#[cfg(test)]
mod tests {
    use compact::Map;
    use rstest::rstest;

    use super::*;

    /// The features that are on by default.
    const USUAL: [&str; 4] = [FEATURES[0], FEATURES[1], FEATURES[2], FEATURES[3]];

    #[rstest]
    #[case::defaults(&[], true, &USUAL)]
    #[case::one_gate_is_off(&[("ExtendWebSocketsToKubelet", false)], true, &USUAL[1..])]
    #[case::runtime_has_the_feature(&[("UserNamespacesHostNetworkSupport", true)], true, &FEATURES)]
    #[case::runtime_lacks_the_feature(&[("UserNamespacesHostNetworkSupport", true)], false, &USUAL)]
    #[case::node_declares_none(&[("NodeDeclaredFeatures", false)], true, &[])]
    #[case::all_beta_gates_are_off(&[("AllBeta", false)], true, &[])]
    fn gates_and_runtime_decide(
        #[case] given: &[(&str, bool)],
        #[case] of_runtime: bool,
        #[case] expected: &[&str],
    ) {
        let given: Map<String, bool> =
            given.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
        let capabilities =
            Capabilities { user_namespaces_host_network: of_runtime, ..Capabilities::default() };
        assert_eq!(declared_features(&Gates::new(&given), Some(&capabilities)), expected);
    }

    #[test]
    fn features_are_sorted_and_have_gates() {
        assert!(FEATURES.is_sorted());
        let names = [&FEATURES[..], &[NODE_DECLARED_FEATURES]].concat();
        let given: Map<String, bool> =
            names.iter().map(|name| ((*name).to_owned(), true)).collect();
        let gates = Gates::new(&given);
        // A gate that Kubernetes does not have is always off.
        assert!(names.iter().all(|name| gates.enabled(name)));
        assert_eq!(declared_features(&gates, None), USUAL);
    }
}
