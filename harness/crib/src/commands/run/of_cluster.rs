//! ◆ What a cluster adds to objects, and `kubectl get -o yaml` prints: it is left out where its other half is not there. Pure.

use agent::objects::{ObjectMap, Objects as _};
use agent::pod::Pod;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PodSpec, Volume};

/// The ConfigMap that a cluster has in each namespace.
const ROOT_CA: &str = "kube-root-ca.crt";
/// What the API server names the volume with which a pod reaches it (Kubernetes 1.36,
/// plugin/pkg/admission/serviceaccount).
const API_ACCESS: &str = "kube-api-access-";
/// The annotation of a claim whose volume was not chosen by its author (Kubernetes 1.36, pkg/controller/volume/persistentvolume).
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// Leaves them out. Returns what to say.
pub(super) fn leave_out(pods: &mut [Pod], objects: &mut ObjectMap) -> Vec<String> {
    let mut said = Vec::new();
    for pod in pods {
        if objects.config_map(pod.namespace(), ROOT_CA).is_some() {
            continue;
        }
        let mut api = pod.api().clone();
        let Some(volume) = api.spec.as_mut().and_then(without_api_access) else {
            continue;
        };
        let origin = pod.origin().to_owned();
        *pod = Pod::new(api).with_origin(&origin);
        said.push(format!(
            "pod {}: volume {volume} is left out: it is the way to the cluster's API server, and there is none here",
            pod.full_name()
        ));
    }
    for claim in objects.persistent_volume_claims() {
        let Some((volume, unbound)) = unbound(&claim, objects) else {
            continue;
        };
        let (namespace, name) = (
            claim.metadata.namespace.as_deref().unwrap_or("default"),
            claim.metadata.name.as_deref().unwrap_or_default(),
        );
        said.push(format!(
            "persistentvolumeclaim {namespace}/{name} is as new: PersistentVolume {volume}, to which its cluster bound it, is not in the \
             manifests"
        ));
        objects.insert_persistent_volume_claim(unbound);
    }
    said
}

/// Takes the volume with which a pod reaches the API server, and its mounts, from a pod. Returns its name.
fn without_api_access(spec: &mut PodSpec) -> Option<String> {
    let of_api = |volume: &Volume| {
        let sources = volume.projected.as_ref()?.sources.as_ref()?;
        let mut maps = sources
            .iter()
            .filter_map(|source| source.config_map.as_ref());
        (volume.name.starts_with(API_ACCESS) && maps.any(|map| map.name == ROOT_CA))
            .then(|| volume.name.clone())
    };
    let name = spec.volumes.iter().flatten().find_map(of_api)?;
    spec.volumes
        .iter_mut()
        .for_each(|all| all.retain(|volume| volume.name != name));
    let containers = spec.containers.iter_mut();
    let containers = containers.chain(spec.init_containers.iter_mut().flatten());
    let mounts = containers.map(|container| &mut container.volume_mounts);
    let later = spec.ephemeral_containers.iter_mut().flatten();
    for mounts in mounts.chain(later.map(|container| &mut container.volume_mounts)) {
        mounts
            .iter_mut()
            .for_each(|all| all.retain(|mount| mount.name != name));
    }
    Some(name)
}

/// A claim that a cluster bound to a volume that is not here, with the volume's name, and without it.
fn unbound(
    claim: &PersistentVolumeClaim,
    objects: &ObjectMap,
) -> Option<(String, PersistentVolumeClaim)> {
    let annotations = claim.metadata.annotations.as_ref()?;
    let volume = claim.spec.as_ref()?.volume_name.clone()?;
    let volumes = objects.persistent_volumes();
    let is_here = volumes
        .iter()
        .any(|one| one.metadata.name.as_ref() == Some(&volume));
    let is_bound = annotations.contains_key(BOUND_BY_CONTROLLER);
    (is_bound && !is_here).then(|| {
        let mut unbound = claim.clone();
        if let Some(spec) = &mut unbound.spec {
            spec.volume_name = None;
        }
        (volume, unbound)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pod(volume: &str, map: &str) -> Pod {
        let mounts =
            json!([{"name": volume, "mountPath": "/a"}, {"name": "own", "mountPath": "/b"}]);
        let sources =
            json!([{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": map}}]);
        let pod = json!({
            "metadata": {"namespace": "default", "name": "p"},
            "spec": {
                "initContainers": [{"name": "i", "volumeMounts": mounts}],
                "containers": [{"name": "c", "volumeMounts": mounts}],
                "volumes": [{"name": "own", "emptyDir": {}}, {"name": volume, "projected": {"sources": sources}}],
            },
        });
        Pod::new(serde_json::from_value(pod).unwrap()).with_origin("p.yaml")
    }

    #[rstest]
    #[case::added_by_cluster("kube-api-access-x2b4z", "kube-root-ca.crt", None, true)]
    #[case::own_name("token", "kube-root-ca.crt", None, false)]
    #[case::own_map("kube-api-access-x2b4z", "ca", None, false)]
    #[case::map_is_there(
        "kube-api-access-x2b4z",
        "kube-root-ca.crt",
        Some("kube-root-ca.crt"),
        false
    )]
    fn way_to_the_api_server_is_left_out(
        #[case] volume: &str,
        #[case] map: &str,
        #[case] there: Option<&str>,
        #[case] is_left_out: bool,
    ) {
        let mut objects = ObjectMap::default();
        if let Some(name) = there {
            let map = json!({"metadata": {"name": name}});
            objects.insert_config_map(serde_json::from_value(map).unwrap());
        }
        let mut pods = [pod(volume, map)];
        let said = leave_out(&mut pods, &mut objects);
        let [pod] = &pods;
        assert_eq!(said.len(), usize::from(is_left_out));
        assert_eq!(pod.origin(), "p.yaml");
        let names = |names: &mut dyn Iterator<Item = &str>| names.collect::<Vec<_>>().join(" ");
        let all = if is_left_out {
            "own".to_owned()
        } else {
            format!("{volume} own")
        };
        for (_, container) in pod.all_containers() {
            let mounts = container.volume_mounts.iter().flatten();
            assert_eq!(names(&mut mounts.map(|mount| mount.name.as_str())), all);
        }
        let volumes = pod.spec().volumes.iter().flatten();
        assert_eq!(volumes.count(), all.split(' ').count());
    }

    #[rstest]
    #[case::bound_by_cluster(json!({"pv.kubernetes.io/bound-by-controller": "yes"}), None, true)]
    #[case::named_by_author(json!({}), None, false)]
    #[case::volume_is_there(json!({"pv.kubernetes.io/bound-by-controller": "yes"}), Some("pvc-1"), false)]
    fn claim_of_a_cluster_is_as_new(
        #[case] annotations: Value,
        #[case] volume: Option<&str>,
        #[case] is_new: bool,
    ) {
        let mut objects = ObjectMap::default();
        let claim = json!({"metadata": {"name": "data", "annotations": annotations}, "spec": {"volumeName": "pvc-1"}});
        objects.insert_persistent_volume_claim(serde_json::from_value(claim).unwrap());
        if let Some(name) = volume {
            let volume = json!({"metadata": {"name": name}});
            objects.insert_persistent_volume(serde_json::from_value(volume).unwrap());
        }
        let said = leave_out(&mut [], &mut objects);
        assert_eq!(said.len(), usize::from(is_new));
        let claim = objects.persistent_volume_claim("default", "data").unwrap();
        let spec = claim.spec.clone().unwrap();
        assert_eq!(spec.volume_name.is_none(), is_new);
    }
}
