//! ◆ Which ConfigMaps, Secrets, claims and ClusterTrustBundles a pod refers to. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::pod::Pod;
use api::selector::matches_selector;
use compact::{Map, Set};
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, ConfigMap, Container, KeyToPath, PersistentVolume,
    PersistentVolumeClaim, Secret, Volume,
};
use pem::{EncodeConfig, LineEnding, Pem};

use crate::objects::{BoundClaim, ObjectKind, ObjectMap};

/// The missing objects and keys without which a pod cannot start: as `configmap default/settings`, or `key port of configmap
/// default/settings`.
#[must_use]
pub fn missing(pod: &Pod, objects: &ObjectMap) -> Vec<String> {
    References::of(pod).missing(pod.namespace(), objects)
}

/// The ConfigMaps and Secrets that a pod refers to, all in its own namespace.
#[must_use]
pub fn named(pod: &Pod) -> Vec<(ObjectKind, String)> {
    References::of(pod).named()
}

/// The ConfigMaps and Secrets that the variables of a container refer to.
#[must_use]
pub fn named_by_variables(container: &Container) -> Vec<(ObjectKind, String)> {
    let mut found = References::default();
    found.of_container(container);
    found.named()
}

/// The ConfigMaps and Secrets that a pod's volumes and pulls refer to: they are read repeatedly while the pod runs.
#[must_use]
pub fn named_by_volumes_and_pulls(pod: &Pod) -> Vec<(ObjectKind, String)> {
    let mut found = References::default();
    pod.mounted_volumes().for_each(|volume| found.of_volume(volume));
    found.of_pulls(pod);
    found.named()
}

/// The claims of a pod's volumes, all in its own namespace, including those created for the pod.
#[must_use]
pub fn claims(pod: &Pod) -> Vec<String> {
    let References { claims, own_claims, .. } = References::of(pod);
    claims.into_iter().chain(own_claims).filter(|name| !name.is_empty()).collect()
}

/// The names of a pod's pull secrets: its own or, if it has none, those of its ServiceAccount. Kubernetes 1.36,
/// plugin/pkg/admission/serviceaccount.
pub(crate) fn pull_secrets(pod: &Pod, objects: &ObjectMap) -> Vec<String> {
    let spec = pod.spec();
    let own = spec.image_pull_secrets.as_deref().unwrap_or_default();
    let account = spec.service_account_name.as_deref();
    let account = account.filter(|name| !name.is_empty());
    let account = objects.service_account(pod.namespace(), account.unwrap_or("default"));
    let of_account = account.and_then(|account| account.image_pull_secrets.clone());
    let secrets = match own {
        [] => of_account.unwrap_or_default(),
        own => own.to_vec(),
    };
    secrets.into_iter().map(|secret| secret.name).collect()
}

/// The names of a pod's pull secrets that do not exist. The API allows an empty name, which stands for none.
pub(crate) fn missing_pull_secrets(pod: &Pod, objects: &ObjectMap) -> Vec<String> {
    let mut names = pull_secrets(pod, objects);
    names.retain(|name| !name.is_empty() && objects.secret(pod.namespace(), name).is_none());
    names
}

/// The names of the objects that a pod's volumes and variables refer to, and of its pull secrets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct References {
    config_maps: Set<String>,
    secrets: Set<String>,
    /// The required ones of these, with the keys that containers or volumes need.
    needed_maps: Map<String, Set<String>>,
    needed_secrets: Map<String, Set<String>>,
    claims: Set<String>,
    /// The claims that are created for the pod (`ephemeral`).
    own_claims: Set<String>,
    trust_bundles: Vec<ClusterTrustBundleProjection>,
    /// Whether any volume is a claim, which any PersistentVolume may match.
    has_claims: bool,
}

/// The objects that a pod refers to; `None` for a missing one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Referenced {
    config_maps: Vec<Option<Arc<ConfigMap>>>,
    secrets: Vec<Option<Arc<Secret>>>,
    claims: Vec<Option<Arc<PersistentVolumeClaim>>>,
    bound_claims: Vec<Option<Result<BoundClaim, String>>>,
    trust_bundles: Vec<Vec<Arc<ClusterTrustBundle>>>,
    /// All PersistentVolumes, if there are claims.
    volumes: Vec<Arc<PersistentVolume>>,
}

