//! ◆ A kubelet's names of volume plugins in metrics. Pure.
//!
//! Source: Kubernetes 1.36, pkg/volume/util/metrics.go GetFullQualifiedPluginNameForVolume, and the plugins in pkg/volume.

use api::pod::Pod;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, Volume};

use super::content;
use crate::objects::ObjectMap;

/// The name for local volumes.
pub(crate) const LOCAL: &str = "kubernetes.io/local-volume";

/// The name for volumes of unbound claims and unknown kinds.
const UNKNOWN: &str = "N/A";

/// The name of the plugin of a volume of a pod: `kubernetes.io/configmap`, `kubernetes.io/csi:DRIVER`.
pub(crate) fn name(pod: &Pod, volume: &Volume, objects: &ObjectMap) -> String {
    if let Some(kind) = content::kind(volume) {
        return kind.replace('~', "/");
    }
    if let Some(csi) = &volume.csi {
        return of_driver(&csi.driver);
    }
    let claim = match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some(source.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", pod.name(), volume.name)),
        (None, None) => None,
    };
    let known = match claim {
        Some(claim) => {
            let bound = objects.bound_claim(pod.namespace(), &claim);
            let bound = bound.and_then(|bound| bound.as_ref().ok());
            return bound.map_or_else(|| UNKNOWN.to_owned(), |bound| of_persistent(&bound.volume));
        }
        None if volume.empty_dir.is_some() => "kubernetes.io/empty-dir",
        None if volume.host_path.is_some() => "kubernetes.io/host-path",
        None if volume.image.is_some() => "kubernetes.io/image",
        None => UNKNOWN,
    };
    known.to_owned()
}

/// The name of the plugin of a PersistentVolume.
pub(crate) fn of_persistent(volume: &PersistentVolume) -> String {
    let known = match &volume.spec {
        Some(PersistentVolumeSpec { csi: Some(csi), .. }) => return of_driver(&csi.driver),
        Some(PersistentVolumeSpec { local: Some(_), .. }) => LOCAL,
        Some(PersistentVolumeSpec { host_path: Some(_), .. }) => "kubernetes.io/host-path",
        Some(_) | None => UNKNOWN,
    };
    known.to_owned()
}

/// The name of the plugin of a driver's volumes.
pub(crate) fn of_driver(driver: &str) -> String {
    format!("kubernetes.io/csi:{driver}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;
    use crate::objects::BoundClaim;

    #[rstest]
    #[case(json!({"configMap": {"name": "c"}}), "kubernetes.io/configmap")]
    #[case(json!({"secret": {"secretName": "s"}}), "kubernetes.io/secret")]
    #[case(json!({"projected": {}}), "kubernetes.io/projected")]
    #[case(json!({"downwardAPI": {}}), "kubernetes.io/downward-api")]
    #[case(json!({"emptyDir": {}}), "kubernetes.io/empty-dir")]
    #[case(json!({"hostPath": {"path": "/"}}), "kubernetes.io/host-path")]
    #[case(json!({"image": {"reference": "i"}}), "kubernetes.io/image")]
    #[case(json!({"csi": {"driver": "d.example"}}), "kubernetes.io/csi:d.example")]
    #[case(json!({"persistentVolumeClaim": {"claimName": "none"}}), "N/A")]
    #[case(json!({"nfs": {"server": "s", "path": "/"}}), "N/A")]
    fn plugin_has_the_name_that_a_kubelet_has(#[case] mut source: Value, #[case] name: &str) {
        source["name"] = json!("v");
        let volume = serde_json::from_value(source).unwrap();
        let pod = fixtures::pod_of("u1", "p", json!({"containers": []}));
        assert_eq!(super::name(&pod, &volume, &ObjectMap::default()), name);
    }

    #[rstest]
    #[case(json!({"local": {"path": "/"}}), "kubernetes.io/local-volume")]
    #[case(json!({"hostPath": {"path": "/"}}), "kubernetes.io/host-path")]
    #[case(json!({"csi": {"driver": "d", "volumeHandle": "h"}}), "kubernetes.io/csi:d")]
    #[case(json!({}), "N/A")]
    fn claim_has_the_plugin_of_its_volume(#[case] spec: Value, #[case] name: &str) {
        let bound = BoundClaim {
            claim: Arc::new(PersistentVolumeClaim::default()),
            volume: Arc::new(PersistentVolume {
                spec: serde_json::from_value(spec).unwrap(),
                ..PersistentVolume::default()
            }),
        };
        let pod = fixtures::pod_of("u1", "p", json!({"containers": []}));
        let mut objects = ObjectMap::default();
        for claim in ["data", "p-v"] {
            objects.set_bound_claim("default", claim, Ok(bound.clone()));
        }
        for source in [
            json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}}),
            json!({"name": "v", "ephemeral": {}}),
        ] {
            let volume = serde_json::from_value(source).unwrap();
            assert_eq!(super::name(&pod, &volume, &objects), name);
        }
    }
}
