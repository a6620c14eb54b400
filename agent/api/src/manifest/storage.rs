//! PersistentVolumeClaims and PersistentVolumes in manifests, and the claims that StatefulSets create.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource, PodSpec, Volume,
};

use super::defaults;
use super::object::Object;
use super::tree::Node;
use super::{Loader, is_empty, support, validate};

impl Loader<'_> {
    pub(super) fn persistent_volume_claim(&mut self, node: &Node, path: &str) {
        let wrap = |claim| Object::PersistentVolumeClaim(Box::new(claim));
        self.namespaced(node, path, wrap, |loader, claim: &mut PersistentVolumeClaim| {
            let spec = claim.spec.get_or_insert_default();
            loader.unsupported(node, path, support::of_claim("spec", spec));
            defaults::apply_claim(spec);
            validate::storage::persistent_volume_claim(claim)
        });
    }

    pub(super) fn persistent_volume(&mut self, node: &Node, path: &str) {
        let wrap = |volume| Object::PersistentVolume(Box::new(volume));
        self.cluster_scoped(node, path, wrap, |loader, volume: &mut PersistentVolume| {
            let spec = volume.spec.get_or_insert_default();
            loader.unsupported(node, path, support::of_persistent_volume(spec));
            defaults::apply_persistent_volume(spec);
            validate::storage::persistent_volume(volume)
        });
    }
}

/// The full name of a claim or a PersistentVolume, as in [`Object::full_name`]; `None` for other objects.
pub(super) fn full_name(node: &Node) -> Option<String> {
    let text = |node: &Node, field: &str| {
        let value = node.get(field).map(|entry| &entry.value).filter(|value| !is_empty(value));
        let text = value.and_then(Node::text).filter(|text| !text.is_empty());
        text.map(str::to_owned)
    };
    let metadata = &node.get("metadata")?.value;
    let name = text(metadata, "name")?;
    match text(node, "kind")?.as_str() {
        "PersistentVolume" => Some(format!("persistentvolume {name}")),
        "PersistentVolumeClaim" => {
            let namespace = text(metadata, "namespace").unwrap_or_else(|| "default".to_owned());
            Some(format!("persistentvolumeclaim {namespace}/{name}"))
        }
        _ => None,
    }
}

/// The name of the claim that a StatefulSet creates from a template for a pod.
fn claim_name(template: &PersistentVolumeClaim, pod: &str) -> String {
    let template = template.metadata.name.as_deref().unwrap_or_default();
    format!("{template}-{pod}")
}

/// The claims that a StatefulSet creates for its pod with this name. Kubernetes 1.36, getPersistentVolumeClaims.
pub fn claims_of_pod(set: &StatefulSet, pod: &str) -> Vec<PersistentVolumeClaim> {
    let spec = set.spec.clone().unwrap_or_default();
    let templates = spec.volume_claim_templates.into_iter().flatten();
    let claims = templates.map(|mut claim| {
        claim.metadata.name = Some(claim_name(&claim, pod));
        claim.metadata.namespace.clone_from(&set.metadata.namespace);
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.extend(spec.selector.match_labels.clone().unwrap_or_default());
        claim
    });
    claims.collect()
}

/// Adds the claims of a StatefulSet to the volumes of its pod with this name: each replaces the volume with its template's name.
pub fn mount_claims(spec: &mut PodSpec, templates: &[PersistentVolumeClaim], pod: &str) {
    for template in templates {
        let volume = Volume {
            name: template.metadata.name.clone().unwrap_or_default(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim_name(template, pod),
                read_only: Some(false),
            }),
            ..Volume::default()
        };
        let volumes = spec.volumes.get_or_insert_default();
        let known = volumes.iter_mut().find(|known| known.name == volume.name);
        match known {
            Some(known) => *known = volume,
            None => volumes.push(volume),
        }
    }
}

/// Applies all defaults to the templates of a StatefulSet's claims.
pub(super) fn default_templates(templates: Option<&mut Vec<PersistentVolumeClaim>>) {
    for template in templates.into_iter().flatten() {
        let spec = template.spec.get_or_insert_with(PersistentVolumeClaimSpec::default);
        defaults::apply_claim(spec);
    }
}

#[cfg(test)]
#[path = "storage/tests.rs"]
mod tests;
