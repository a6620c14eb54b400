//! ◆ PersistentVolumeClaims, PersistentVolumes, and the claims that StatefulSets create. Pure.
//!
//! Source: Kubernetes 1.36, ValidatePersistentVolumeClaim and ValidatePersistentVolume.

use k8s_openapi::api::apps::v1::StatefulSetSpec;
use k8s_openapi::api::core::v1::{
    LocalVolumeSource, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec,
};

use crate::manifest::validate::pod::volume::{claim, host_path};
use crate::manifest::validate::{Check, FieldError, Rule, metadata, names, selectors};
use crate::totals::amount;

/// Validates a claim.
pub(in crate::manifest) fn persistent_volume_claim(
    object: &PersistentVolumeClaim,
) -> Vec<FieldError> {
    let mut check = Check::default();
    metadata::check(&mut check, &object.metadata);
    let spec = object.spec.clone().unwrap_or_default();
    claim::spec(&mut check, "spec", &spec);
    check.errors
}

/// Validates the templates of claims. The names of the claims begin with those of the templates.
pub(super) fn templates(check: &mut Check, set: &StatefulSetSpec) {
    for (index, template) in set.volume_claim_templates.iter().flatten().enumerate() {
        let field = format!("spec.volumeClaimTemplates[{index}]");
        let name = template.metadata.name.as_deref().unwrap_or_default();
        if name.is_empty() {
            check.required(format!("{field}.metadata.name"), "");
        } else {
            // It is the name of a volume too.
            check.formed(format!("{field}.metadata.name"), name, names::dns_label);
        }
        let spec = template.spec.clone().unwrap_or_default();
        claim::spec(check, &format!("{field}.spec"), &spec);
    }
    let policy = set.persistent_volume_claim_retention_policy.as_ref();
    let fields = policy.map(|policy| {
        [
            ("whenDeleted", policy.when_deleted.as_deref()),
            ("whenScaled", policy.when_scaled.as_deref()),
        ]
    });
    for (name, value) in fields.into_iter().flatten() {
        let field = format!("spec.persistentVolumeClaimRetentionPolicy.{name}");
        check.maybe_one_of(field, value, &["Delete", "Retain"]);
    }
}

/// Validates a volume.
pub(in crate::manifest) fn persistent_volume(object: &PersistentVolume) -> Vec<FieldError> {
    let mut check = Check::default();
    metadata::check_without_namespace(&mut check, &object.metadata);
    let spec = object.spec.clone().unwrap_or_default();
    claim::access_modes(
        &mut check,
        "spec.accessModes".to_owned(),
        spec.access_modes.as_deref().unwrap_or_default(),
    );
    capacity(&mut check, &spec);
    check.maybe_one_of(
        "spec.persistentVolumeReclaimPolicy",
        spec.persistent_volume_reclaim_policy.as_deref(),
        &["Delete", "Recycle", "Retain"],
    );
    affinity(&mut check, &spec);
    source(&mut check, &spec);
    let path = spec.host_path.as_ref().map(|source| source.path.as_str());
    if path == Some("/") && spec.persistent_volume_reclaim_policy.as_deref() == Some("Recycle") {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        check.forbidden("spec.persistentVolumeReclaimPolicy", detail);
    }
    if let Some(name) = spec.storage_class_name.as_deref().filter(|name| !name.is_empty()) {
        check.formed("spec.storageClassName", name, names::dns_subdomain);
    }
    let mode = spec.volume_mode.as_deref();
    check.maybe_one_of("spec.volumeMode", mode, &["Block", "Filesystem"]);
    check.errors
}

fn capacity(check: &mut Check, spec: &PersistentVolumeSpec) {
    const FIELD: &str = "spec.capacity";
    let capacity = spec.capacity.clone().unwrap_or_default();
    if capacity.is_empty() {
        check.required(FIELD, "");
    }
    if !capacity.contains_key("storage") || capacity.len() > 1 {
        let found: Vec<&str> = capacity.keys().map(String::as_str).collect();
        let detail = "only the resource storage is supported";
        check.error(Rule::NotSupported, FIELD, found.join(", "), detail);
    }
    for (name, size) in &capacity {
        if amount(size).is_negative() || amount(size).is_zero() {
            let field = format!("{FIELD}[{name}]");
            check.invalid(field, &size.0, "must be greater than zero");
        }
    }
}

fn affinity(check: &mut Check, spec: &PersistentVolumeSpec) {
    const FIELD: &str = "spec.nodeAffinity.required";
    let Some(affinity) = &spec.node_affinity else {
        return;
    };
    let Some(required) = &affinity.required else {
        check.required(FIELD, "must specify required node constraints");
        return;
    };
    let list = format!("{FIELD}.nodeSelectorTerms");
    if required.node_selector_terms.is_empty() {
        check.required(&list, "must have at least one node selector term");
    }
    for (index, term) in required.node_selector_terms.iter().enumerate() {
        selectors::node_term(check, &format!("{list}[{index}]"), term, false);
    }
}

/// The supported sources. The table of fields rejects the others, each by its name.
fn source(check: &mut Check, spec: &PersistentVolumeSpec) {
    match (&spec.host_path, &spec.local) {
        (Some(_), Some(_)) => {
            check.forbidden("spec.local", "may not specify more than 1 volume type");
        }
        (Some(source), None) => host_path(check, "spec.hostPath", source),
        (None, Some(source)) => local(check, source, spec),
        (None, None) if !has_other_source(spec) => {
            check.required("spec", "must specify a volume type");
        }
        (None, None) => {}
    }
}

fn local(check: &mut Check, source: &LocalVolumeSource, spec: &PersistentVolumeSpec) {
    check.nonempty_formed("spec.local.path", &source.path, names::no_backsteps);
    if spec.node_affinity.is_none() {
        check.required("spec.nodeAffinity", "Local volume requires node affinity");
    }
}

fn has_other_source(spec: &PersistentVolumeSpec) -> bool {
    let plain = PersistentVolumeSpec {
        access_modes: spec.access_modes.clone(),
        capacity: spec.capacity.clone(),
        claim_ref: spec.claim_ref.clone(),
        mount_options: spec.mount_options.clone(),
        node_affinity: spec.node_affinity.clone(),
        persistent_volume_reclaim_policy: spec.persistent_volume_reclaim_policy.clone(),
        storage_class_name: spec.storage_class_name.clone(),
        volume_attributes_class_name: spec.volume_attributes_class_name.clone(),
        volume_mode: spec.volume_mode.clone(),
        ..PersistentVolumeSpec::default()
    };
    *spec != plain
}
