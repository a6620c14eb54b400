//! ◆ Which fields of an object a create, an update and each subresource may change. Pure.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/apiserver/pkg/registry/rest/create.go and update.go,
//! pkg/registry/core/pod/strategy.go.

use std::collections::BTreeSet;

use api::pod::Pod;
use api::pod_update::resize_error;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::error::{Error, MODIFIED};
use crate::key::Key;
use crate::object::{Object, metadata, set_metadata};

/// The part of an object that a write changes. The rest stays unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything except the status, if the kind has it as a subresource.
    Main,
    /// The status.
    Status,
    /// CPU and memory of a pod and its containers.
    Resize,
    /// A pod's ephemeral containers, which can only be added.
    EphemeralContainers,
}

/// The metadata fields that only the store sets.
const OF_STORE: [&str; 5] =
    ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"];

/// The kinds with the subresource `scale`: group and name.
const SCALABLE: [(&str, &str); 4] = [
    ("", "ReplicationController"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
];

/// A time in the format of metadata: whole seconds.
pub(crate) fn time(at: Timestamp) -> Value {
    let seconds = Timestamp::from_second(at.as_second()).unwrap_or(at);
    Value::String(seconds.to_string())
}

/// A new object with its metadata, without a version.
pub(crate) fn created(key: &Key, mut value: Value, uid: String, now: Timestamp) -> Value {
    let rules = key.kind.rules();
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"] {
        set_metadata(&mut value, field, None);
    }
    set_metadata(&mut value, "uid", Some(Value::String(uid)));
    set_metadata(&mut value, "creationTimestamp", Some(time(now)));
    set_metadata(&mut value, "generation", rules.counts_generation.then(|| json!(1)));
    if rules.has_status
        && let Some(fields) = value.as_object_mut()
    {
        fields.remove("status");
        if key.kind.is_pod() {
            fields.insert("status".to_owned(), json!({"phase": "Pending"}));
        }
    }
    value
}

/// Sets the number of an object's pods. With `expected`, the current number must be this one.
///
/// Source: Kubernetes 1.36, ScaleREST of pkg/registry/apps/deployment/storage/storage.go and of the other workloads,
/// pkg/apis/autoscaling/validation/validation.go ValidateScale.
pub(crate) fn scale(
    key: &Key,
    value: &mut Value,
    replicas: i32,
    expected: Option<i32>,
) -> Result<(), Error> {
    if !SCALABLE.contains(&(&*key.kind.group, &*key.kind.name)) {
        let why = format!("{} have no subresource scale", key.kind.resource());
        return Err(Error::BadRequest(why));
    }
    let current = value.pointer("/spec/replicas").and_then(Value::as_i64);
    // An API server's default.
    let current = current.unwrap_or(1);
    if let Some(expected) = expected.filter(|expected| i64::from(*expected) != current) {
        let why = format!("expected replicas to be {expected}, was {current}");
        return Err(Error::BadRequest(why));
    }
    if replicas < 0 {
        let why =
            format!("spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0");
        return Err(Error::invalid(key, why));
    }
    value["spec"]["replicas"] = json!(replicas);
    Ok(())
}

/// The object after an update, without its new version; `None` if nothing changes.
pub(crate) fn updated(old: &Object, new: Value, part: Part) -> Result<Option<Value>, Error> {
    expect_same_object(old, &new)?;
    let mut result = match part {
        Part::Main => main(old, new)?,
        Part::Status => with(old, "status", new.get("status").cloned()),
        Part::Resize => resized(old, &new)?,
        Part::EphemeralContainers => with_ephemeral_containers(old, &new)?,
    };
    let version = metadata(&old.value, "resourceVersion").cloned();
    set_metadata(&mut result, "resourceVersion", version);
    if result == old.value {
        return Ok(None);
    }
    if old.key.kind.rules().counts_generation && has_other_spec(&old.value, &result) {
        set_metadata(&mut result, "generation", Some(json!(generation(&old.value) + 1)));
    }
    Ok(Some(result))
}