impl References {
    pub(crate) fn of(pod: &Pod) -> Self {
        let mut found = Self::default();
        for (_, container) in pod.all_containers() {
            found.of_container(container);
        }
        for volume in pod.spec().volumes.iter().flatten() {
            found.of_volume(volume);
            if volume.ephemeral.is_some() {
                found.own_claims.insert(format!("{}-{}", pod.name(), volume.name));
            }
        }
        found.of_pulls(pod);
        found
    }

    /// The names of ConfigMaps and Secrets.
    fn named(self) -> Vec<(ObjectKind, String)> {
        let config_maps = self.config_maps.into_iter().map(|name| (ObjectKind::ConfigMap, name));
        let secrets = self.secrets.into_iter().map(|name| (ObjectKind::Secret, name));
        config_maps.chain(secrets).filter(|(_, name)| !name.is_empty()).collect()
    }

    fn of_pulls(&mut self, pod: &Pod) {
        let secrets = pod.spec().image_pull_secrets.iter().flatten();
        self.secrets.extend(secrets.map(|secret| secret.name.clone()));
    }

    fn of_container(&mut self, container: &Container) {
        for from in container.env_from.iter().flatten() {
            if let Some(map) = &from.config_map_ref {
                self.config_map(&map.name, map.optional, []);
            }
            if let Some(secret) = &from.secret_ref {
                self.secret(&secret.name, secret.optional, []);
            }
        }
        let variables = container.env.iter().flatten();
        for source in variables.filter_map(|variable| variable.value_from.as_ref()) {
            if let Some(key) = &source.config_map_key_ref {
                self.config_map(&key.name, key.optional, [key.key.as_str()]);
            }
            if let Some(key) = &source.secret_key_ref {
                self.secret(&key.name, key.optional, [key.key.as_str()]);
            }
        }
    }

    fn of_volume(&mut self, volume: &Volume) {
        if let Some(map) = &volume.config_map {
            self.config_map(&map.name, map.optional, keys(map.items.as_deref()));
        }
        if let Some(secret) = &volume.secret {
            let name = secret.secret_name.as_deref().unwrap_or_default();
            self.secret(name, secret.optional, keys(secret.items.as_deref()));
        }
        if let Some(claim) = &volume.persistent_volume_claim {
            self.claims.insert(claim.claim_name.clone());
        }
        self.has_claims |= volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
        let projected = volume.projected.iter();
        for source in projected.flat_map(|projected| projected.sources.iter().flatten()) {
            if let Some(map) = &source.config_map {
                self.config_map(&map.name, map.optional, keys(map.items.as_deref()));
            }
            if let Some(secret) = &source.secret {
                self.secret(&secret.name, secret.optional, keys(secret.items.as_deref()));
            }
            self.trust_bundles.extend(source.cluster_trust_bundle.clone());
        }
    }

    fn config_map<'a>(
        &mut self,
        name: &str,
        optional: Option<bool>,
        keys: impl IntoIterator<Item = &'a str>,
    ) {
        self.config_maps.insert(name.to_owned());
        if optional != Some(true) {
            let needed = self.needed_maps.entry(name.to_owned()).or_default();
            needed.extend(keys.into_iter().map(str::to_owned));
        }
    }

    fn secret<'a>(
        &mut self,
        name: &str,
        optional: Option<bool>,
        keys: impl IntoIterator<Item = &'a str>,
    ) {
        self.secrets.insert(name.to_owned());
        if optional != Some(true) {
            let needed = self.needed_secrets.entry(name.to_owned()).or_default();
            needed.extend(keys.into_iter().map(str::to_owned));
        }
    }

    /// The missing required objects and keys.
    fn missing(&self, namespace: &str, objects: &ObjectMap) -> Vec<String> {
        let mut missing = Vec::new();
        for (name, keys) in &self.needed_maps {
            let map = objects.config_map(namespace, name);
            let has = map.map(|map| keys_of(map.data.as_ref(), map.binary_data.as_ref()));
            missing.extend(missing_keys(&format!("configmap {namespace}/{name}"), keys, has));
        }
        for (name, keys) in &self.needed_secrets {
            let secret = objects.secret(namespace, name);
            let has =
                secret.map(|secret| keys_of(secret.data.as_ref(), secret.string_data.as_ref()));
            missing.extend(missing_keys(&format!("secret {namespace}/{name}"), keys, has));
        }
        let claims = self.claims.iter();
        let claims = claims
            .filter(|name| objects.persistent_volume_claim(namespace, name).is_none())
            .map(|name| format!("persistentvolumeclaim {namespace}/{name}"));
        missing.extend(claims);
        let bundles = self.trust_bundles.iter();
        let needed = bundles.filter(|wanted| wanted.optional != Some(true));
        let absent = needed.filter(|wanted| matching_bundles(wanted, objects).is_empty());
        missing.extend(absent.map(name_of_bundle));
        missing
    }

    /// Looks the objects up.
    pub(crate) fn look_up(&self, namespace: &str, objects: &ObjectMap) -> Referenced {
        let maps = self.config_maps.iter();
        let secrets = self.secrets.iter();
        let claims = self.claims.iter();
        let bound = self.claims.iter().chain(&self.own_claims);
        let bound = bound.map(|name| objects.bound_claim(namespace, name).cloned());
        Referenced {
            bound_claims: bound.collect(),
            claims: claims.map(|name| objects.persistent_volume_claim(namespace, name)).collect(),
            trust_bundles: {
                let wanted = self.trust_bundles.iter();
                wanted.map(|wanted| matching_bundles(wanted, objects)).collect()
            },
            volumes: match self.has_claims {
                true => objects.persistent_volumes(),
                false => Vec::new(),
            },
            config_maps: maps.map(|name| objects.config_map(namespace, name)).collect(),
            secrets: secrets.map(|name| objects.secret(namespace, name)).collect(),
        }
    }
}

