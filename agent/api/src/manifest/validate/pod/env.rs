//! The environment of containers, and field references.

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, EnvVarSource, FileKeySelector, ObjectFieldSelector, PodSpec,
};

use crate::manifest::validate::pod::resources;
use crate::manifest::validate::{Check, Rule, names};

/// One variable of a container.
pub(crate) fn variable(check: &mut Check, field: &str, variable: &EnvVar, spec: &PodSpec) {
    check.nonempty_formed(format!("{field}.name"), &variable.name, names::env_name);
    let Some(source) = &variable.value_from else {
        return;
    };
    let field = format!("{field}.valueFrom");
    let given = [
        source.field_ref.is_some(),
        source.resource_field_ref.is_some(),
        source.config_map_key_ref.is_some(),
        source.secret_key_ref.is_some(),
        source.file_key_ref.is_some(),
    ];
    let count = given.iter().filter(|given| **given).count();
    if count == 0 {
        check.invalid(&field, "", "must name one of fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef, fileKeyRef");
    } else if variable.value.as_deref().is_some_and(|value| !value.is_empty()) {
        check.invalid(&field, "", "may not be specified when `value` is not empty");
    } else if count > 1 {
        check.invalid(&field, "", "may not have more than one field specified at a time");
    }
    env_source(check, &field, source, spec);
}

fn env_source(check: &mut Check, field: &str, source: &EnvVarSource, spec: &PodSpec) {
    if let Some(from) = &source.field_ref {
        field_ref(check, &format!("{field}.fieldRef"), from, &ENV_FIELDS);
    }
    if let Some(from) = &source.resource_field_ref {
        let field = format!("{field}.resourceFieldRef");
        resources::field_ref(check, &field, from, true);
    }
    let keys = [
        ("configMapKeyRef", source.config_map_key_ref.as_ref().map(|from| (&from.name, &from.key))),
        ("secretKeyRef", source.secret_key_ref.as_ref().map(|from| (&from.name, &from.key))),
    ];
    for (kind, from) in keys {
        let Some((name, key)) = from else { continue };
        check.formed(format!("{field}.{kind}.name"), name, names::dns_subdomain);
        check.nonempty_formed(format!("{field}.{kind}.key"), key, names::config_key);
    }
    if let Some(from) = &source.file_key_ref {
        file_key(check, &format!("{field}.fileKeyRef"), from, spec);
    }
}

/// A key of a file in an emptyDir volume.
fn file_key(check: &mut Check, field: &str, from: &FileKeySelector, spec: &PodSpec) {
    check.nonempty_formed(format!("{field}.key"), &from.key, names::env_name);
    check.nonempty_formed(format!("{field}.path"), &from.path, names::no_backsteps);
    let name = from.volume_name.as_str();
    let field = format!("{field}.volumeName");
    check.nonempty_formed(&field, name, names::dns_label);
    let mut volumes = spec.volumes.iter().flatten().rev();
    match volumes.find(|volume| volume.name == name) {
        None => check.error(Rule::NotFound, field, name, ""),
        Some(volume) if volume.empty_dir.is_none() => {
            check.invalid(field, name, "must be a volume of type emptyDir");
        }
        Some(_) => {}
    }
}

const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Fields that the API supports; not all of them are allowed in an environment or a file.
const KNOWN_FIELDS: &str = "metadata.annotations metadata.labels metadata.name metadata.namespace metadata.uid \
    spec.host spec.nodeName spec.restartPolicy spec.serviceAccountName spec.schedulerName \
    status.phase status.hostIP status.hostIPs status.podIP status.podIPs";

/// A reference to a field of the pod. `allowed` lists the fields without subscripts that are allowed here.
pub(crate) fn field_ref(
    check: &mut Check,
    field: &str,
    from: &ObjectFieldSelector,
    allowed: &[&str],
) {
    let version = from.api_version.as_deref().unwrap_or_default();
    let path = from.field_path.as_str();
    let path_field = format!("{field}.fieldPath");
    if version.is_empty() {
        check.required(format!("{field}.apiVersion"), "");
    } else if path.is_empty() {
        check.required(path_field, "");
    } else if version != "v1" {
        check.invalid(path_field, path, "apiVersion must be v1");
    } else if let Some((map, key)) = subscript(path) {
        match map {
            "metadata.annotations" => {
                check.formed(field, &key.to_lowercase(), names::qualified);
            }
            "metadata.labels" => check.formed(field, key, names::qualified),
            _ => check.invalid(path_field, path, "does not support subscript"),
        }
    } else if !names::is_among(KNOWN_FIELDS, path) {
        check.invalid(path_field, path, "is not a supported field path");
    } else {
        // The oldest clients use spec.host.
        let path = if path == "spec.host" { "spec.nodeName" } else { path };
        check.one_of(path_field, path, allowed);
    }
}

/// Splits `metadata.labels['app']`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, key) = path.strip_suffix("']")?.split_once("['")?;
    (!map.is_empty()).then_some((map, key))
}

/// One `envFrom` source.
pub(crate) fn from(check: &mut Check, list: &str, index: usize, from: &EnvFromSource) {
    let field = format!("{list}[{index}]");
    if let Some(prefix) = from.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        check.formed(format!("{field}.prefix"), prefix, names::env_name);
    }
    let sources = [
        ("configMapRef", from.config_map_ref.as_ref().map(|source| source.name.as_str())),
        ("secretRef", from.secret_ref.as_ref().map(|source| source.name.as_str())),
    ];
    for (kind, name) in sources {
        match name {
            Some("") => check.required(format!("{field}.{kind}.name"), ""),
            // As for a prefix: the API server has always allowed a trailing hyphen here.
            Some(name) => {
                check.formed(format!("{field}.{kind}.name"), name, names::dns_subdomain_prefix)
            }
            None => {}
        }
    }
    match sources.iter().filter(|(_, name)| name.is_some()).count() {
        0 => check.invalid(list, "", "must specify one of: `configMapRef` or `secretRef`"),
        1 => {}
        _ => check.invalid(list, "", "may not have more than one field specified at a time"),
    }
}
