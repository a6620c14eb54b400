//! What the notes of a scenario say that was done. ◆
//!
//! Notes are sentences of the one that recorded, so they are read by their words: what they are about comes first, and a
//! participle says what was done to it.

/// What was done at a time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Note {
    /// Seconds after the scenario's zero.
    pub(crate) at: f64,
    pub(crate) text: String,
}

/// A kind of API objects that pods refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    ConfigMap,
    Secret,
}

impl ObjectKind {
    /// As in a manifest.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }
}

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
    RestartAgent,
    StopRuntime,
    KillRuntime,
    StartRuntime,
    RestartRuntime,
    /// A signal is sent to the first process of a container.
    KillContainer(String, String),
    KillSandbox,
    StopContainer(String),
    RemoveContainer(String),
    RemoveImage(String),
    StopSandbox,
    RemoveSandbox,
    PatchLabel,
    PatchAnnotation,
    PatchImage(String),
    /// The deadline of the pods becomes another one, or one that is found in their statuses.
    PatchDeadline(Option<i64>),
    /// A part of the spec changes that no container sees.
    PatchSpec,
    /// The resources of the pods become those that their containers had in the end.
    Resize,
    AddEphemeral,
    /// The objects that were missing are created.
    CreateObjects(ObjectKind),
    UpdateObjects(ObjectKind),
    DeleteObjects(ObjectKind),
    /// The status that the pods had then is awaited.
    Wait,
    /// Nothing that the agent sees.
    Nothing,
}

/// How notes of an awaited state end.
const STATES: [&str; 11] = [
    "reached",
    "seen",
    "running",
    "ready",
    "started",
    "terminated",
    "ended",
    "succeeded",
    "completed",
    "failed",
    "waiting",
];

/// The step of a note; `None` if it is not understood.
pub(crate) fn step(note: &Note) -> Option<Step> {
    let text = plain(&note.text);
    let words: Vec<&str> = text.split_whitespace().collect();
    let has = |any: &[&str]| words.iter().any(|word| any.contains(word));
    let subject = words.first().copied().unwrap_or_default();
    let second = words.get(1).copied().unwrap_or_default();
    match subject {
        "DELETE" => {
            return Some(Step::Delete(Some(number_after(
                &words,
                "gracePeriodSeconds",
            )?)));
        }
        "kubectl" | "recording" => return Some(Step::Nothing),
        _ if text.contains(" s after ") || has(&["NOT", "not"]) && has(&["reached"]) => {
            return Some(Step::Nothing);
        }
        _ => {}
    }
    let step = match (subject, second) {
        ("kubelet" | "agent", _) => service(&has, Service::Agent),
        ("containerd" | "runtime", _) | ("container", "runtime") => service(&has, Service::Runtime),
        ("mirror", "pod") if has(&["deleted", "force-deleted", "removed"]) => Some(Step::Nothing),
        ("manifest" | "manifests" | "file", _) | (_, "manifest" | "manifests") => manifest(&has),
        ("sandbox" | "pause", _) | ("pod", "sandbox") => sandbox(&has),
        ("image", _) if has(&["removed", "deleted"]) => Some(Step::RemoveImage(second.to_owned())),
        _ if has(&["ephemeral"]) && has(&["added", "patched"]) => Some(Step::AddEphemeral),
        _ if has(&["process"]) && has(&["killed", "sent"]) => {
            let signal = signal(&note.text).unwrap_or("SIGKILL").to_owned();
            Some(Step::KillContainer(container(&words)?, signal))
        }
        _ if has(&["patched", "resized", "resize", "changed", "added"]) => patch(&words, &has),
        ("container", name) => of_container(name, &has, &note.text),
        _ => None,
    };
    let step = step.or_else(|| objects(&words, &has));
    let step = step.or_else(|| {
        let of_pods = words.iter().any(|word| ["pod", "pods"].contains(word));
        of_pods.then(|| pods(&words, &has)).flatten()
    });
    let is_state = || words.last().is_some_and(|last| STATES.contains(last));
    step.or_else(|| is_state().then_some(Step::Wait))
}

/// Whether a note says that a state was awaited.
pub(crate) fn is_wait(note: &Note) -> bool {
    step(note) == Some(Step::Wait)
}

/// Whether a note says that the pods were taken from the kubelet, as at the end of every scenario.
pub(crate) fn is_removal(note: &Note) -> bool {
    matches!(step(note), Some(Step::Clear | Step::Delete(None)))
}

/// Whether a note says that the agent was started again.
pub(crate) fn is_agent_start(note: &Note) -> bool {
    matches!(step(note), Some(Step::StartAgent | Step::RestartAgent))
}

/// Without what stands in parentheses, and without what else was the case.
fn plain(text: &str) -> &str {
    let text = text.split(" (").next().unwrap_or_default();
    text.split(" while ").next().unwrap_or_default().trim()
}

