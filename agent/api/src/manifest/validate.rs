//! Validates a pod and returns all errors, each with the path of its value.
//!
//! Source: Kubernetes 1.36, pkg/apis/core/validation/validation.go, for pods at creation with default feature gates.

mod annotations;
mod claims;
pub(super) mod cron_job;
pub(super) mod endpoints;
pub(super) mod job;
mod metadata;
pub(super) mod names;
pub(super) mod objects;
pub(super) mod pod;
mod rollouts;
mod selectors;
pub(super) mod service;
mod service_traffic;
pub(super) mod storage;
#[cfg(test)]
mod tests;
pub(super) mod trust_bundle;
pub(super) mod workload;

use std::fmt;

use compact::Set;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

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
    /// The list has too many items.
    TooMany,
}

/// An invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the value, such as `spec.containers[1].image`.
    pub field: String,
    /// The kind of error.
    pub rule: Rule,
    /// The value, if it helps to show it.
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
            Rule::TooMany => f.write_str("too many")?,
        }
        if detail.is_empty() { Ok(()) } else { write!(f, ": {detail}") }
    }
}

/// A format check, which returns what was expected if the string fails it.
type Form = fn(&str) -> Option<&'static str>;

/// Collects errors.
#[derive(Default)]
pub(super) struct Check {
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
        self.errors.push(FieldError { field, rule, value, detail });
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

    /// Like `one_of`, for an optional string.
    fn maybe_one_of(&mut self, field: impl Into<String>, value: Option<&str>, known: &[&str]) {
        if let Some(value) = value {
            self.one_of(field, value, known);
        }
    }

    /// Checks that none of these fields of `at` is below 0.
    fn not_negative<N: Copy + Into<i64>>(&mut self, at: &str, fields: &[(&str, Option<N>)]) {
        for (name, number) in fields {
            if let Some(number) = number.map(Into::into).filter(|number| *number < 0) {
                self.invalid(format!("{at}.{name}"), number, "must be greater than or equal to 0");
            }
        }
    }

    /// Checks a string with `form`, which returns what was expected.
    fn formed(&mut self, field: impl Into<String>, value: &str, form: Form) {
        if let Some(expected) = form(value) {
            self.invalid(field, value, expected);
        }
    }

    /// Like `formed`, for an optional string.
    fn maybe_formed(&mut self, field: impl Into<String>, value: Option<&str>, form: Form) {
        if let Some(value) = value {
            self.formed(field, value, form);
        }
    }

    /// Requires a string that is not empty.
    fn nonempty(&mut self, field: impl Into<String>, value: &str) {
        if value.is_empty() {
            self.required(field, "");
        }
    }

    /// Requires a string, and checks it with `form`.
    fn nonempty_formed(&mut self, field: impl Into<String>, value: &str, form: Form) {
        if value.is_empty() {
            self.required(field, "");
        } else {
            self.formed(field, value, form);
        }
    }

