//! ◆ Which ClusterTrustBundles a projected volume wants, and their certificates. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/clustertrustbundle/clustertrustbundle_manager.go.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::selector::matches_selector;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use pem::{EncodeConfig, LineEnding, Pem};

use crate::objects::ObjectMap;

/// The bundle of a name, or all of a signer with the labels. No selector matches none, and an empty one all.
pub(crate) fn matching(
    wanted: &ClusterTrustBundleProjection,
    objects: &ObjectMap,
) -> Vec<Arc<ClusterTrustBundle>> {
    let mut found = objects.cluster_trust_bundles();
    found.retain(|bundle| match &wanted.name {
        Some(_) => bundle.metadata.name == wanted.name,
        None => {
            let labels = bundle.metadata.labels.clone().unwrap_or_default();
            let selector = wanted.label_selector.as_ref();
            bundle.spec.signer_name == wanted.signer_name
                && selector.is_some_and(|selector| matches_selector(selector, &labels))
        }
    });
    found
}

/// The certificates of all bundles, each once, in PEM. Their order has no meaning; it is always the same.
pub(crate) fn certificates(bundles: &[Arc<ClusterTrustBundle>]) -> String {
    let mut certificates = BTreeSet::new();
    for bundle in bundles {
        // It was validated when it was read.
        let blocks = pem::parse_many(&bundle.spec.trust_bundle).unwrap_or_default();
        certificates.extend(blocks.into_iter().map(Pem::into_contents));
    }
    let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
    let certificates = certificates.into_iter();
    let texts = certificates.map(|der| pem::encode_config(&Pem::new("CERTIFICATE", der), lines));
    texts.collect()
}
