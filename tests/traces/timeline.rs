//! What the notes of a scenario say that was done. ◆

use crate::scenario::{Note, is_wait};

/// A step of a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// The pods are given to the agent.
    Put,
    /// The documents that replace others are given to the agent; the same again if there are none.
    Replace,
    /// The file is overwritten with a text that does not parse.
    Spoil,
    /// The files are removed.
    Clear,
    /// The objects are deleted, with a grace period or their own.
    Delete(Option<i64>),
    StopAgent,
    StartAgent,
    StopRuntime,
    StartRuntime,
    KillContainer(String),
    KillSandbox,
    StopContainer(String),
    RemoveContainer(String),
    RemoveImage(String),
    RemoveSandbox,
    PatchLabel,
    PatchImage(String),
    AddEphemeral,
    /// The ConfigMaps that were missing are created.
    CreateObjects,
    /// The status that the pods had then is awaited.
    Wait,
    /// Nothing that the agent sees.
    Nothing,
}

/// The step of a note.
pub(crate) fn step(note: &Note) -> Result<Step, String> {
    let text = note.text.as_str();
    let quantity = |text: &str| text.split(" (").next().unwrap_or_default().to_owned();
    if is_wait(text) {
        return Ok(Step::Wait);
    }
    Ok(match quantity(text).as_str() {
        "manifest dropped" | "good manifest put back" | "pod created" => Step::Put,
        "manifest replaced" => Step::Replace,
        "manifest overwritten with text that does not parse" => Step::Spoil,
        "manifest removed" | "manifest removed while the agent is down" => Step::Clear,
        "pod force-deleted while the agent is down" => Step::Delete(Some(0)),
        "pod deleted" => Step::Delete(None),
        "kubelet stopped" => Step::StopAgent,
        "kubelet started again" => Step::StartAgent,
        "container runtime stopped" => Step::StopRuntime,
        "container runtime started again" => Step::StartRuntime,
        "sandbox process killed with SIGKILL" => Step::KillSandbox,
        "sandbox removed through the runtime from outside" => Step::RemoveSandbox,
        "label patched" => Step::PatchLabel,
        "configMap created" => Step::CreateObjects,
        "ephemeral container added" | "ephemeral container with a missing image added" => {
            Step::AddEphemeral
        }
        "kubelet healthy"
        | "expected state NOT reached within the time limit"
        | "kubectl exec"
        | "kubectl exec -i cat"
        | "kubectl logs"
        | "kubectl attach for 3 s"
        | "12 s after the manifests"
        | "recording window ends; later lines in the trace are only those naming this pod" => {
            Step::Nothing
        }
        other => return named(other).ok_or_else(|| format!("a note is not understood: {text}")),
    })
}

/// A step with a parameter.
fn named(text: &str) -> Option<Step> {
    if let Some(seconds) = text.strip_prefix("DELETE with gracePeriodSeconds ") {
        return Some(Step::Delete(Some(seconds.parse().ok()?)));
    }
    let between = |before: &str, after: &str| {
        let name = text.strip_prefix(before)?.strip_suffix(after)?;
        Some(name.to_owned())
    };
    let killed = between("process of container ", " killed with SIGKILL from outside");
    let stopped = between("container ", " stopped through the runtime from outside");
    let removed = between("container ", " removed through the runtime from outside");
    let image = between("image ", " removed through the runtime from outside");
    let patched = between("image of container ", " patched");
    killed
        .map(Step::KillContainer)
        .or(stopped.map(Step::StopContainer))
        .or(removed.map(Step::RemoveContainer))
        .or(image.map(Step::RemoveImage))
        .or(patched.map(Step::PatchImage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_name_their_containers() {
        for (text, expected) in [
            ("manifest dropped (10 pods)", Step::Put),
            ("DELETE with gracePeriodSeconds 40", Step::Delete(Some(40))),
            (
                "container c stopped through the runtime from outside",
                Step::StopContainer("c".to_owned()),
            ),
            (
                "image of container c patched",
                Step::PatchImage("c".to_owned()),
            ),
        ] {
            let note = Note {
                at: 0.0,
                text: text.to_owned(),
            };
            assert_eq!(step(&note), Ok(expected));
        }
        let note = Note {
            at: 0.0,
            text: "something else".to_owned(),
        };
        step(&note).unwrap_err();
    }
}
