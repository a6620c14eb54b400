//! Validates a pod and returns all errors, each with the path of its value.
//!
//! Source: Kubernetes 1.36, pkg/apis/core/validation/validation.go, for pods at creation with default feature gates.

mod container;
mod declared;
mod dns;
mod env;
mod lifecycle;
mod names;
mod probe;
mod resources;
mod security;
mod volume;

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The kind of error, named as in the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A required value is absent.
    Required,
    /// The value is malformed or out of range.
    Invalid,
    /// The value is not one of the supported ones.
    NotSupported,
    /// The value is a duplicate.
    Duplicate,
    /// A value is not allowed here.
    Forbidden,
    /// The referenced object does not exist.
    NotFound,
    /// The value is too long.
    TooLong,
}

/// An invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the value, such as `spec.containers[1].image`.
    pub field: String,
    /// The kind of error.
    pub rule: Rule,
    /// The value, if showing it helps.
    pub value: String,
    /// What was expected.
    pub detail: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, detail, .. } = self;
        match self.rule {
            Rule::Required => f.write_str("a value is required")?,
            Rule::Invalid if value.is_empty() => f.write_str("invalid value")?,
            Rule::Invalid => write!(f, "invalid value {value:?}")?,
            Rule::NotSupported => write!(f, "unsupported value {value:?}")?,
            Rule::Duplicate => write!(f, "duplicate value {value:?}")?,
            Rule::Forbidden => f.write_str("must not be set")?,
            Rule::NotFound => write!(f, "{value:?} not found")?,
            Rule::TooLong => f.write_str("too long")?,
        }
        if detail.is_empty() {
            Ok(())
        } else {
            write!(f, ": {detail}")
        }
    }
}

/// What a format check expected, for a string that fails it.
type Form = fn(&str) -> Option<&'static str>;

/// Collects errors.
#[derive(Default)]
struct Check {
    errors: Vec<FieldError>,
}

impl Check {
    fn error(
        &mut self,
        rule: Rule,
        field: impl Into<String>,
        value: impl fmt::Display,
        detail: impl Into<String>,
    ) {
        let (field, value, detail) = (field.into(), value.to_string(), detail.into());
        self.errors.push(FieldError {
            field,
            rule,
            value,
            detail,
        });
    }

    fn required(&mut self, field: impl Into<String>, detail: &str) {
        self.error(Rule::Required, field, "", detail);
    }

    fn invalid(
        &mut self,
        field: impl Into<String>,
        value: impl fmt::Display,
        detail: impl Into<String>,
    ) {
        self.error(Rule::Invalid, field, value, detail);
    }

    fn forbidden(&mut self, field: impl Into<String>, detail: &str) {
        self.error(Rule::Forbidden, field, "", detail);
    }

    /// Checks a string against the supported values.
    fn one_of(&mut self, field: impl Into<String>, value: &str, known: &[&str]) {
        if !known.contains(&value) {
            self.error(
                Rule::NotSupported,
                field,
                value,
                format!("expected one of {}", known.join(", ")),
            );
        }
    }

    /// The same for an optional string.
    fn maybe_one_of(&mut self, field: impl Into<String>, value: Option<&str>, known: &[&str]) {
        if let Some(value) = value {
            self.one_of(field, value, known);
        }
    }

    /// Checks a string with `form`, which returns what was expected.
    fn formed(&mut self, field: impl Into<String>, value: &str, form: Form) {
        if let Some(expected) = form(value) {
            self.invalid(field, value, expected);
        }
    }

    fn range(&mut self, field: impl Into<String>, value: i64, least: i64, most: i64) {
        if !(least..=most).contains(&value) {
            self.invalid(
                field,
                value,
                format!("must be between {least} and {most}, inclusive"),
            );
        }
    }

    /// Checks keys of labels or annotations; `values` are checked for labels.
    fn keys<'a>(
        &mut self,
        field: &str,
        pairs: impl Iterator<Item = (&'a String, &'a String)>,
        values: bool,
    ) {
        for (key, value) in pairs {
            if let Some(expected) = names::qualified(key) {
                self.invalid(field, key, expected);
            }
            if values && let Some(expected) = names::label_value(value) {
                self.invalid(field, value, expected);
            }
        }
    }
}

