//! ◆ A kubelet's configuration: its file, its defaults, and what the agent does with each field.
//!
//! Source: Kubernetes 1.36, kubelet.config.k8s.io/v1beta1, KubeletConfiguration.
//!
//! A configuration is a JSON object, as long as files and flags are laid over each other, then a [`KubeletConfiguration`]. `fields` has
//! the table of all fields, `types` their types, `gates` the feature gates, `kubelet_gates` what the agent does with them, `validate`
//! what a kubelet refuses.

mod fields;
mod gates;
mod kubelet_gates;
mod types;
mod validate;

use std::fmt;

use api::patch::merge;
use serde_json::{Map, Value};

pub use fields::{Effect, FIELDS, Field, field};
pub use gates::{GateState, Gates};
use kubelet_gates::{GateEffect, KUBELET_GATES, KubeletGate};
pub use types::{
    Authentication, Authorization, CrashLoopBackOff, GoDuration, KubeletConfiguration, Logging,
    MemorySwap, ReservedMemory, ShutdownGracePeriodByPodPriority, WebhookAuthorization, count,
};
pub use validate::host::{Host, KERNEL_DEFAULTS, host_problems};
pub use validate::labels::label_problems;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// The percentage of the memory requests of a QoS class that is reserved against the classes below it (`qosReserved`).
///
/// # Errors
///
/// The resource that cannot be reserved, or the text that is not a percentage.
pub fn reserved_memory(config: &KubeletConfiguration) -> Result<Option<i64>, String> {
    let mut reserved = None;
    for (resource, text) in config.qos_reserved.iter().flatten() {
        if resource != "memory" {
            return Err(format!("{resource:?} cannot be reserved: only memory can be reserved"));
        }
        let percent = text.strip_suffix('%').and_then(|number| number.parse().ok());
        let percent = percent.filter(|percent| (0..=100).contains(percent));
        let problem = || format!("{text:?} is not a percentage from 0% to 100%");
        reserved = Some(percent.ok_or_else(problem)?);
    }
    Ok(reserved)
}

/// The fields of a configuration, in JSON.
pub type Document = Map<String, Value>;

/// An invalid field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldProblem {
    /// The field's name.
    pub field: String,
    /// Why it is invalid.
    pub problem: String,
}

/// All invalid fields of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FieldProblems(pub Vec<FieldProblem>);

impl fmt::Display for FieldProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

/// Why a configuration file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum KubeletConfigError {
    /// It is not YAML.
    #[error("invalid YAML or JSON: {0}")]
    Syntax(String),
    /// It is another kind of document.
    #[error("expected apiVersion {API_VERSION} and kind {KIND}")]
    Kind,
    /// Fields have a wrong type or form.
    #[error(transparent)]
    Fields(#[from] FieldProblems),
}

/// A configuration file, or a part of one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigFile {
    /// Its fields, as written.
    pub document: Document,
    /// The names of fields that Kubernetes 1.36 does not define, which are ignored as by a kubelet.
    pub unknown: Vec<String>,
}

/// Parses a configuration file.
///
/// # Errors
///
/// If it is not a KubeletConfiguration, or if fields are malformed.
pub fn parse(text: &str) -> Result<ConfigFile, KubeletConfigError> {
    let document: Value = serde_saphyr::from_str(text)
        .map_err(|error| KubeletConfigError::Syntax(error.to_string()))?;
    let Value::Object(mut fields) = document else {
        return Err(KubeletConfigError::Kind);
    };
    let is = |value: Option<Value>, expected: &str| value.is_some_and(|value| value == expected);
    if !is(fields.remove("apiVersion"), API_VERSION) || !is(fields.remove("kind"), KIND) {
        return Err(KubeletConfigError::Kind);
    }
    let mut file = ConfigFile::default();
    let mut problems = Vec::new();
    for (field, value) in fields {
        let alone = Value::Object([(field.clone(), value.clone())].into_iter().collect());
        match serde_json::from_value::<KubeletConfiguration>(alone) {
            Ok(_) => {
                file.document.insert(field, value);
            }
            Err(error) if error.to_string().starts_with(&format!("unknown field `{field}`")) => {
                file.unknown.push(field);
            }
            Err(error) => problems.push(FieldProblem { field, problem: error.to_string() }),
        }
    }
    if problems.is_empty() { Ok(file) } else { Err(FieldProblems(problems).into()) }
}

