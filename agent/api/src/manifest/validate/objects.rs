//! ConfigMaps, Secrets, and objects of which only the metadata is validated.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ResourceRequirements, Secret};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::pod::SYSTEM_CLASSES;

use crate::manifest::validate::pod::{resources, scheduling};
use crate::manifest::validate::{Check, FieldError, Rule, metadata, names};

/// The API server's limit for all entries together, in bytes.
const MAX_SIZE: usize = 1 << 20;

/// Validates a ConfigMap.
pub(in crate::manifest) fn config_map(map: &ConfigMap) -> Vec<FieldError> {
    let mut check = Check::default();
    metadata::check(&mut check, &map.metadata);
    let binary = || map.binary_data.iter().flatten();
    let mut size = 0;
    for (key, text) in map.data.iter().flatten() {
        check.formed(format!("data[{key}]"), key, names::config_key);
        if binary().any(|(other, _)| other == key) {
            let detail = "duplicate of key present in binaryData";
            check.error(Rule::Invalid, format!("data[{key}]"), key, detail);
        }
        size += text.len();
    }
    for (key, data) in binary() {
        check.formed(format!("binaryData[{key}]"), key, names::config_key);
        size += data.0.len();
    }
    check_size(&mut check, "", size);
    check.errors
}

/// Validates the metadata of an object.
pub(in crate::manifest) fn metadata_only(metadata: &ObjectMeta) -> Vec<FieldError> {
    let mut check = Check::default();
    metadata::check(&mut check, metadata);
    check.errors
}

/// Validates a Namespace. Its name is a DNS label, because it is a part of the DNS names of Services.
pub(in crate::manifest) fn namespace(object: &Namespace) -> Vec<FieldError> {
    let mut check = Check::default();
    metadata::check_without_namespace(&mut check, &object.metadata);
    let name = object.metadata.name.as_deref().unwrap_or_default();
    if !name.is_empty() && names::dns_subdomain(name).is_none() {
        check.formed("metadata.name", name, names::dns_label);
    }
    check.errors
}

/// Validates a RuntimeClass. Kubernetes 1.36, pkg/apis/node/validation/validation.go.
pub(in crate::manifest) fn runtime_class(class: &RuntimeClass) -> Vec<FieldError> {
    let mut check = Check::default();
    metadata::check_without_namespace(&mut check, &class.metadata);
    check.formed("handler", &class.handler, names::dns_label);
    let overhead = class.overhead.as_ref();
    if let Some(fixed) = overhead.and_then(|overhead| overhead.pod_fixed.as_ref()) {
        let limits =
            ResourceRequirements { limits: Some(fixed.clone()), ..ResourceRequirements::default() };
        resources::overhead(&mut check, "overhead.podFixed", &limits);
    }
    if let Some(rules) = &class.scheduling {
        let selector = rules.node_selector.iter().flatten();
        check.keys("scheduling.nodeSelector", selector, true);
        let tolerations = rules.tolerations.as_deref().unwrap_or_default();
        scheduling::tolerations(&mut check, "scheduling.tolerations", tolerations);
    }
    check.errors
}

/// Validates a PriorityClass. Kubernetes 1.36, pkg/apis/scheduling/validation/validation.go.
pub(in crate::manifest) fn priority_class(class: &PriorityClass) -> Vec<FieldError> {
    const HIGHEST_OF_USERS: i32 = 1_000_000_000;
    let mut check = Check::default();
    metadata::check_without_namespace(&mut check, &class.metadata);
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let value = class.value.unwrap_or_default();
    if name.starts_with("system-") {
        if !SYSTEM_CLASSES.contains(&(name, value)) {
            let detail =
                "priority class names with 'system-' prefix are reserved for system use only";
            check.forbidden("metadata.name", detail);
        }
    } else if value > HIGHEST_OF_USERS {
        let detail =
            format!("maximum allowed value of a user defined priority is {HIGHEST_OF_USERS}");
        check.forbidden("value", &detail);
    }
    let known = ["Never", "PreemptLowerPriority"];
    check.maybe_one_of("preemptionPolicy", class.preemption_policy.as_deref(), &known);
    check.errors
}

/// Validates a Secret whose `stringData` is already merged into its `data`.
pub(in crate::manifest) fn secret(secret: &Secret) -> Vec<FieldError> {
    let mut check = Check::default();
    metadata::check(&mut check, &secret.metadata);
    let data = || secret.data.iter().flatten();
    for (key, _) in data() {
        check.formed(format!("data[{key}]"), key, names::config_key);
    }
    check_size(&mut check, "data", data().map(|(_, data)| data.0.len()).sum());
    let has = |key: &str| data().any(|(known, _)| known == key);
    let annotations = secret.metadata.annotations.as_ref();
    match secret.type_.as_deref().unwrap_or_default() {
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            let named = annotations.and_then(|annotations| annotations.get(key));
            if named.is_none_or(String::is_empty) {
                check.required(format!("metadata.annotations[{key}]"), "");
            }
        }
        "kubernetes.io/dockercfg" => json(&mut check, secret, ".dockercfg"),
        "kubernetes.io/dockerconfigjson" => json(&mut check, secret, ".dockerconfigjson"),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            check.required("data[username]", "");
            check.required("data[password]", "");
        }
        "kubernetes.io/ssh-auth" if !has("ssh-privatekey") => {
            check.required("data[ssh-privatekey]", "");
        }
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"] {
                if !has(key) {
                    check.required(format!("data[{key}]"), "");
                }
            }
        }
        _ => {}
    }
    check.errors
}

fn check_size(check: &mut Check, field: &str, size: usize) {
    if size > MAX_SIZE {
        let detail = format!("its data may not be more than {MAX_SIZE} bytes in total");
        check.error(Rule::TooLong, field, "", detail);
    }
}

/// An entry that must be JSON. The message does not show it, because it is secret.
fn json(check: &mut Check, secret: &Secret, key: &str) {
    let entry = secret.data.as_ref().and_then(|data| data.get(key));
    let field = format!("data[{key}]");
    match entry {
        None => check.required(field, ""),
        Some(text) if serde_json::from_slice::<serde_json::Value>(&text.0).is_err() => {
            check.invalid(field, "<secret contents redacted>", "must be JSON");
        }
        Some(_) => {}
    }
}
