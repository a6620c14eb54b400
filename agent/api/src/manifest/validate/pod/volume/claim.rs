//! Claims of ephemeral volumes.

use k8s_openapi::api::core::v1::{EphemeralVolumeSource, PersistentVolumeClaimSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::manifest::validate::{Check, metadata, names, selectors};
use crate::totals::amount;

/// An ephemeral volume and the template of its claim.
pub(super) fn ephemeral(check: &mut Check, field: &str, volume: &EphemeralVolumeSource) {
    let field = format!("{field}.volumeClaimTemplate");
    let Some(template) = &volume.volume_claim_template else {
        check.required(field, "");
        return;
    };
    if let Some(given) = &template.metadata {
        template_metadata(check, &format!("{field}.metadata"), given);
    }
    spec(check, &format!("{field}.spec"), &template.spec);
}

/// A template's metadata has only labels and annotations.
fn template_metadata(check: &mut Check, field: &str, given: &ObjectMeta) {
    metadata::annotations(check, &format!("{field}.annotations"), given);
    check.keys(&format!("{field}.labels"), given.labels.iter().flatten(), true);
    let filled = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    for (name, set) in [
        ("name", filled(&given.name)),
        ("generateName", filled(&given.generate_name)),
        ("namespace", filled(&given.namespace)),
        ("selfLink", filled(&given.self_link)),
        ("uID", filled(&given.uid)),
        ("resourceVersion", filled(&given.resource_version)),
        ("generation", given.generation.is_some_and(|number| number != 0)),
        ("creationTimestamp", given.creation_timestamp.is_some()),
        ("deletionTimestamp", given.deletion_timestamp.is_some()),
        ("deletionGracePeriodSeconds", given.deletion_grace_period_seconds.is_some()),
        ("ownerReferences", given.owner_references.is_some()),
        ("finalizers", given.finalizers.is_some()),
        ("managedFields", given.managed_fields.is_some()),
    ] {
        if set {
            check.forbidden(format!("{field}.{name}"), "cannot be set");
        }
    }
}

pub(in crate::manifest::validate) fn spec(
    check: &mut Check,
    field: &str,
    spec: &PersistentVolumeClaimSpec,
) {
    access_modes(
        check,
        format!("{field}.accessModes"),
        spec.access_modes.as_deref().unwrap_or_default(),
    );
    selectors::labels(check, &format!("{field}.selector"), spec.selector.as_ref());
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let storage = format!("{field}.resources[storage]");
    match requests.and_then(|requests| requests.get("storage")) {
        None => check.required(storage, ""),
        Some(size) if amount(size).is_negative() || amount(size).is_zero() => {
            check.invalid(storage, &size.0, "must be greater than zero");
        }
        Some(_) => {}
    }
    for (name, class) in [
        ("storageClassName", &spec.storage_class_name),
        ("volumeAttributesClassName", &spec.volume_attributes_class_name),
    ] {
        if let Some(class) = class.as_deref().filter(|class| !class.is_empty()) {
            check.formed(format!("{field}.{name}"), class, names::dns_subdomain);
        }
    }
    let known = ["Block", "Filesystem"];
    check.maybe_one_of(format!("{field}.volumeMode"), spec.volume_mode.as_deref(), &known);
    data_sources(check, field, spec);
}

pub(in crate::manifest::validate) fn access_modes(
    check: &mut Check,
    field: String,
    modes: &[String],
) {
    const SINGLE_POD: &str = "ReadWriteOncePod";
    let shared = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce"];
    if modes.is_empty() {
        check.required(&field, "at least 1 access mode is required");
    }
    for mode in modes {
        check.one_of(&field, mode, &[shared[0], shared[1], shared[2], SINGLE_POD]);
    }
    let is_single = modes.iter().any(|mode| mode == SINGLE_POD);
    if is_single && modes.iter().any(|mode| shared.contains(&mode.as_str())) {
        check.forbidden(field, "may not use ReadWriteOncePod with other access modes");
    }
}

fn data_sources(check: &mut Check, field: &str, spec: &PersistentVolumeClaimSpec) {
    let (source, reference) = (&spec.data_source, &spec.data_source_ref);
    if let Some(source) = source {
        let given = (&source.api_group, &source.kind, &source.name);
        data_source(check, &format!("{field}.dataSource"), given);
    }
    let Some(reference) = reference else { return };
    let given = (&reference.api_group, &reference.kind, &reference.name);
    data_source(check, &format!("{field}.dataSourceRef"), given);
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    if !namespace.is_empty() {
        check.formed(format!("{field}.dataSourceRef.namespace"), namespace, names::dns_label);
    }
    let Some(source) = source else { return };
    if !namespace.is_empty() {
        let detail = "may not be specified when dataSourceRef.namespace is specified";
        check.invalid(field, "dataSource", detail);
    } else if (&source.api_group, &source.kind, &source.name) != given {
        check.invalid(field, "dataSource", "must match dataSourceRef");
    }
}

fn data_source(
    check: &mut Check,
    field: &str,
    (group, kind, name): (&Option<String>, &String, &String),
) {
    check.nonempty(format!("{field}.name"), name);
    check.nonempty(format!("{field}.kind"), kind);
    match group.as_deref().unwrap_or_default() {
        "" if kind != "PersistentVolumeClaim" => check.invalid(
            field,
            kind,
            "must be PersistentVolumeClaim when referencing the default apiGroup",
        ),
        "" => {}
        group => check.formed(format!("{field}.apiGroup"), group, names::dns_subdomain),
    }
}