/// Merges a further file into a configuration: its fields replace those of the same name, objects are merged (RFC 7386).
pub fn overlay(document: &mut Document, further: &Document) {
    let mut target = Value::Object(std::mem::take(document));
    merge::apply(&mut target, &Value::Object(further.clone()));
    if let Value::Object(merged) = target {
        *document = merged;
    }
}

/// The fields that a configuration sets: without nulls, and without the zero values that stand for the default.
///
/// # Errors
///
/// If a field is malformed.
pub fn normalized(document: &Document) -> Result<Document, FieldProblems> {
    Ok(shown(&decoded(document)?))
}

/// A configuration as JSON, with durations in Go's format.
fn shown(config: &KubeletConfiguration) -> Document {
    match serde_json::to_value(config) {
        Ok(Value::Object(fields)) => pruned(fields, ""),
        Ok(_) | Err(_) => Document::new(),
    }
}

fn pruned(fields: Document, prefix: &str) -> Document {
    let kept = |(name, mut value): (String, Value)| {
        let path = format!("{prefix}{name}");
        let zero = match &value {
            Value::Null => return None,
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::String(text) => text.is_empty() || text == "0s",
            Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
        };
        if zero && !fields::ZERO_COUNTS.contains(&path.as_str()) {
            return None;
        }
        // Maps whose keys are not fields have no zero values to remove.
        if let Value::Object(fields) = &mut value
            && field(&path).is_none()
        {
            *fields = pruned(std::mem::take(fields), &format!("{path}."));
        }
        Some((name, value))
    };
    fields.into_iter().filter_map(kept).collect()
}

/// The value at a path of names separated by dots.
fn at<'a>(document: &'a Document, path: &str) -> Option<&'a Value> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(a, b)| (a, Some(b)));
    match (document.get(first)?, rest) {
        (value, None) => Some(value),
        (Value::Object(inner), Some(rest)) => at(inner, rest),
        (_, Some(_)) => None,
    }
}

/// Sets the value at a path of names separated by dots.
pub fn set(document: &mut Document, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            document.insert(path.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = document.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            if let Value::Object(inner) = inner {
                set(inner, rest, value);
            }
        }
    }
}

/// A [`normalized`] configuration with a kubelet's defaults for the fields that it does not set.
#[must_use]
pub fn with_defaults(document: &Document) -> Document {
    let mut whole = document.clone();
    let gates = gates_of(document);
    for field in &FIELDS {
        if at(document, field.name).is_none()
            && let Ok(default) = serde_json::from_str(field.default)
        {
            set(&mut whole, field.name, default);
        }
    }
    let given = |name: &str| at(document, name);
    let mut default = |name: &str, value: Value| {
        if given(name).is_none() {
            set(&mut whole, name, value);
        }
    };
    let update = given("nodeStatusUpdateFrequency").cloned();
    default("nodeStatusReportFrequency", update.unwrap_or_else(|| "5m0s".into()));
    let most = given("maxParallelImagePulls").and_then(Value::as_i64).unwrap_or_default();
    default("serializeImagePulls", (most < 2).into());
    if gates.enabled("KubeletCrashLoopBackOffMax") {
        default("crashLoopBackOff.maxContainerRestartPeriod", "5m0s".into());
    }
    if gates.enabled("KubeletEnsureSecretPulledImages") {
        default("imagePullCredentialsVerificationPolicy", "NeverVerifyPreloadedImages".into());
    }
    if given("podPidsLimit").and_then(Value::as_i64).is_some_and(|most| most < 0) {
        set(&mut whole, "podPidsLimit", (-1).into());
    }
    whole
}

/// The gates that the agent implements, with their values.
#[must_use]
pub fn followed_gates(gates: &Gates) -> Vec<GateState> {
    let is_followed = |gate: &&KubeletGate| !matches!(gate.effect, GateEffect::Always { .. });
    let followed = KUBELET_GATES.iter().filter(is_followed);
    followed.filter_map(|gate| gates.state(gate.name)).collect()
}