/// The name of the bundles that a volume refers to: `clustertrustbundle roots`.
fn name_of_bundle(wanted: &ClusterTrustBundleProjection) -> String {
    match (&wanted.name, &wanted.signer_name) {
        (Some(name), _) => format!("clustertrustbundle {name}"),
        (None, signer) => {
            let signer = signer.as_deref().unwrap_or_default();
            match wanted.label_selector {
                Some(_) => {
                    format!("clustertrustbundle of signer {signer} that labelSelector matches")
                }
                None => format!(
                    "clustertrustbundle of signer {signer} (without labelSelector, none matches)"
                ),
            }
        }
    }
}

/// The keys for which a volume has files.
fn keys(items: Option<&[KeyToPath]>) -> impl Iterator<Item = &str> {
    items.unwrap_or_default().iter().map(|item| item.key.as_str())
}

fn keys_of<T, U>(
    some: Option<&BTreeMap<String, T>>,
    others: Option<&BTreeMap<String, U>>,
) -> Set<String> {
    let others = others.into_iter().flat_map(BTreeMap::keys);
    let some = some.into_iter().flat_map(BTreeMap::keys);
    some.chain(others).cloned().collect()
}

/// The object itself if it does not exist (`has` is `None`), else each key that it lacks.
fn missing_keys(object: &str, needed: &Set<String>, has: Option<Set<String>>) -> Vec<String> {
    let Some(has) = has else {
        return vec![object.to_owned()];
    };
    let keys = needed.difference(&has);
    keys.map(|key| format!("key {key} of {object}")).collect()
}

// The ClusterTrustBundles that a projected volume refers to, and their certificates.
//
// Source: Kubernetes 1.36, pkg/kubelet/clustertrustbundle/clustertrustbundle_manager.go.