    fn range(&mut self, field: impl Into<String>, value: i64, least: i64, most: i64) {
        if !(least..=most).contains(&value) {
            self.invalid(field, value, format!("must be between {least} and {most}, inclusive"));
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
    let none = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&none);
    metadata::check(&mut check, &pod.metadata);
    annotations::check(&mut check, pod, spec);
    self::spec(&mut check, pod, spec);
    check.errors
}

/// The init and app containers of a pod, each with its path.
fn containers(spec: &PodSpec) -> impl Iterator<Item = (String, &Container)> {
    let inits = spec.init_containers.iter().flatten().enumerate();
    let inits = inits.map(|(index, init)| (format!("spec.initContainers[{index}]"), init));
    let apps = spec.containers.iter().enumerate();
    inits.chain(apps.map(|(index, app)| (format!("spec.containers[{index}]"), app)))
}

fn spec(check: &mut Check, pod: &Pod, spec: &PodSpec) {
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod::volume::all(check, pod_name, spec.volumes.as_deref().unwrap_or_default());
    let annotations = pod.metadata.annotations.as_ref();
    let is_mirror = annotations.is_some_and(|given| given.contains_key(annotations::MIRROR));
    claims::of_pod(check, spec, is_mirror);
    pod::container::all(check, spec, &volumes);

    let known = ["Always", "OnFailure", "Never"];
    check.maybe_one_of("spec.restartPolicy", spec.restart_policy.as_deref(), &known);
    pod::check_dns(check, spec);
    let optional_names: [(&str, &Option<String>, Form); 5] = [
        ("spec.serviceAccountName", &spec.service_account_name, names::dns_subdomain),
        ("spec.nodeName", &spec.node_name, names::dns_subdomain),
        ("spec.hostname", &spec.hostname, names::dns_label),
        ("spec.subdomain", &spec.subdomain, names::dns_label),
        ("spec.priorityClassName", &spec.priority_class_name, names::dns_subdomain),
    ];
    for (field, value, form) in optional_names {
        check.maybe_formed(field, value.as_deref().filter(|value| !value.is_empty()), form);
    }
    check.maybe_formed(
        "spec.runtimeClassName",
        spec.runtime_class_name.as_deref(),
        names::dns_subdomain,
    );
    if let Some(name) = &spec.hostname_override {
        hostname_override(check, spec, name);
    }
    if let Some(deadline) = spec.active_deadline_seconds {
        check.range("spec.activeDeadlineSeconds", deadline, 1, i64::from(i32::MAX));
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let field = format!("spec.hostAliases[{index}]");
        check.formed(format!("{field}.ip"), &alias.ip, names::ip_address);
        for (place, name) in alias.hostnames.iter().flatten().enumerate() {
            check.formed(format!("{field}.hostnames[{place}]"), name, names::dns_subdomain);
        }
    }
    for (index, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let field = format!("spec.readinessGates[{index}].conditionType");
        check.formed(field, &gate.condition_type, names::qualified);
    }
    user_namespace(check, spec);
    pod::scheduling::check(check, spec);
    pod::security::of_pod(check, spec);
    pod::resources::of_pod(check, spec);
    pod::windows::os(check, spec);
    pod::windows::host_process(check, spec);
    check_create(check, spec);
}

/// A pod with its own user namespace cannot share other namespaces with the node.
fn user_namespace(check: &mut Check, spec: &PodSpec) {
    if spec.host_users != Some(false) {
        return;
    }
    let why = "when `hostUsers` is false";
    // The API server's spelling of the fields.
    for (field, set) in [
        ("spec.hostNetwork", spec.host_network),
        ("spec.HostPID", spec.host_pid),
        ("spec.HostIPC", spec.host_ipc),
    ] {
        if set == Some(true) {
            check.forbidden(field, why);
        }
    }
    for (field, container) in containers(spec) {
        let devices = container.volume_devices.as_ref();
        if devices.is_some_and(|devices| !devices.is_empty()) {
            check.forbidden(format!("{field}.volumeDevices"), why);
        }
    }
}

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

/// Reports duplicates.
fn duplicate(check: &mut Check, seen: &mut Set<String>, field: String, value: &str) {
    if !seen.insert(value.to_owned()) {
        check.error(Rule::Duplicate, field, value, "");
    }
}

/// Checks fields that a pod must not have when it is created.
fn check_create(check: &mut Check, spec: &PodSpec) {
    let ephemeral = spec.ephemeral_containers.as_ref();
    if ephemeral.is_some_and(|containers| !containers.is_empty()) {
        check.forbidden("spec.ephemeralContainers", "cannot be set on create");
    }
    let account = [&spec.service_account_name, &spec.service_account];
    if account.iter().any(|name| name.as_deref().is_some_and(|name| !name.is_empty())) {
        return;
    }
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let projected = volume.projected.iter();
        let sources = projected.flat_map(|projected| projected.sources.iter().flatten());
        for (number, source) in sources.enumerate() {
            if source.service_account_token.is_some() {
                check.forbidden(
                    format!(
                        "spec.volumes[{index}].projected.sources[{number}].serviceAccountToken"
                    ),
                    "must not be specified when serviceAccountName is not set",
                );
            }
        }
    }
}
