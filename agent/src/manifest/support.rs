//! ◆ Finds the fields of a valid object that have no effect or cannot be honoured; none is ignored silently.

mod walk;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Volume};
use serde::Serialize;

use super::fields::{Support, support};
use walk::{Next, walk};

/// What a field that is not supported means for its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// Nothing: there is nothing that the field could change.
    NoEffect,
    /// Something is different from what the author wrote.
    Warning,
    /// The object cannot be run.
    Fatal,
}

/// A field that is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unsupported {
    pub(super) field: String,
    pub(super) message: String,
    pub(super) severity: Severity,
}

/// Collects the unsupported fields of a pod.
pub(super) fn of_pod(pod: &Pod) -> Vec<Unsupported> {
    let mut found = of_table(pod);
    found.extend(pod.spec.iter().flat_map(|spec| of_media("spec", spec)));
    found
}

/// The fields that the table does not call done.
pub(super) fn of_table(object: &impl Serialize) -> Vec<Unsupported> {
    let mut found = Vec::new();
    walk(object, &mut |path, type_name, field| {
        let (message, severity) = match support(type_name, field) {
            None | Some(Support::Done(_)) => return Next::Enter,
            Some(Support::NoEffect(message)) => (message, Severity::NoEffect),
            Some(Support::Warned(message)) => (message, Severity::Warning),
            Some(Support::Refused(message)) => (message, Severity::Fatal),
        };
        found.push(Unsupported {
            field: path.to_owned(),
            message: message.to_owned(),
            severity,
        });
        Next::Skip
    });
    found
}

/// What depends on the media of the emptyDirs of a pod's spec, which is at `at`.
pub(super) fn of_media(at: &str, spec: &PodSpec) -> Vec<Unsupported> {
    let volumes = spec.volumes.iter().flatten().enumerate();
    volumes
        .filter_map(|(index, volume)| of_medium(&format!("{at}.volumes[{index}]"), volume))
        .collect()
}

fn of_medium(at: &str, volume: &Volume) -> Option<Unsupported> {
    let medium = volume.empty_dir.as_ref()?.medium.as_deref()?;
    let (message, severity) = if medium.starts_with("HugePages") {
        ("huge pages are not supported yet", Severity::Fatal)
    } else if medium == "Memory" {
        (
            "not supported yet: uses a directory on disk",
            Severity::Warning,
        )
    } else {
        return None;
    };
    Some(Unsupported {
        field: format!("{at}.emptyDir.medium"),
        message: message.to_owned(),
        severity,
    })
}