/// The bundle with a name, or all bundles of a signer with the labels. No selector matches none, an empty one matches all.
pub(crate) fn matching_bundles(
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

/// The certificates of all bundles, without duplicates, in PEM. The order has no meaning, but is stable.
pub(crate) fn bundle_certificates(bundles: &[Arc<ClusterTrustBundle>]) -> String {
    let mut certificates = Set::new();
    for bundle in bundles {
        // The PEM was validated when the object was read.
        let blocks = pem::parse_many(&bundle.spec.trust_bundle).unwrap_or_default();
        certificates.extend(blocks.into_iter().map(Pem::into_contents));
    }
    let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
    let certificates = certificates.into_iter();
    let texts = certificates.map(|der| pem::encode_config(&Pem::new("CERTIFICATE", der), lines));
    texts.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;
    use crate::fixtures;

    #[rstest::rstest]
    #[case(json!({}), "of-default")]
    #[case(json!({"serviceAccountName": "builder"}), "of-builder")]
    #[case(json!({"serviceAccountName": "missing"}), "")]
    #[case(json!({"serviceAccountName": "builder", "imagePullSecrets": [{"name": "own"}]}), "own")]
    fn pull_secrets_are_the_pods_or_those_of_its_account(
        #[case] spec: serde_json::Value,
        #[case] expected: &str,
    ) {
        let mut objects = crate::objects::ObjectMap::default();
        for name in ["default", "builder"] {
            let secrets = [json!({"name": format!("of-{name}")})];
            let account = json!({"metadata": {"name": name}, "imagePullSecrets": secrets});
            objects.insert_service_account(serde_json::from_value(account).unwrap());
        }
        let mut pod = json!({"metadata": {"namespace": "default"}, "spec": {"containers": []}});
        for (field, value) in spec.as_object().unwrap() {
            pod["spec"][field] = value.clone();
        }
        let pod = fixtures::pod(pod);
        assert_eq!(pull_secrets(&pod, &objects).join(" "), expected);
    }

    #[test]
    fn references_come_from_volumes_variables_and_pull_secrets() {
        let spec = json!({
            "imagePullSecrets": [{"name": "pull"}],
            "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "all"}}]}],
            "containers": [{"name": "c",
                "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "key", "key": "a"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "key", "key": "b"}}},
                ],
                "envFrom": [{"configMapRef": {"name": "all"}}]}],
            "volumes": [
                {"name": "m", "configMap": {"name": "volume", "items": [{"key": "x", "path": "x"}]}},
                {"name": "s", "secret": {"secretName": "volume"}},
                {"name": "p", "projected": {"sources": [
                    {"configMap": {"name": "part", "optional": true, "items": [{"key": "z", "path": "z"}]}},
                    {"secret": {"name": "part", "items": [{"key": "y", "path": "y"}]}}]}},
            ],
        });
        let pod = fixtures::pod(json!({"spec": spec}));
        let found = References::of(&pod);
        let names = |set: &Set<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
        let needs = |needed: &Map<String, Set<String>>| {
            let needs = needed.iter();
            let needs = needs.map(|(name, keys)| format!("{name}({})", names(keys)));
            needs.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&found.config_maps), "all key part volume");
        assert_eq!(needs(&found.needed_maps), "all() key(a) volume(x)");
        assert_eq!(names(&found.secrets), "all key part pull volume");
        assert_eq!(needs(&found.needed_secrets), "all() key(b) part(y) volume()");

        let mut objects = crate::objects::ObjectMap::default();
        for (name, key) in [("all", "a"), ("key", "b"), ("volume", "x")] {
            let map = json!({"metadata": {"name": name}, "binaryData": {(key): ""}});
            objects.insert_config_map(serde_json::from_value(map).unwrap());
            let secret = json!({"metadata": {"name": name}, "stringData": {(key): ""}});
            objects.insert_secret(serde_json::from_value(secret).unwrap());
        }
        let missing = ["key a of configmap default/key", "secret default/part"];
        assert_eq!(found.missing("default", &objects), missing);
    }

    #[test]
    fn trust_bundle_is_awaited_and_its_change_is_applied() {
        let wanted = [
            json!({"name": "a", "path": "a"}),
            json!({"signerName": "example.org/s", "labelSelector": {}, "path": "b"}),
            json!({"signerName": "example.org/s", "path": "c"}),
            json!({"name": "b", "path": "d", "optional": true}),
        ];
        let sources = wanted.map(|bundle| json!({"clusterTrustBundle": bundle}));
        let volume = json!({"name": "v", "projected": {"sources": sources}});
        let pod = json!({"spec": {"containers": [], "volumes": [volume]}});
        let found = References::of(&fixtures::pod(pod));
        let mut objects = crate::objects::ObjectMap::default();
        let of_signer = "clustertrustbundle of signer example.org/s";
        let none = format!("{of_signer} (without labelSelector, none matches)");
        let labelled = format!("{of_signer} that labelSelector matches");
        let all = ["clustertrustbundle a".to_owned(), labelled, none.clone()];
        assert_eq!(found.missing("default", &objects), all);

        let mut seen = vec![found.look_up("default", &objects)];
        for (name, text) in [("a", "one"), ("a", "two"), ("example.org:s:b", "three")] {
            let signer = name.contains(':').then_some("example.org/s");
            let spec = json!({"signerName": signer, "trustBundle": text});
            let bundle = json!({"metadata": {"name": name}, "spec": spec});
            objects.insert_cluster_trust_bundle(serde_json::from_value(bundle).unwrap());
            let now = found.look_up("default", &objects);
            assert_ne!(seen.last(), Some(&now), "after {text}");
            seen.push(now);
        }
        assert_eq!(found.missing("default", &objects), [none]);
    }
}
