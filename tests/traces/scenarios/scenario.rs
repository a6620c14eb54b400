//! A recorded scenario: its steps, the kubelet's calls, and its reports.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::scenarios::source::plan_of;
use crate::scenarios::steps::{Plan, Step};

/// The files of a scenario. Also the form of a line in the sample, which has no plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// `steps.json`
    pub(crate) plan: Plan,
    pub(crate) manifest: String,
    /// Lines of the trace.
    pub(crate) calls: Vec<Value>,
    /// `status.json`
    pub(crate) status: Vec<Value>,
    /// `status_history.jsonl`
    pub(crate) history: Vec<Value>,
    pub(crate) events: Vec<Value>,
}

/// The calls that are compared.
const COMPARED: [&str; 12] = [
    "RunPodSandbox",
    "PullImage",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "StopPodSandbox",
    "RemoveContainer",
    "RemovePodSandbox",
    "ReopenContainerLog",
    "UpdateContainerResources",
    "UpdatePodSandboxResources",
    "ExecSync",
];

impl Scenario {
    /// Reads the files of a directory. Without `steps.json`, the steps stored here for its name are used.
    pub(crate) fn read(directory: &Path) -> Self {
        let name = directory.file_name().unwrap().to_str().unwrap().to_owned();
        let text = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_default();
        let list = |file: &str| serde_json::from_str(&text(file)).unwrap_or_default();
        let lines = |file: &str| {
            let text = text(file);
            let lines = text.lines().map(serde_json::from_str);
            lines.collect::<Result<_, _>>().unwrap()
        };
        let plan = match fs::read_to_string(directory.join("steps.json")) {
            Ok(text) => serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{}/steps.json: {error}", directory.display())),
            Err(_) => plan_of(&name).unwrap_or_else(|| {
                let directory = directory.display();
                panic!("{directory} has no steps.json: tests/traces/convert {directory}")
            }),
        };
        Self {
            name,
            plan,
            manifest: text("manifest.yaml"),
            calls: lines("trace.jsonl"),
            status: list("status.json"),
            history: lines("status_history.jsonl"),
            events: list("events.json"),
        }
    }

    /// The scenario with the data of another run.
    pub(crate) fn recorded_as(
        &self,
        steps: Vec<Step>,
        calls: Vec<Value>,
        status: Vec<Value>,
        history: Vec<Value>,
        events: Vec<Value>,
    ) -> Self {
        Self {
            name: self.name.clone(),
            plan: Plan { steps, ..self.plan.clone() },
            manifest: self.manifest.clone(),
            calls,
            status,
            history,
            events,
        }
    }

    /// Writes the files of a directory.
    pub(crate) fn write(&self, directory: &Path) {
        fs::create_dir_all(directory).unwrap();
        let lines = |values: &[Value]| -> String {
            values.iter().map(|value| format!("{value}\n")).collect()
        };
        let list = |values: &[Value]| serde_json::to_string_pretty(values).unwrap() + "\n";
        let files = [
            ("steps.json", self.plan.text()),
            ("manifest.yaml", self.manifest.clone()),
            ("trace.jsonl", lines(&self.calls)),
            ("status.json", list(&self.status)),
            ("status_history.jsonl", lines(&self.history)),
            ("events.json", list(&self.events)),
        ];
        for (name, text) in files {
            fs::write(directory.join(name), text).unwrap();
        }
    }

    /// Without the parts that are not compared.
    pub(crate) fn reduced(mut self) -> Self {
        let present = self.images_present();
        let mut requested = Vec::new();
        self.calls.retain_mut(|call| {
            let method = method(call).to_owned();
            let image = image_of(call).to_owned();
            // Of ImageStatus, only the first response for an image that was present.
            let asks = method == "ImageStatus"
                && present.contains(&image)
                && !requested.contains(&image)
                && { requested.push(image); true };
            let addresses = method == "PodSandboxStatus" && call.pointer("/response/status/network/ip").is_some();
            if asks {
                let image = &call["response"]["image"];
                let (tags, uid, name) = (&image["repo_tags"], &image["uid"], &image["username"]);
                call["response"] = serde_json::json!({
                    "image": {"id": "present", "repo_tags": tags, "uid": uid, "username": name},
                });
            } else if addresses {
                let id = call["request"]["pod_sandbox_id"].clone();
                let again = requested.contains(&id.to_string());
                requested.push(id.to_string());
                call["response"] = serde_json::json!({"status": {"network": call["response"]["status"]["network"]}});
                return !again;
            }
            asks || COMPARED.contains(&method.as_str())
        });
        // Statuses after the removal are not compared.
        let end = self.plan.removed_at();
        self.history.retain(|entry| entry["t"].as_f64() <= Some(end + 0.05));
        self
    }

