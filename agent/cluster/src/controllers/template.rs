//! ◆ Builds a pod from a template and its controller's additions. Pure.

use std::collections::BTreeMap;

use api::manifest;
use api::pod::Pod;
use k8s_openapi::api::core::v1::{Pod as ApiPod, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// The owner of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) namespace: String,
    /// The file of the object.
    pub(super) origin: String,
}

/// A controller's additions to its template.
#[derive(Clone, Debug, Default)]
pub(super) struct Additions {
    pub(super) labels: Vec<(String, String)>,
    pub(super) annotations: Vec<(String, String)>,
    pub(super) hostname: Option<String>,
}

/// Builds a pod of `owner`. `change` edits its spec before defaults are applied.
pub(super) fn pod(
    template: &PodTemplateSpec,
    owner: &Owner,
    (name, uid): (String, String),
    additions: Additions,
    change: impl FnOnce(&mut PodSpec),
) -> Pod {
    let from = template.metadata.clone().unwrap_or_default();
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: Some(owner.namespace.clone()),
        uid: Some(uid),
        labels: with(from.labels, additions.labels),
        annotations: with(from.annotations, additions.annotations),
        finalizers: from.finalizers,
        owner_references: Some(vec![OwnerReference {
            api_version: owner.api_version.to_owned(),
            kind: owner.kind.to_owned(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    };
    let mut spec = template.spec.clone().unwrap_or_default();
    if additions.hostname.is_some() {
        spec.hostname = additions.hostname;
    }
    change(&mut spec);
    // The template was validated with its object.
    let (mut pod, _) = manifest::admit(ApiPod { metadata, spec: Some(spec), ..ApiPod::default() });
    manifest::service_account(&mut pod);
    Pod::new(pod).with_origin(&owner.origin)
}

fn with(
    own: Option<BTreeMap<String, String>>,
    more: Vec<(String, String)>,
) -> Option<BTreeMap<String, String>> {
    let mut all = own.unwrap_or_default();
    all.extend(more);
    (!all.is_empty()).then_some(all)
}