impl KubeletConfiguration {
    /// Its feature gates.
    #[must_use]
    pub fn gates(&self) -> Gates {
        self.feature_gates.as_ref().map(Gates::new).unwrap_or_default()
    }
}

/// The gates that are set to a value that does not have all of its effect, each with the reason.
fn gates_without_effect(gates: &Gates) -> impl Iterator<Item = (String, &'static str)> {
    KUBELET_GATES.iter().filter_map(move |gate| {
        let why = gate.missing_effect(gates.given(gate.name)?)?;
        Some((format!("featureGates.{}", gate.name), why))
    })
}

fn gates_of(document: &Document) -> Gates {
    let gates = document.get("featureGates").cloned();
    let gates = gates.and_then(|gates| serde_json::from_value(gates).ok()).unwrap_or_default();
    Gates::new(&gates)
}

/// A valid configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checked {
    /// Its fields.
    pub config: KubeletConfiguration,
    /// Its fields that have no effect on the agent, each with the reason.
    pub without_effect: Vec<(String, &'static str)>,
}

/// Checks a [`normalized`] configuration against a kubelet's rules and the agent's features.
///
/// # Errors
///
/// All invalid fields.
pub fn check(document: &Document) -> Result<Checked, FieldProblems> {
    let config = decoded(document)?;
    let defaulted = with_defaults(document);
    let gates = gates_of(document);
    let mut problems = validate::problems(&decoded(&defaulted)?, &gates);
    let mut without_effect = Vec::new();
    let defaults = with_defaults(&Document::new());
    for field in &FIELDS {
        let Some(value) = at(document, field.name) else {
            continue;
        };
        let is_actual = serde_json::from_str::<Value>(field.actual).is_ok_and(|it| it == *value);
        if is_actual || is_default(value, at(&defaults, field.name)) {
            continue;
        }
        match field.effect {
            Effect::Used => {}
            Effect::Unused(why) => without_effect.push((field.name.to_owned(), why)),
            Effect::Refused(remedy) => {
                let problem = format!("crib's agent does not support this; {remedy}");
                problems.push(FieldProblem { field: field.name.to_owned(), problem });
            }
        }
    }
    without_effect.extend(gates_without_effect(&gates));
    if problems.is_empty() {
        Ok(Checked { config, without_effect })
    } else {
        Err(FieldProblems(problems))
    }
}

/// Whether a value equals the default; without a default, whether it is empty.
fn is_default(value: &Value, default: Option<&Value>) -> bool {
    let is_empty = match value {
        Value::Bool(is_on) => !is_on,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(|value| is_default(value, None)),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => ["", "0", "0s"].contains(&text.as_str()),
        Value::Null => true,
    };
    let is_empty_list = value.as_array().is_some_and(Vec::is_empty);
    is_empty_list || default.map_or(is_empty, |default| value == default)
}

/// Converts JSON to a configuration.
fn decoded(document: &Document) -> Result<KubeletConfiguration, FieldProblems> {
    let problem = |error: serde_json::Error| {
        // Each field of a file was checked when it was parsed: this error names a field set by flags.
        FieldProblems(vec![FieldProblem {
            field: "KubeletConfiguration".to_owned(),
            problem: error.to_string(),
        }])
    };
    serde_json::from_value(Value::Object(document.clone())).map_err(problem)
}

/// The configuration in effect: the kubelet's defaults for unset fields, and the agent's actual values for fields without effect.
#[must_use]
pub fn effective(config: &KubeletConfiguration) -> Document {
    let document = shown(config);
    let mut whole = with_defaults(&document);
    for field in &FIELDS {
        if field.effect == Effect::Used {
            continue;
        }
        match serde_json::from_str(field.actual) {
            Ok(actual) => set(&mut whole, field.name, actual),
            Err(_) => remove(&mut whole, field.name),
        }
    }
    let followed = followed_gates(&gates_of(&document)).into_iter();
    let followed = followed.map(|gate| (gate.name.to_owned(), gate.enabled.into()));
    whole.insert("featureGates".to_owned(), Value::Object(followed.collect()));
    whole
}

fn remove(document: &mut Document, path: &str) {
    match path.split_once('.') {
        None => drop(document.remove(path)),
        Some((first, rest)) => {
            if let Some(Value::Object(inner)) = document.get_mut(first) {
                remove(inner, rest);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