/// `metadata.generation`; 0 if it is not counted.
pub(crate) fn generation(value: &Value) -> i64 {
    metadata(value, "generation").and_then(Value::as_i64).unwrap_or_default()
}

/// Rejects a write whose uid or version differs from the object's.
fn expect_same_object(old: &Object, new: &Value) -> Result<(), Error> {
    let named = |field| metadata(new, field).and_then(Value::as_str).unwrap_or_default();
    let (uid, version) = (named("uid"), named("resourceVersion"));
    if !uid.is_empty() && uid != old.uid() {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            old.uid()
        );
        return Err(Error::conflict(&old.key, why));
    }
    if version.is_empty() || version == old.version.to_string() {
        return Ok(());
    }
    match version.parse::<u64>() {
        Ok(_) => Err(Error::conflict(&old.key, MODIFIED)),
        Err(_) => {
            let why = format!("metadata.resourceVersion: Invalid value: {version:?}: no number");
            Err(Error::invalid(&old.key, why))
        }
    }
}

fn main(old: &Object, mut new: Value) -> Result<Value, Error> {
    for field in OF_STORE {
        set_metadata(&mut new, field, metadata(&old.value, field).cloned());
    }
    for field in ["selfLink", "managedFields"] {
        set_metadata(&mut new, field, None);
    }
    // The namespace may be omitted.
    let namespace = metadata(&old.value, "namespace").cloned();
    set_metadata(&mut new, "namespace", namespace);
    if old.is_terminating() {
        let names = |value: &Value| -> BTreeSet<String> {
            let names = metadata(value, "finalizers").and_then(Value::as_array).into_iter();
            names.flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let (before, after) = (names(&old.value), names(&new));
        let added: Vec<&String> = after.difference(&before).collect();
        if !added.is_empty() {
            let why = format!(
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
            );
            return Err(Error::invalid(&old.key, why));
        }
    }
    expect_mutable(old, &new)?;
    if old.key.kind.rules().has_status
        && let Some(fields) = new.as_object_mut()
    {
        fields.remove("status");
        let status = old.value.get("status").cloned();
        fields.extend(status.map(|status| ("status".to_owned(), status)));
    }
    Ok(new)
}

/// ConfigMaps and Secrets may be permanently immutable.
///
/// Source: Kubernetes 1.36, pkg/apis/core/validation/validation.go ValidateConfigMapUpdate, ValidateSecretUpdate.
fn expect_mutable(old: &Object, new: &Value) -> Result<(), Error> {
    let fixed: &[&str] = match (&*old.key.kind.group, &*old.key.kind.name) {
        ("", "ConfigMap") => &["immutable", "data", "binaryData"],
        ("", "Secret") => &["immutable", "data", "type"],
        _ => return Ok(()),
    };
    if old.value.get("immutable") != Some(&Value::Bool(true)) {
        return Ok(());
    }
    match fixed.iter().find(|field| old.value.get(**field) != new.get(**field)) {
        Some(field) => {
            let why = format!("{field}: Forbidden: field is immutable when `immutable` is set");
            Err(Error::invalid(&old.key, why))
        }
        None => Ok(()),
    }
}

/// The object with another value of a field.
fn with(old: &Object, field: &str, value: Option<Value>) -> Value {
    let mut result = old.value.clone();
    if let Some(fields) = result.as_object_mut() {
        match value {
            Some(value) => fields.insert(field.to_owned(), value),
            None => fields.remove(field),
        };
    }
    result
}

/// The containers of a list of a pod's spec.
fn containers<'v>(value: &'v Value, list: &str) -> &'v [Value] {
    let list = value.get("spec").and_then(|spec| spec.get(list)).and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

fn expect_pod(old: &Object, subresource: &str) -> Result<(), Error> {
    if old.key.kind.is_pod() {
        return Ok(());
    }
    let message = format!("{} have no subresource {subresource}", old.key.kind.resource());
    Err(Error::BadRequest(message))
}

