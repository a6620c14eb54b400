//! The environment of containers, and field references.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, EnvVarSource};

use super::declared::Volumes;
use super::{Check, Rule, names, resources};

/// One variable of a container.
pub(super) fn variable(check: &mut Check, field: &str, variable: &EnvVar, volumes: &Volumes) {
    if variable.name.is_empty() {
        check.required(format!("{field}.name"), "");
    } else {
        check.formed(format!("{field}.name"), &variable.name, names::env_name);
    }
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
    } else if variable
        .value
        .as_deref()
        .is_some_and(|value| !value.is_empty())
    {
        check.invalid(&field, "", "may not be specified when `value` is not empty");
    } else if count > 1 {
        check.invalid(
            &field,
            "",
            "may not have more than one field specified at a time",
        );
    }
    env_source(check, &field, source, volumes);
}

fn env_source(check: &mut Check, field: &str, source: &EnvVarSource, volumes: &Volumes) {
    if let Some(from) = &source.field_ref {
        if let Some(version) = from
            .api_version
            .as_deref()
            .filter(|version| *version != "v1")
        {
            check.invalid(
                format!("{field}.fieldRef.fieldPath"),
                version,
                "apiVersion must be v1",
            );
        }
        field_ref(
            check,
            &format!("{field}.fieldRef"),
            &from.field_path,
            &ENV_FIELDS,
        );
    }
    if let Some(from) = &source.resource_field_ref {
        let field = format!("{field}.resourceFieldRef");
        resources::field_ref(check, &field, from, true);
    }
    let keys = [
        (
            "configMapKeyRef",
            source
                .config_map_key_ref
                .as_ref()
                .map(|from| (&from.name, &from.key)),
        ),
        (
            "secretKeyRef",
            source
                .secret_key_ref
                .as_ref()
                .map(|from| (&from.name, &from.key)),
        ),
    ];
    for (kind, from) in keys {
        let Some((name, key)) = from else { continue };
        check.formed(format!("{field}.{kind}.name"), name, names::dns_subdomain);
        if key.is_empty() {
            check.required(format!("{field}.{kind}.key"), "");
        } else {
            check.formed(format!("{field}.{kind}.key"), key, names::config_key);
        }
    }
    if let Some(from) = &source.file_key_ref {
        let field = format!("{field}.fileKeyRef");
        if from.key.is_empty() {
            check.required(format!("{field}.key"), "");
        } else {
            check.formed(format!("{field}.key"), &from.key, names::env_name);
        }
        if from.path.is_empty() {
            check.required(format!("{field}.path"), "");
        } else {
            check.formed(format!("{field}.path"), &from.path, names::inner_path);
        }
        if from.volume_name.is_empty() {
            check.required(format!("{field}.volumeName"), "");
        } else if !volumes.contains_key(&from.volume_name) {
            check.error(
                Rule::NotFound,
                format!("{field}.volumeName"),
                &from.volume_name,
                "",
            );
        }
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

/// Fields that the API can convert; not all of them are allowed in an environment.
const KNOWN_FIELDS: [&str; 12] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.podIP",
];

/// A reference to a field of the pod. `known` lists the fields allowed here.
pub(super) fn field_ref(check: &mut Check, field: &str, path: &str, known: &[&str]) {
    if path.is_empty() {
        check.required(format!("{field}.fieldPath"), "");
        return;
    }
    if let Some((map, key)) = path
        .strip_suffix("']")
        .and_then(|path| path.split_once("['"))
    {
        match map {
            "metadata.annotations" => {
                if let Some(expected) = names::qualified(&key.to_lowercase()) {
                    check.invalid(field, key, expected);
                }
            }
            "metadata.labels" => check.formed(field, key, names::qualified),
            _ => check.invalid(field, path, "does not support subscript"),
        }
        return;
    }
    let convertible = known.contains(&path)
        || KNOWN_FIELDS.contains(&path)
        || matches!(path, "status.hostIPs" | "status.podIPs");
    if !convertible {
        check.invalid(
            format!("{field}.fieldPath"),
            path,
            "is not a supported field path",
        );
    } else {
        check.one_of(format!("{field}.fieldPath"), path, known);
    }
}

/// One `envFrom` source.
pub(super) fn from(check: &mut Check, list: &str, index: usize, from: &EnvFromSource) {
    let field = format!("{list}[{index}]");
    if let Some(prefix) = from.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        check.formed(format!("{field}.prefix"), prefix, names::env_name);
    }
    let sources = [
        (
            "configMapRef",
            from.config_map_ref
                .as_ref()
                .map(|source| source.name.as_str()),
        ),
        (
            "secretRef",
            from.secret_ref.as_ref().map(|source| source.name.as_str()),
        ),
    ];
    for (kind, name) in sources {
        match name {
            Some("") => check.required(format!("{field}.{kind}.name"), ""),
            Some(name) => check.formed(format!("{field}.{kind}.name"), name, names::dns_subdomain),
            None => {}
        }
    }
    match sources.iter().filter(|(_, name)| name.is_some()).count() {
        0 => check.invalid(
            list,
            "",
            "must specify one of: `configMapRef` or `secretRef`",
        ),
        1 => {}
        _ => check.invalid(
            list,
            "",
            "may not have more than one field specified at a time",
        ),
    }
}