type Has<'a> = &'a dyn Fn(&[&str]) -> bool;

enum Service {
    Agent,
    Runtime,
}

fn service(has: Has<'_>, service: Service) -> Option<Step> {
    let [stop, kill, start, restart] = match service {
        Service::Agent => [
            Step::StopAgent,
            Step::StopAgent,
            Step::StartAgent,
            Step::RestartAgent,
        ],
        Service::Runtime => [
            Step::StopRuntime,
            Step::KillRuntime,
            Step::StartRuntime,
            Step::RestartRuntime,
        ],
    };
    let words: [(&[&str], Step); 5] = [
        (&["stopped", "terminated", "down"], stop),
        (&["killed"], kill),
        (&["restarted"], restart),
        (&["started", "back"], start),
        (&["healthy", "ready", "running"], Step::Nothing),
    ];
    let found = words.into_iter().find(|(any, _)| has(any));
    found.map(|(_, step)| step)
}

fn manifest(has: Has<'_>) -> Option<Step> {
    let words: [(&[&str], Step); 4] = [
        (
            &["parse", "unparsable", "truncated", "spoiled"],
            Step::Spoil,
        ),
        (&["removed", "deleted"], Step::Clear),
        (
            &[
                "replaced",
                "changed",
                "updated",
                "overwritten",
                "rewritten",
                "written",
                "touched",
            ],
            Step::Replace,
        ),
        (&["dropped", "put", "added", "created", "back"], Step::Put),
    ];
    let found = words.into_iter().find(|(any, _)| has(any));
    found.map(|(_, step)| step)
}

fn sandbox(has: Has<'_>) -> Option<Step> {
    let words: [(&[&str], Step); 3] = [
        (&["killed"], Step::KillSandbox),
        (&["removed"], Step::RemoveSandbox),
        (&["stopped"], Step::StopSandbox),
    ];
    let found = words.into_iter().find(|(any, _)| has(any));
    found.map(|(_, step)| step)
}

fn of_container(name: &str, has: Has<'_>, text: &str) -> Option<Step> {
    let name = name.to_owned();
    if has(&["stopped"]) {
        Some(Step::StopContainer(name))
    } else if has(&["removed"]) {
        Some(Step::RemoveContainer(name))
    } else if has(&["killed"]) {
        let signal = signal(text).unwrap_or("SIGKILL").to_owned();
        Some(Step::KillContainer(name, signal))
    } else {
        None
    }
}

fn pods(words: &[&str], has: Has<'_>) -> Option<Step> {
    if has(&["force-deleted"]) {
        Some(Step::Delete(Some(0)))
    } else if has(&["deleted", "evicted"]) {
        Some(Step::Delete(number_after(words, "gracePeriodSeconds")))
    } else if has(&["created", "recreated"]) {
        Some(Step::Put)
    } else {
        None
    }
}

fn patch(words: &[&str], has: Has<'_>) -> Option<Step> {
    let image = || Some(Step::PatchImage(container(words)?));
    if has(&["resources", "resized", "resize", "cpu", "memory"]) {
        Some(Step::Resize)
    } else if has(&["label", "labels"]) {
        Some(Step::PatchLabel)
    } else if has(&["annotation", "annotations"]) {
        Some(Step::PatchAnnotation)
    } else if has(&["activeDeadlineSeconds", "deadline"]) {
        let number = words.iter().find_map(|word| word.parse().ok());
        Some(Step::PatchDeadline(number))
    } else if has(&["image"]) {
        image()
    } else if has(&["patched"]) && !has(&["configMap", "secret"]) {
        Some(Step::PatchSpec)
    } else {
        None
    }
}

fn objects(words: &[&str], has: Has<'_>) -> Option<Step> {
    let is = |name: &str| words.iter().any(|word| word.eq_ignore_ascii_case(name));
    let kind = if is("configMap") || is("configMaps") {
        ObjectKind::ConfigMap
    } else if is("secret") || is("secrets") {
        ObjectKind::Secret
    } else {
        return None;
    };
    if has(&["created", "added", "back"]) {
        Some(Step::CreateObjects(kind))
    } else if has(&["deleted", "removed"]) {
        Some(Step::DeleteObjects(kind))
    } else if has(&["updated", "changed", "patched", "replaced"]) {
        Some(Step::UpdateObjects(kind))
    } else {
        None
    }
}

/// The word after `container`.
fn container(words: &[&str]) -> Option<String> {
    let at = words.iter().position(|word| *word == "container")?;
    Some((*words.get(at + 1)?).to_owned())
}

fn number_after(words: &[&str], name: &str) -> Option<i64> {
    let at = words.iter().position(|word| *word == name)?;
    words.get(at + 1)?.parse().ok()
}