fn resized(old: &Object, new: &Value) -> Result<Value, Error> {
    expect_pod(old, "resize")?;
    let mut result = old.value.clone();
    for list in ["containers", "initContainers"] {
        let (before, after) = (containers(&old.value, list), containers(new, list));
        // A write may omit fields that it does not change.
        if after.is_empty() {
            continue;
        }
        let names = |list: &[Value]| -> Vec<Option<Value>> {
            list.iter().map(|container| container.get("name").cloned()).collect()
        };
        if names(before) != names(after) {
            let why =
                format!("spec.{list}: Forbidden: containers may not be added or removed on update");
            return Err(Error::invalid(&old.key, why));
        }
        for (index, container) in after.iter().enumerate() {
            let Some(kept) = result["spec"][list][index].as_object_mut() else {
                continue;
            };
            for field in ["resources", "resizePolicy"] {
                match container.get(field) {
                    Some(value) => kept.insert(field.to_owned(), value.clone()),
                    None => kept.remove(field),
                };
            }
        }
    }
    if let Some(spec) = new.get("spec")
        && let Some(kept) = result.get_mut("spec").and_then(Value::as_object_mut)
    {
        match spec.get("resources").filter(|resources| !resources.is_null()) {
            Some(resources) => kept.insert("resources".to_owned(), resources.clone()),
            None => kept.remove("resources"),
        };
    }
    let pod = |value: &Value| match serde_json::from_value(value.clone()) {
        Ok(pod) => Ok(Pod::new(pod)),
        Err(error) => Err(Error::invalid(&old.key, error.to_string())),
    };
    match resize_error(&pod(&old.value)?, &pod(&result)?) {
        Some(why) => Err(Error::invalid(&old.key, why)),
        None => Ok(result),
    }
}

fn with_ephemeral_containers(old: &Object, new: &Value) -> Result<Value, Error> {
    const LIST: &str = "ephemeralContainers";
    expect_pod(old, "ephemeralcontainers")?;
    let (before, after) = (containers(&old.value, LIST), containers(new, LIST));
    for container in before {
        let name = container.get("name");
        let why = match after.iter().find(|other| other.get("name") == name) {
            Some(same) if same == container => continue,
            Some(_) => "changed",
            None => "removed",
        };
        let name = name.and_then(Value::as_str).unwrap_or_default();
        let why = format!(
            "spec.{LIST}: Forbidden: existing ephemeral containers {name:?} may not be {why}"
        );
        return Err(Error::invalid(&old.key, why));
    }
    let mut result = old.value.clone();
    if let Some(spec) = result.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert(LIST.to_owned(), Value::Array(after.to_vec()));
    }
    Ok(result)
}

/// Whether any field other than metadata and status differs.
fn has_other_spec(old: &Value, new: &Value) -> bool {
    let spec = |value: &Value| -> Map<String, Value> {
        let mut fields = value.as_object().cloned().unwrap_or_default();
        fields.retain(|field, _| field != "metadata" && field != "status");
        fields
    };
    spec(old) != spec(new)
}

/// A pod that is bound to a node, without its new version.
pub(crate) fn bound(old: &Object, node: &str, now: Timestamp) -> Result<Value, Error> {
    expect_pod(old, "binding")?;
    let name = &old.key.name;
    if old.is_terminating() {
        let why = format!("pod {name} is being deleted, cannot be assigned to a host");
        return Err(Error::conflict(&old.key, why));
    }
    let assigned = old.value.get("spec").and_then(|spec| spec.get("nodeName"));
    if let Some(assigned) = assigned.and_then(Value::as_str).filter(|name| !name.is_empty()) {
        let why = format!("pod {name} is already assigned to node {assigned:?}");
        return Err(Error::conflict(&old.key, why));
    }
    let mut result = old.value.clone();
    result["spec"]["nodeName"] = Value::String(node.to_owned());
    let condition =
        json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": time(now)});
    let conditions = &mut result["status"]["conditions"];
    let mut others = conditions.as_array().cloned().unwrap_or_default();
    others.retain(|other| other.get("type") != condition.get("type"));
    others.push(condition);
    *conditions = Value::Array(others);
    if old.key.kind.rules().counts_generation {
        set_metadata(&mut result, "generation", Some(json!(generation(&old.value) + 1)));
    }
    Ok(result)
}
