//! ◆ Removes fields that a cluster adds to objects, and that `kubectl get -o yaml` prints, if the objects they refer to do not
//! exist here. Pure.

use agent::objects::ObjectMap;
use api::manifest::Workload;
use api::pod::Pod;
use k8s_openapi::api::core::v1::{Container, KeyToPath, PersistentVolumeClaim, PodSpec};

/// The ConfigMap that a cluster has in each namespace (Kubernetes 1.36, pkg/controller/certificates/rootcacertpublisher). The API
/// server mounts it into every pod, and some authors do so by hand.
const ROOT_CA: &str = "kube-root-ca.crt";
/// The only key of that ConfigMap.
const ROOT_CA_KEY: &str = "ca.crt";
/// The annotation of a claim whose volume was not chosen by its author (Kubernetes 1.36, pkg/controller/volume/persistentvolume).
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// Removes these fields. Returns warnings about them.
pub(crate) fn leave_out(
    pods: &mut [Pod],
    workloads: &mut [Workload],
    objects: &mut ObjectMap,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut without = |owner: &str, left_out: Vec<String>| {
        warnings.extend(left_out.into_iter().map(|left_out| {
            format!(
                "{owner}: {left_out} from ConfigMap {ROOT_CA}: it holds the CA of a cluster's API server, and crib run has no API server"
            )
        }));
    };
    for pod in pods {
        if objects.config_map(pod.namespace(), ROOT_CA).is_some() {
            continue;
        }
        let mut api = pod.api().clone();
        let left_out = without_root_ca(api.spec.get_or_insert_default());
        if !left_out.is_empty() {
            without(&format!("pod {}", pod.full_name()), left_out);
            let origin = pod.origin().to_owned();
            *pod = Pod::new(api).with_origin(&origin);
        }
    }
    for workload in workloads {
        if objects.config_map(workload.namespace(), ROOT_CA).is_some() {
            continue;
        }
        let name = workload.full_name();
        let spec = workload.template_mut().and_then(|template| template.spec.as_mut());
        without(&name, spec.map(without_root_ca).unwrap_or_default());
    }
    for claim in objects.persistent_volume_claims() {
        let Some((volume, unbound)) = unbound(&claim, objects) else {
            continue;
        };
        let (namespace, name) = (
            claim.metadata.namespace.as_deref().unwrap_or("default"),
            claim.metadata.name.as_deref().unwrap_or_default(),
        );
        warnings.push(format!(
            "persistentvolumeclaim {namespace}/{name} is treated as unbound: a cluster bound it to PersistentVolume {volume}, which is not in the manifests"
        ));
        objects.insert_persistent_volume_claim(unbound);
    }
    warnings
}

/// Makes references of a pod to the certificate optional. Returns descriptions of the volumes and variables that do without it.
fn without_root_ca(spec: &mut PodSpec) -> Vec<String> {
    let (mut left_out, mut files) = (Vec::new(), Vec::new());
    for volume in spec.volumes.iter_mut().flatten() {
        let sources = volume.projected.iter_mut().flat_map(|it| it.sources.iter_mut().flatten());
        let maps = sources.filter_map(|source| source.config_map.as_mut());
        let maps = maps.map(|map| (&map.name, &map.items, &mut map.optional));
        let own = volume.config_map.as_mut();
        let own = own.map(|map| (&map.name, &map.items, &mut map.optional));
        for (name, items, optional) in maps.chain(own) {
            if name == ROOT_CA && *optional != Some(true) {
                *optional = Some(true);
                files.extend(paths(items.as_deref()).map(|path| (volume.name.clone(), path)));
                let warning = format!("volume {} gets no file", volume.name);
                if !left_out.contains(&warning) {
                    left_out.push(warning);
                }
            }
        }
    }
    let init = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init) {
        if let Some(mounts) = &mut container.volume_mounts {
            // A missing subPath would be created as a directory.
            mounts.retain(|mount| {
                let mut files = files.iter();
                !files.any(|(volume, path)| {
                    mount.name == *volume && mount.sub_path.as_ref() == Some(path)
                })
            });
        }
        left_out.extend(variables_without_root_ca(container));
    }
    left_out
}

/// The paths of the certificate in a volume.
fn paths(items: Option<&[KeyToPath]>) -> impl Iterator<Item = String> {
    let all = items.is_none_or(<[KeyToPath]>::is_empty).then(|| ROOT_CA_KEY.to_owned());
    let chosen = items.unwrap_or_default().iter().filter(|item| item.key == ROOT_CA_KEY);
    chosen.map(|item| item.path.clone()).chain(all)
}