    /// The scenario with all occurrences of a text replaced by another one.
    pub(crate) fn replaced(&self, text: &str, other: &str) -> Self {
        let all = serde_json::to_string(self).unwrap();
        serde_json::from_str(&all.replace(text, other)).unwrap()
    }

    /// The documents of the manifest.
    pub(crate) fn documents(&self) -> Vec<String> {
        let mut documents = vec![String::new()];
        for line in self.manifest.lines() {
            if line == "---" {
                documents.push(String::new());
            } else if let Some(last) = documents.last_mut() {
                last.push_str(line);
                last.push('\n');
            }
        }
        documents
    }

    /// The images that were present in the runtime at the start: those that the first ImageStatus call found.
    pub(crate) fn images_present(&self) -> Vec<String> {
        let mut first: Vec<(String, bool)> = Vec::new();
        for call in self.calls.iter().filter(|call| method(call) == "ImageStatus") {
            let image = image_of(call).to_owned();
            if first.iter().all(|(known, _)| *known != image) {
                first.push((image, call.pointer("/response/image").is_some()));
            }
        }
        let present = first.into_iter().filter(|(_, present)| *present);
        present.map(|(image, _)| image).collect()
    }

    /// The statuses of a pod before its last one, which is an entry of `status.json`.
    pub(crate) fn history_of(&self, last: &Value) -> Vec<Value> {
        let metadata = &last["metadata"];
        let is_own = |entry: &&Value| entry["metadata"]["uid"] == metadata["uid"];
        // An API server's object has a status before the kubelet sets one, and gets others when it is deleted.
        let deleted = |entry: &Value| entry["metadata"]["deletionTimestamp"].is_string();
        let is_of_kubelet = |entry: &&Value| {
            entry["status"]["conditions"].is_array() && (deleted(last) || !deleted(entry))
        };
        let own = self.history.iter().filter(is_own).filter(is_of_kubelet);
        let mut own: Vec<Value> = own.cloned().collect();
        if own.last().is_none_or(|entry| entry["status"] != last["status"]) {
            let mut entry = last.clone();
            entry["t"] = serde_json::json!(self.plan.removed_at());
            own.push(entry);
        }
        own
    }

    /// The calls of a method.
    pub(crate) fn calls_of(&self, name: &'static str) -> impl DoubleEndedIterator<Item = &Value> {
        self.calls.iter().filter(move |call| method(call) == name)
    }

    /// The latest status of each pod at a time.
    pub(crate) fn statuses_at(&self, at: f64) -> Vec<Value> {
        let mut latest: Vec<Value> = Vec::new();
        // The resolution of the recorded times of steps is 0.1 s.
        for entry in self.history.iter().filter(|entry| entry["t"].as_f64().unwrap() <= at + 0.05) {
            latest.retain(|earlier| earlier["pod"] != entry["pod"]);
            latest.push(entry.clone());
        }
        latest.retain(|entry| entry["gone"] != true);
        latest
    }
}

/// The name of a call.
pub(crate) fn method(call: &Value) -> &str {
    call["method"].as_str().unwrap_or_default()
}

fn image_of(call: &Value) -> &str {
    let image = call.pointer("/request/image/image");
    image.and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::scenarios::steps::Action;

    #[test]
    fn written_scenario_is_read_back() {
        let plan = |at: f64| json!({"about": "A pod.", "mode": "static", "steps": [{"at": at, "do": "end"}]});
        let scenario = Scenario {
            name: "written".to_owned(),
            plan: serde_json::from_value(plan(1.0)).unwrap(),
            manifest: "kind: Pod\n".to_owned(),
            calls: vec![json!({"method": "Version"}), json!({"method": "Status"})],
            status: vec![json!({"status": {"phase": "Running"}})],
            history: vec![json!({"t": 0.5, "pod": "default/p", "gone": true})],
            events: vec![json!({"reason": "Started"})],
        };
        let steps = vec![Step { at: 1.25, action: Action::End }];
        let recorded = scenario.recorded_as(
            steps,
            scenario.calls.clone(),
            scenario.status.clone(),
            scenario.history.clone(),
            scenario.events.clone(),
        );
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("written");
        recorded.write(&directory);
        let read = Scenario::read(&directory);
        assert_eq!(json!(read), json!(recorded));
        assert_eq!(json!(read)["plan"], plan(1.25));
    }
}
