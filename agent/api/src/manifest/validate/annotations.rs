//! Annotations that the API server interprets: mirror pods, the older forms of profiles and tolerations.

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod, PodSpec, SeccompProfile, Toleration};

use crate::manifest::validate::pod::scheduling;
use crate::manifest::validate::{Check, names};

/// Identifies the kubelet's pod of a mirror pod.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APPARMOR_CONTAINER: &str = "container.apparmor.security.beta.kubernetes.io/";

const FIELD: &str = "metadata.annotations";

/// Checks the annotations of a pod, alone and against the fields that replaced them.
pub(super) fn check(check: &mut Check, pod: &Pod, spec: &PodSpec) {
    let annotations = || pod.metadata.annotations.iter().flatten();
    let get = |wanted: &str| {
        annotations().find(|(key, _)| *key == wanted).map(|(_, value)| value.as_str())
    };
    let node = spec.node_name.as_deref().unwrap_or_default();
    if let Some(value) = get(MIRROR)
        && node.is_empty()
    {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        check.invalid(format!("{FIELD}[{MIRROR}]"), value, detail);
    }
    if let Some(value) = get(TOLERATIONS).filter(|value| !value.is_empty()) {
        tolerations(check, value);
    }
    if let Some(cost) = get(DELETION_COST)
        && !is_deletion_cost(cost)
    {
        let field = format!("{FIELD}[{DELETION_COST}]");
        check.invalid(field, cost, "must be a 32-bit integer");
    }
    for (key, value) in annotations() {
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            seccomp(check, &format!("{FIELD}.{key}"), value);
        }
        if let Some(name) = key.strip_prefix(APPARMOR_CONTAINER) {
            apparmor(check, &format!("{FIELD}[{key}]"), name, value, spec);
        }
    }
    beside_fields(check, spec, &get);
}

fn tolerations(check: &mut Check, json: &str) {
    match serde_json::from_str::<Vec<Toleration>>(json) {
        Ok(list) => scheduling::tolerations(check, &format!("{FIELD}.{TOLERATIONS}"), &list),
        Err(error) => check.invalid(FIELD, TOLERATIONS, error.to_string()),
    }
}

/// Whether a text is a 32-bit integer without a plus sign or a leading zero.
fn is_deletion_cost(text: &str) -> bool {
    (text == "0" || text.starts_with(['-', '1', '2', '3', '4', '5', '6', '7', '8', '9']))
        && text.parse::<i32>().is_ok()
}

fn seccomp(check: &mut Check, field: &str, profile: &str) {
    match profile.strip_prefix("localhost/") {
        Some(path) => check.formed(field, path, names::inner_path),
        None if matches!(profile, "runtime/default" | "docker/default" | "unconfined") => {}
        None => check.invalid(field, profile, "must be a valid seccomp profile"),
    }
}

fn apparmor(check: &mut Check, field: &str, name: &str, profile: &str, spec: &PodSpec) {
    if !crate::manifest::validate::containers(spec).any(|(_, container)| container.name == name) {
        check.invalid(field, name, "container not found");
    }
    let known = matches!(profile, "" | "runtime/default" | "unconfined");
    if !known && !profile.starts_with("localhost/") {
        check.invalid(field, profile, "must be a valid AppArmor profile");
    }
}

/// A profile in an annotation and in a field must be the same.
fn beside_fields<'a>(check: &mut Check, spec: &PodSpec, get: &impl Fn(&str) -> Option<&'a str>) {
    let pod = spec.security_context.as_ref();
    let of_pod = pod.and_then(|pod| pod.seccomp_profile.as_ref());
    if let Some((annotation, profile)) = get(SECCOMP_POD).zip(of_pod) {
        same_seccomp(check, "spec.securityContext", annotation, profile);
    }
    let is_windows = spec.os.as_ref().is_some_and(|os| os.name == "windows");
    let pod_apparmor = pod.and_then(|pod| pod.app_armor_profile.as_ref());
    for (field, container) in crate::manifest::validate::containers(spec) {
        let own = container.security_context.as_ref();
        let field = format!("{field}.securityContext");
        let seccomp = own.and_then(|own| own.seccomp_profile.as_ref());
        let key = format!("{SECCOMP_CONTAINER}{}", container.name);
        if let Some((annotation, profile)) = get(&key).zip(seccomp) {
            same_seccomp(check, &field, annotation, profile);
        }
        let apparmor = own.and_then(|own| own.app_armor_profile.as_ref()).or(pod_apparmor);
        let key = format!("{APPARMOR_CONTAINER}{}", container.name);
        if let Some((annotation, profile)) = get(&key).zip(apparmor)
            && !is_windows
        {
            same_apparmor(check, &field, annotation, profile);
        }
    }
}

const DIFFERS: &str = "the profile must be the same in the annotation and in the field";

/// Compares a profile with an annotation; `plain` decides which annotations a kind other than Localhost allows.
fn same(
    check: &mut Check,
    field: &str,
    annotation: &str,
    (kind, path): (&str, Option<&str>),
    plain: &[(&str, &[&str])],
) {
    if kind == "Localhost" {
        match annotation.strip_prefix("localhost/") {
            None => check.forbidden(format!("{field}.type"), DIFFERS),
            given if given != path => check.forbidden(format!("{field}.localhostProfile"), DIFFERS),
            Some(_) => {}
        }
        return;
    }
    let allowed = plain.iter().find(|(known, _)| *known == kind);
    if allowed.is_some_and(|(_, allowed)| !allowed.contains(&annotation)) {
        check.forbidden(format!("{field}.type"), DIFFERS);
    }
}

fn same_seccomp(check: &mut Check, field: &str, annotation: &str, profile: &SeccompProfile) {
    let known: [(&str, &[&str]); 2] = [
        ("Unconfined", &["unconfined"]),
        ("RuntimeDefault", &["runtime/default", "docker/default"]),
    ];
    let given = (profile.type_.as_str(), profile.localhost_profile.as_deref());
    same(check, &format!("{field}.seccompProfile"), annotation, given, &known);
}

fn same_apparmor(check: &mut Check, field: &str, annotation: &str, profile: &AppArmorProfile) {
    let known: [(&str, &[&str]); 2] =
        [("Unconfined", &["unconfined"]), ("RuntimeDefault", &["runtime/default"])];
    let given = (profile.type_.as_str(), profile.localhost_profile.as_deref());
    same(check, &format!("{field}.appArmorProfile"), annotation, given, &known);
}
