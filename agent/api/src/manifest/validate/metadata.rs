//! Metadata: names, labels, annotations, finalizers, owners.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    ManagedFieldsEntry, ObjectMeta, OwnerReference,
};

use crate::manifest::validate::{Check, Rule, names};

/// The API server's limit for all annotations together, in bytes.
const ANNOTATIONS: usize = 256 << 10;

/// The metadata of an object of a kind without namespaces.
pub(super) fn check_without_namespace(check: &mut Check, metadata: &ObjectMeta) {
    let other = ObjectMeta { namespace: Some("default".to_owned()), ..metadata.clone() };
    self::check(check, &other);
}

/// The metadata of a namespaced object, such as a pod.
pub(super) fn check(check: &mut Check, metadata: &ObjectMeta) {
    let name = metadata.name.as_deref().unwrap_or_default();
    let prefix = metadata.generate_name.as_deref().unwrap_or_default();
    if !prefix.is_empty() {
        check.formed("metadata.generateName", prefix, names::dns_subdomain_prefix);
    }
    check.nonempty_formed("metadata.name", name, names::dns_subdomain);
    check.formed(
        "metadata.namespace",
        metadata.namespace.as_deref().unwrap_or_default(),
        names::dns_label,
    );
    check.not_negative("metadata", &[("generation", metadata.generation)]);
    check.keys("metadata.labels", metadata.labels.iter().flatten(), true);
    annotations(check, "metadata.annotations", metadata);
    finalizers(check, metadata.finalizers.as_deref().unwrap_or_default());
    owners(check, metadata.owner_references.as_deref().unwrap_or_default());
    managed_fields(check, metadata.managed_fields.as_deref().unwrap_or_default());
}

/// The keys of annotations, and their size.
pub(super) fn annotations(check: &mut Check, field: &str, metadata: &ObjectMeta) {
    let annotations = || metadata.annotations.iter().flatten();
    for (key, _) in annotations() {
        // Upper-case letters are allowed in the prefix.
        if let Some(expected) = names::qualified(&key.to_lowercase()) {
            check.invalid(field, key, expected);
        }
    }
    let size: usize = annotations().map(|(key, value)| key.len() + value.len()).sum();
    if size > ANNOTATIONS {
        let detail = format!("must have at most {ANNOTATIONS} bytes in total, keys and values");
        check.error(Rule::TooLong, field, "", detail);
    }
}

fn finalizers(check: &mut Check, finalizers: &[String]) {
    const FIELD: &str = "metadata.finalizers";
    for (index, finalizer) in finalizers.iter().enumerate() {
        check.formed(FIELD, finalizer, names::qualified);
        let standard = ["kubernetes", "orphan", "foregroundDeletion"];
        if !finalizer.contains('/') && !standard.contains(&finalizer.as_str()) {
            let detail = "must be a standard finalizer, or begin with a domain and '/'";
            check.invalid(format!("{FIELD}[{index}]"), finalizer, detail);
        }
    }
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    if has("orphan") && has("foregroundDeletion") {
        check.invalid(FIELD, "", "orphan and foregroundDeletion cannot both be set");
    }
}

fn owners(check: &mut Check, owners: &[OwnerReference]) {
    const FIELD: &str = "metadata.ownerReferences";
    for owner in owners {
        let version = match owner.api_version.split('/').collect::<Vec<_>>()[..] {
            [version] | [_, version] => version,
            _ => "",
        };
        if version.is_empty() {
            let detail = "version must not be empty";
            check.invalid(format!("{FIELD}.apiVersion"), &owner.api_version, detail);
        }
        for (field, value) in [("kind", &owner.kind), ("name", &owner.name), ("uid", &owner.uid)] {
            if value.is_empty() {
                check.invalid(format!("{FIELD}.{field}"), "", "must not be empty");
            }
        }
        if owner.api_version == "v1" && owner.kind == "Event" {
            check.invalid(FIELD, &owner.kind, "cannot be an owner");
        }
    }
    let controllers = owners.iter().filter(|owner| owner.controller == Some(true));
    if controllers.count() > 1 {
        check.invalid(FIELD, "", "only one owner can have `controller` true");
    }
}

fn managed_fields(check: &mut Check, entries: &[ManagedFieldsEntry]) {
    for (index, entry) in entries.iter().enumerate() {
        let field = format!("metadata.managedFields[{index}]");
        let operation = entry.operation.as_deref().unwrap_or_default();
        if !matches!(operation, "Apply" | "Update") {
            check.invalid(format!("{field}.operation"), operation, "must be Apply or Update");
        }
        let kind = entry.fields_type.as_deref().unwrap_or_default();
        if !matches!(kind, "" | "FieldsV1") {
            check.invalid(format!("{field}.fieldsType"), kind, "must be FieldsV1");
        }
        let manager = entry.manager.as_deref().unwrap_or_default();
        if manager.len() > 128 {
            let detail = "may not be more than 128 bytes";
            check.error(Rule::TooLong, format!("{field}.manager"), "", detail);
        }
        if manager.chars().any(char::is_control) {
            let detail = "must consist of printable characters";
            check.invalid(format!("{field}.manager"), manager, detail);
        }
        let part = entry.subresource.as_deref().unwrap_or_default();
        if part.len() > 256 {
            let detail = "may not be more than 256 bytes";
            check.error(Rule::TooLong, format!("{field}.subresource"), "", detail);
        }
    }
}