/// Validates a defaulted pod.
pub(super) fn pod(pod: &Pod) -> Vec<FieldError> {
    let mut check = Check::default();
    metadata(&mut check, &pod.metadata);
    match &pod.spec {
        Some(spec) => self::spec(&mut check, spec),
        None => self::spec(&mut check, &PodSpec::default()),
    }
    check.errors
}

fn metadata(check: &mut Check, metadata: &ObjectMeta) {
    let name = metadata.name.as_deref().unwrap_or_default();
    let prefix = metadata.generate_name.as_deref().unwrap_or_default();
    if !prefix.is_empty() && name.is_empty() {
        check.required(
            "metadata.name",
            "generateName needs an API server: set a name",
        );
    } else if name.is_empty() {
        check.required("metadata.name", "");
    } else {
        check.formed("metadata.name", name, names::dns_subdomain);
    }
    check.formed(
        "metadata.namespace",
        metadata.namespace.as_deref().unwrap_or_default(),
        names::dns_label,
    );
    check.keys("metadata.labels", metadata.labels.iter().flatten(), true);
    // Annotation keys may have upper-case letters in their prefix.
    for key in metadata.annotations.iter().flatten().map(|(key, _)| key) {
        if let Some(expected) = names::qualified(&key.to_lowercase()) {
            check.invalid("metadata.annotations", key, expected);
        }
    }
    // The API server's limit (Kubernetes 1.36, apimachinery, TotalAnnotationSizeLimitB).
    const ANNOTATIONS: usize = 256 << 10;
    let annotations = metadata.annotations.iter().flatten();
    if annotations
        .map(|(key, value)| key.len() + value.len())
        .sum::<usize>()
        > ANNOTATIONS
    {
        check.error(
            Rule::TooLong,
            "metadata.annotations",
            "",
            format!("must have at most {ANNOTATIONS} bytes in total, keys and values"),
        );
    }
    for finalizer in metadata.finalizers.iter().flatten() {
        if let Some(expected) = names::qualified(finalizer) {
            check.invalid("metadata.finalizers", finalizer, expected);
        }
    }
    for owner in metadata.owner_references.iter().flatten() {
        for (field, value) in [
            ("kind", &owner.kind),
            ("name", &owner.name),
            ("uid", &owner.uid),
        ] {
            if value.is_empty() {
                check.invalid(
                    format!("metadata.ownerReferences.{field}"),
                    "",
                    "must not be empty",
                );
            }
        }
    }
}

