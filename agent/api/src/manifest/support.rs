//! ◆ Finds the fields of a valid object that have no effect or are not supported; none is ignored silently.

use k8s_openapi::api::apps::v1::StatefulSetSpec;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaimSpec, PersistentVolumeSpec, Pod, PodSpec, Volume,
};

use super::fields::{Support, support};
use super::typed_value::TypedValue;

/// The effect of an unsupported field on its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// None: there is nothing that the field could change.
    NoEffect,
    /// The object behaves differently from what the author wrote.
    Warning,
    /// The object cannot be run.
    Fatal,
}

/// An unsupported field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unsupported {
    pub(super) field: String,
    pub(super) message: String,
    pub(super) severity: Severity,
}

/// Collects the unsupported fields of a pod.
pub(super) fn of_pod(pod: &Pod) -> Vec<Unsupported> {
    let mut found = of_table(&TypedValue::of(pod));
    found.extend(pod.spec.iter().flat_map(|spec| of_media("spec", spec)));
    found
}

/// The fields that the table does not list as supported.
pub(super) fn of_table(object: &TypedValue) -> Vec<Unsupported> {
    let mut found = Vec::new();
    walk(object, &mut |path, type_name, field| {
        let (message, severity) = match support(type_name, field) {
            None | Some(Support::Done(_)) => return Next::Enter,
            Some(Support::NoEffect(message)) => (message, Severity::NoEffect),
            Some(Support::Warned(message)) => (message, Severity::Warning),
            Some(Support::Refused(message)) => (message, Severity::Fatal),
        };
        found.push(Unsupported { field: path.to_owned(), message: message.to_owned(), severity });
        Next::Skip
    });
    found
}

/// Unsupported values in the volumes of a pod's spec, which is at `at`.
pub(super) fn of_media(at: &str, spec: &PodSpec) -> Vec<Unsupported> {
    let volumes = spec.volumes.iter().flatten().enumerate();
    volumes
        .flat_map(|(index, volume)| {
            let at = format!("{at}.volumes[{index}]");
            let claim = of_ephemeral(&at, volume);
            of_medium(&at, volume).into_iter().chain(claim)
        })
        .collect()
}

const BLOCK: &str = "block devices are not supported: use volumeMode Filesystem";

/// Unsupported values of a claim's spec, which is at `at`.
pub(super) fn of_claim(at: &str, spec: &PersistentVolumeClaimSpec) -> Vec<Unsupported> {
    let block = of_mode(at, spec.volume_mode.as_deref());
    block.into_iter().collect()
}

/// Unsupported values of a persistent volume's spec.
pub(super) fn of_persistent_volume(spec: &PersistentVolumeSpec) -> Vec<Unsupported> {
    let block = of_mode("spec", spec.volume_mode.as_deref());
    block.into_iter().collect()
}

fn of_mode(at: &str, mode: Option<&str>) -> Option<Unsupported> {
    (mode == Some("Block")).then(|| Unsupported {
        field: format!("{at}.volumeMode"),
        message: BLOCK.to_owned(),
        severity: Severity::Fatal,
    })
}

/// Unsupported values of the claim templates of a StatefulSet.
pub(super) fn of_claim_templates(spec: &StatefulSetSpec) -> Vec<Unsupported> {
    let templates = spec.volume_claim_templates.iter().flatten().enumerate();
    let mut found: Vec<Unsupported> = templates
        .filter_map(|(index, claim)| {
            let at = format!("spec.volumeClaimTemplates[{index}].spec");
            claim.spec.as_ref().map(|spec| of_claim(&at, spec))
        })
        .flatten()
        .collect();
    let policy = spec.persistent_volume_claim_retention_policy.as_ref();
    let deleted = policy.and_then(|policy| policy.when_deleted.as_deref());
    if deleted == Some("Delete") {
        found.push(Unsupported {
            field: "spec.persistentVolumeClaimRetentionPolicy.whenDeleted".to_owned(),
            message: "has no effect: the claims are kept: remove them with crib volume rm"
                .to_owned(),
            severity: Severity::Warning,
        });
    }
    found
}

/// Unsupported values of the claim of an ephemeral volume.
fn of_ephemeral(at: &str, volume: &Volume) -> Vec<Unsupported> {
    let template = volume.ephemeral.as_ref();
    let template = template.and_then(|ephemeral| ephemeral.volume_claim_template.as_ref());
    let at = format!("{at}.ephemeral.volumeClaimTemplate.spec");
    template.map_or_else(Vec::new, |template| of_claim(&at, &template.spec))
}

fn of_medium(at: &str, volume: &Volume) -> Option<Unsupported> {
    let medium = volume.empty_dir.as_ref()?.medium.as_deref()?;
    if !medium.starts_with("HugePages") {
        return None;
    }
    Some(Unsupported {
        field: format!("{at}.emptyDir.medium"),
        message: "volumes of huge pages are not supported: use medium Memory, or leave it out"
            .to_owned(),
        severity: Severity::Fatal,
    })
}

/// The decision of a visitor about a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Visit its value.
    Enter,
    /// Do not visit its value.
    Skip,
}

/// Calls `visit` with the path, the type and the name of each field that is set in `object`.
fn walk(object: &TypedValue, visit: &mut Visit<'_>) {
    visit_value(object, "", visit);
}

type Visit<'a> = dyn FnMut(&str, &'static str, &'static str) -> Next + 'a;

/// Visits the fields of a value; maps in Kubernetes' types contain none.
fn visit_value(whole: &TypedValue, path: &str, visit: &mut Visit<'_>) {
    match whole {
        TypedValue::List(items) => {
            for (index, item) in items.iter().enumerate() {
                visit_value(item, &format!("{path}[{index}]"), visit);
            }
        }
        TypedValue::Struct { name, fields } => {
            for (key, field) in fields.iter().filter(|(_, field)| field.is_given()) {
                let path =
                    if path.is_empty() { (*key).to_owned() } else { format!("{path}.{key}") };
                if visit(&path, name, key) == Next::Enter {
                    visit_value(field, &path, visit);
                }
            }
        }
        TypedValue::Null
        | TypedValue::Bool(_)
        | TypedValue::Number(_)
        | TypedValue::Text(_)
        | TypedValue::Map(_) => {}
    }
}