/// The signal that a note names.
fn signal(text: &str) -> Option<&str> {
    let mut words = text.split(|of: char| !of.is_ascii_alphanumeric());
    words.find(|word| word.starts_with("SIG"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Step> {
        step(&Note {
            at: 0.0,
            text: text.to_owned(),
        })
    }

    fn c() -> String {
        "c".to_owned()
    }

    #[test]
    fn notes_of_pods_and_manifests_are_understood() {
        for (text, expected) in [
            ("manifest dropped (10 pods)", Step::Put),
            ("good manifest put back", Step::Put),
            ("manifest replaced", Step::Replace),
            ("manifest replaced while the agent is down", Step::Replace),
            (
                "manifest overwritten with text that does not parse",
                Step::Spoil,
            ),
            ("manifest removed while the agent is down", Step::Clear),
            ("pod created (2 pods)", Step::Put),
            ("pod created again", Step::Put),
            ("pod deleted", Step::Delete(None)),
            (
                "pod force-deleted while the agent is down",
                Step::Delete(Some(0)),
            ),
            ("DELETE with gracePeriodSeconds 40", Step::Delete(Some(40))),
            (
                "pod deleted with gracePeriodSeconds 1",
                Step::Delete(Some(1)),
            ),
            ("mirror pod deleted", Step::Nothing),
        ] {
            assert_eq!(read(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn notes_of_disturbances_are_understood() {
        let kill = |signal: &str| Step::KillContainer(c(), signal.to_owned());
        for (text, expected) in [
            ("kubelet stopped (SIGTERM)", Step::StopAgent),
            ("kubelet killed (SIGKILL)", Step::StopAgent),
            ("kubelet started again", Step::StartAgent),
            ("kubelet restarted", Step::RestartAgent),
            ("kubelet healthy", Step::Nothing),
            ("container runtime stopped", Step::StopRuntime),
            ("container runtime killed", Step::KillRuntime),
            ("container runtime killed (SIGKILL)", Step::KillRuntime),
            ("container runtime started again", Step::StartRuntime),
            ("container runtime restarted", Step::RestartRuntime),
            ("sandbox process killed with SIGKILL", Step::KillSandbox),
            (
                "sandbox stopped through the runtime from outside",
                Step::StopSandbox,
            ),
            (
                "sandbox removed through the runtime from outside",
                Step::RemoveSandbox,
            ),
            (
                "process of container c killed with SIGKILL from outside",
                kill("SIGKILL"),
            ),
            (
                "process of container c killed with SIGTERM from outside",
                kill("SIGTERM"),
            ),
            (
                "container c stopped through the runtime from outside",
                Step::StopContainer(c()),
            ),
            (
                "container c removed through the runtime from outside",
                Step::RemoveContainer(c()),
            ),
            (
                "image r/i:1 removed through the runtime from outside",
                Step::RemoveImage("r/i:1".to_owned()),
            ),
        ] {
            assert_eq!(read(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn notes_of_changes_are_understood() {
        use ObjectKind::{ConfigMap, Secret};
        for (text, expected) in [
            ("label patched", Step::PatchLabel),
            ("annotation patched", Step::PatchAnnotation),
            ("image of container c patched", Step::PatchImage(c())),
            ("image of init container c patched", Step::PatchImage(c())),
            ("activeDeadlineSeconds patched", Step::PatchDeadline(None)),
            (
                "activeDeadlineSeconds patched to 5",
                Step::PatchDeadline(Some(5)),
            ),
            ("tolerations patched", Step::PatchSpec),
            ("resources patched", Step::Resize),
            ("resources of container c patched", Step::Resize),
            ("cpu of container c resized", Step::Resize),
            ("pod resized", Step::Resize),
            ("ephemeral container added", Step::AddEphemeral),
            (
                "ephemeral container with a missing image added",
                Step::AddEphemeral,
            ),
            ("configMap created", Step::CreateObjects(ConfigMap)),
            ("secret created", Step::CreateObjects(Secret)),
            ("configMap updated", Step::UpdateObjects(ConfigMap)),
            ("secret patched", Step::UpdateObjects(Secret)),
            ("secret deleted", Step::DeleteObjects(Secret)),
        ] {
            assert_eq!(read(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn notes_of_states_are_waits() {
        for text in [
            "expected state reached",
            "running",
            "second restart seen",
            "third restart seen",
            "pod ready",
            "container c terminated",
            "X ready",
        ] {
            assert_eq!(read(text), Some(Step::Wait), "{text}");
        }
        for text in [
            "expected state NOT reached within the time limit",
            "12 s after the manifests",
            "kubectl exec (rc 3)",
            "kubectl attach for 3 s",
            "recording window ends; later lines in the trace are only those naming this pod",
        ] {
            assert_eq!(read(text), Some(Step::Nothing), "{text}");
        }
        assert_eq!(read("something else"), None);
    }
}
