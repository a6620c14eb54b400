//! ◆ The steps of a scenario, in the form of `steps.json`. ../README.md documents the schema.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The source of the kubelet's pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// A directory of manifests.
    Static,
    /// An API server, possibly together with a directory of manifests.
    Api,
}

/// The content of `steps.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// A sentence for readers.
    pub(crate) about: String,
    pub(crate) mode: Mode,
    /// Whether pods have cgroups below those of their QoS classes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) pod_cgroups: bool,
    /// In order.
    pub(crate) steps: Vec<Step>,
}

/// An action at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Seconds after the scenario's zero.
    pub(crate) at: f64,
    #[serde(flatten)]
    pub(crate) action: Action,
}

/// An action. Documents are those of the manifest, by index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Action {
    WriteManifests {
        documents: Vec<usize>,
    },
    CorruptManifests,
    RenameManifest {
        to: String,
    },
    RemoveManifests,
    CreatePods {
        documents: Vec<usize>,
    },
    DeletePods {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace: Option<i64>,
    },
    PatchPods {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<String>,
        patch: Value,
    },
    SetCondition {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<String>,
        condition: Value,
    },
    ApplyObjects {
        objects: Vec<Value>,
    },
    DeleteObjects {
        kind: String,
    },
    StartAgent,
    StopAgent,
    KillAgent,
    StartRuntime,
    StopRuntime,
    KillRuntime,
    KillContainer {
        container: String,
        signal: String,
    },
    StopContainer {
        container: String,
    },
    RemoveContainer {
        container: String,
    },
    KillSandbox,
    StopSandbox,
    RemoveSandbox,
    RemoveImage {
        image: String,
    },
    AwaitStatus,
    Remark {
        text: String,
    },
    End,
}

impl Action {
    /// Whether the pods are removed from the agent, as at the end of every scenario.
    pub(crate) fn is_removal(&self) -> bool {
        matches!(self, Self::RemoveManifests | Self::DeletePods { grace: None })
    }
}

impl Plan {
    /// The end of the recording.
    pub(crate) fn end(&self) -> f64 {
        self.steps.last().map_or(0.0, |step| step.at)
    }

    /// When the pods were finally removed from the agent.
    pub(crate) fn removed_at(&self) -> f64 {
        let last = |is: fn(&Action) -> bool| self.steps.iter().rfind(|step| is(&step.action));
        let found = last(Action::is_removal);
        let found = found.or_else(|| last(|action| matches!(action, Action::DeletePods { .. })));
        found.map_or_else(|| self.end(), |step| step.at)
    }

    /// Whether the agent's pods are objects of an API server, not files.
    pub(crate) fn creates_objects(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.action, Action::CreatePods { .. }))
    }

    /// The text of a file, with one step a line.
    pub(crate) fn text(&self) -> String {
        let head = Self { steps: Vec::new(), ..self.clone() };
        let head = serde_json::to_string(&head).unwrap();
        let steps = self.steps.iter().map(|step| serde_json::to_string(step).unwrap());
        let steps = steps.collect::<Vec<_>>().join(",\n");
        head.replace("\"steps\":[]", &format!("\"steps\":[\n{steps}\n]")) + "\n"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(steps: &[(f64, Action)]) -> Plan {
        let steps = steps.iter().cloned().map(|(at, action)| Step { at, action });
        let about = "A pod.".to_owned();
        Plan { about, mode: Mode::Api, pod_cgroups: false, steps: steps.collect() }
    }

    #[test]
    fn written_plan_is_read_back() {
        let plan = plan(&[
            (0.0, Action::CreatePods { documents: vec![0, 1] }),
            (2.5, Action::PatchPods { pod: None, patch: json!({"spec": {}}) }),
            (4.0, Action::DeletePods { grace: None }),
            (5.25, Action::End),
        ]);
        let text = plan.text();
        assert_eq!(text.lines().nth(3), Some(r#"{"at":4.0,"do":"delete_pods"},"#), "{text}");
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }

    #[test]
    fn unknown_field_of_step_is_refused() {
        let step = |fields: &str| {
            serde_json::from_str::<Step>(&format!(r#"{{"at": 1, "do": "delete_pods"{fields}}}"#))
        };
        assert_eq!(step("").unwrap().action, Action::DeletePods { grace: None });
        let error = step(r#", "gracePeriodSeconds": 3"#).unwrap_err().to_string();
        assert!(error.contains("unknown field `gracePeriodSeconds`"), "{error}");
    }

    #[test]
    fn last_removal_counts_and_a_forced_one_only_without_another() {
        let delete = |grace| Action::DeletePods { grace };
        let both = [(1.0, delete(None)), (2.0, delete(None)), (3.0, delete(Some(0)))];
        assert_eq!(plan(&both).removed_at(), 2.0);
        assert_eq!(plan(&both[2..]).removed_at(), 3.0);
        assert_eq!(plan(&[(9.0, Action::End)]).removed_at(), 9.0);
    }
}