fn spec(check: &mut Check, spec: &PodSpec) {
    let volumes = volume::all(check, spec.volumes.as_deref().unwrap_or_default());
    container::all(check, spec, &volumes);

    check.maybe_one_of(
        "spec.restartPolicy",
        spec.restart_policy.as_deref(),
        &["Always", "OnFailure", "Never"],
    );
    dns::check(check, spec);
    let optional_names: [(&str, &Option<String>, Form); 5] = [
        (
            "spec.serviceAccountName",
            &spec.service_account_name,
            names::dns_subdomain,
        ),
        ("spec.nodeName", &spec.node_name, names::dns_subdomain),
        ("spec.hostname", &spec.hostname, names::dns_label),
        ("spec.subdomain", &spec.subdomain, names::dns_label),
        (
            "spec.priorityClassName",
            &spec.priority_class_name,
            names::dns_subdomain,
        ),
    ];
    for (field, value, form) in optional_names {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            check.formed(field, value, form);
        }
    }
    if let Some(class) = &spec.runtime_class_name {
        check.formed("spec.runtimeClassName", class, names::dns_subdomain);
    }
    if let Some(name) = &spec.hostname_override {
        hostname_override(check, spec, name);
    }
    if let Some(deadline) = spec.active_deadline_seconds {
        check.range(
            "spec.activeDeadlineSeconds",
            deadline,
            1,
            i64::from(i32::MAX),
        );
    }
    check.keys(
        "spec.nodeSelector",
        spec.node_selector.iter().flatten(),
        true,
    );
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        if alias.ip.parse::<std::net::IpAddr>().is_err() {
            check.invalid(
                format!("spec.hostAliases[{index}].ip"),
                &alias.ip,
                NOT_AN_ADDRESS,
            );
        }
        for (place, name) in alias.hostnames.iter().flatten().enumerate() {
            check.formed(
                format!("spec.hostAliases[{index}].hostnames[{place}]"),
                name,
                names::dns_subdomain,
            );
        }
    }
    for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
        self::toleration(check, &format!("spec.tolerations[{index}]"), toleration);
    }
    for (index, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let field = format!("spec.readinessGates[{index}].conditionType");
        check.formed(field, &gate.condition_type, names::qualified);
    }
    if let Some(os) = &spec.os {
        if os.name.is_empty() {
            check.required("spec.os.name", "");
        } else {
            check.one_of("spec.os", &os.name, &["linux", "windows"]);
        }
    }
    if spec.host_users == Some(false) {
        for (field, set) in [
            ("spec.hostNetwork", spec.host_network),
            ("spec.hostPID", spec.host_pid),
            ("spec.hostIPC", spec.host_ipc),
        ] {
            if set == Some(true) {
                check.forbidden(field, "when `hostUsers` is false");
            }
        }
    }
    if spec.host_pid == Some(true) && spec.share_process_namespace == Some(true) {
        check.invalid(
            "spec.shareProcessNamespace",
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    for (index, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        check.formed(
            format!("spec.schedulingGates[{index}]"),
            &gate.name,
            names::qualified,
        );
    }
    if spec
        .scheduling_gates
        .as_ref()
        .is_some_and(|gates| !gates.is_empty())
        && spec
            .node_name
            .as_deref()
            .is_some_and(|name| !name.is_empty())
    {
        check.forbidden(
            "spec.nodeName",
            "cannot be set until all schedulingGates have been cleared",
        );
    }
    security::of_pod(check, spec);
    resources::of_pod(check, spec);
}

const NOT_AN_ADDRESS: &str = "must be a valid IP address, such as 10.9.8.7 or 2001:db8::ffff";

fn hostname_override(check: &mut Check, spec: &PodSpec, name: &str) {
    let field = "spec.hostnameOverride";
    if spec.host_network == Some(true) {
        check.forbidden(field, "may not be specified when hostNetwork is true");
    }
    if spec.set_hostname_as_fqdn == Some(true) {
        check.forbidden(field, "may not be specified when setHostnameAsFQDN is true");
    }
    if name.len() > 64 {
        check.error(Rule::TooLong, field, name, "may not be more than 64 bytes");
    }
    check.formed(field, name, names::dns_subdomain);
}

fn toleration(check: &mut Check, field: &str, toleration: &Toleration) {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (key, operator, effect) = (
        text(&toleration.key),
        text(&toleration.operator),
        text(&toleration.effect),
    );
    if !key.is_empty() {
        check.formed(format!("{field}.key"), &key, names::qualified);
    } else if operator != "Exists" {
        check.invalid(
            format!("{field}.operator"),
            &operator,
            "operator must be Exists when `key` is empty",
        );
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        check.invalid(
            format!("{field}.effect"),
            &effect,
            "must be NoExecute when `tolerationSeconds` is set",
        );
    }
    match operator.as_str() {
        "" | "Equal" => {
            if let Some(expected) = names::label_value(&text(&toleration.value)) {
                check.invalid(
                    format!("{field}.operator"),
                    text(&toleration.value),
                    expected,
                );
            }
        }
        "Exists" => {
            if !text(&toleration.value).is_empty() {
                check.invalid(
                    format!("{field}.operator"),
                    text(&toleration.value),
                    "value must be empty when `operator` is Exists",
                );
            }
        }
        other => check.one_of(format!("{field}.operator"), other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() {
        check.one_of(
            format!("{field}.effect"),
            &effect,
            &["NoSchedule", "PreferNoSchedule", "NoExecute"],
        );
    }
}

/// Reports duplicates.
fn duplicate(check: &mut Check, seen: &mut BTreeSet<String>, field: String, value: &str) {
    if !seen.insert(value.to_owned()) {
        check.error(Rule::Duplicate, field, value, "");
    }
}