/// Makes references in the variables of a container optional. Returns descriptions of the variables that do without it.
fn variables_without_root_ca(container: &mut Container) -> Vec<String> {
    let mut left_out = Vec::new();
    for variable in container.env.iter_mut().flatten() {
        let source = variable.value_from.as_mut();
        let key = source.and_then(|source| source.config_map_key_ref.as_mut());
        if let Some(key) = key.filter(|key| key.name == ROOT_CA && key.optional != Some(true)) {
            key.optional = Some(true);
            let of = &container.name;
            left_out.push(format!("variable {} of container {of} gets no value", variable.name));
        }
    }
    for from in container.env_from.iter_mut().flatten() {
        let map = from.config_map_ref.as_mut();
        if let Some(map) = map.filter(|map| map.name == ROOT_CA && map.optional != Some(true)) {
            map.optional = Some(true);
            left_out.push(format!("container {} gets no variables", container.name));
        }
    }
    left_out
}

/// If a cluster bound the claim to a volume that does not exist here: the volume's name, and the claim without it.
fn unbound(
    claim: &PersistentVolumeClaim,
    objects: &ObjectMap,
) -> Option<(String, PersistentVolumeClaim)> {
    let annotations = claim.metadata.annotations.as_ref()?;
    let volume = claim.spec.as_ref()?.volume_name.clone()?;
    let volumes = objects.persistent_volumes();
    let is_here = volumes.iter().any(|one| one.metadata.name.as_ref() == Some(&volume));
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
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::added_by_cluster("kube-api-access-x2b4z", "kube-root-ca.crt", None, true)]
    #[case::by_hand("token", "kube-root-ca.crt", None, true)]
    #[case::own_map("kube-api-access-x2b4z", "ca", None, false)]
    #[case::map_is_there("token", "kube-root-ca.crt", Some("kube-root-ca.crt"), false)]
    fn certificate_of_a_cluster_is_left_out(
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
        let token = json!({"serviceAccountToken": {"path": "token"}});
        let projected = json!({"sources": [token, {"configMap": {"name": map}}]});
        for source in [json!({"projected": projected}), json!({"configMap": {"name": map}})] {
            let mut source = source;
            source["name"] = volume.into();
            let pod = json!({
                "metadata": {"namespace": "default", "name": "p"},
                "spec": {"containers": [], "volumes": [{"name": "own", "emptyDir": {}}, source]},
            });
            let mut pods = [Pod::new(serde_json::from_value(pod).unwrap()).with_origin("p.yaml")];
            let warnings = leave_out(&mut pods, &mut [], &mut objects);
            assert_eq!(warnings.len(), usize::from(is_left_out));
            assert_eq!(pods[0].origin(), "p.yaml");
            let missing = agent::pod_spec::references::missing(&pods[0], &objects);
            assert_eq!(missing.is_empty(), map == ROOT_CA, "{missing:?}");
        }
    }

    #[test]
    fn variables_and_sub_paths_do_without_certificate_of_a_cluster() {
        let key = json!({"name": "kube-root-ca.crt", "key": "ca.crt"});
        let mounts = json!([
            {"name": "ca", "mountPath": "/ca.crt", "subPath": "ca.crt"},
            {"name": "renamed", "mountPath": "/renamed", "subPath": "a/b"},
            {"name": "renamed", "mountPath": "/kept", "subPath": "ca.crt"},
            {"name": "ca", "mountPath": "/all"},
        ]);
        let items = json!([{"key": "ca.crt", "path": "a/b"}]);
        let pod = json!({
            "metadata": {"namespace": "default", "name": "p"},
            "spec": {
                "containers": [{
                    "name": "main",
                    "env": [{"name": "CA", "valueFrom": {"configMapKeyRef": key}}],
                    "volumeMounts": mounts,
                }],
                "initContainers": [
                    {"name": "init", "envFrom": [{"configMapRef": {"name": "kube-root-ca.crt"}}]},
                ],
                "volumes": [
                    {"name": "ca", "configMap": {"name": "kube-root-ca.crt"}},
                    {"name": "renamed", "configMap": {"name": "kube-root-ca.crt", "items": items}},
                ],
            },
        });
        let mut pods = [Pod::new(serde_json::from_value(pod).unwrap())];
        let mut objects = ObjectMap::default();
        let warnings = leave_out(&mut pods, &mut [], &mut objects);
        let expected = [
            "pod default/p: volume ca gets no file",
            "pod default/p: volume renamed gets no file",
            "pod default/p: variable CA of container main gets no value",
            "pod default/p: container init gets no variables",
        ];
        let heads =
            warnings.iter().map(|warning| warning.split(" from ConfigMap ").next().unwrap());
        assert_eq!(heads.collect::<Vec<_>>(), expected);
        let missing = agent::pod_spec::references::missing(&pods[0], &objects);
        assert_eq!(missing, [""; 0]);
        let mounts = pods[0].containers()[0].volume_mounts.iter().flatten();
        let paths: Vec<&str> = mounts.map(|mount| mount.mount_path.as_str()).collect();
        assert_eq!(paths, ["/kept", "/all"]);
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
        let warnings = leave_out(&mut [], &mut [], &mut objects);
        assert_eq!(warnings.len(), usize::from(is_new));
        let claim = objects.persistent_volume_claim("default", "data").unwrap();
        let spec = claim.spec.clone().unwrap();
        assert_eq!(spec.volume_name.is_none(), is_new);
    }
}
