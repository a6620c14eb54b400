//! A recorded scenario: what was done, what the kubelet called, and what it reported.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::timeline::{Note, Step, is_removal, step};

/// Where the kubelet had its pods from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A directory of manifests.
    Static,
    /// An API server.
    Api,
}

/// The files of a scenario; the form of a sample's line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    notes: String,
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
    /// Reads the files of a directory.
    pub(crate) fn read(directory: &Path) -> Self {
        let name = directory.file_name().unwrap().to_str().unwrap().to_owned();
        let text = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_default();
        let list = |file: &str| serde_json::from_str(&text(file)).unwrap_or_default();
        let lines = |file: &str| {
            let text = text(file);
            let lines = text.lines().map(serde_json::from_str);
            lines.collect::<Result<_, _>>().unwrap()
        };
        Self {
            name,
            notes: text("notes.txt"),
            manifest: text("manifest.yaml"),
            calls: lines("trace.jsonl"),
            status: list("status.json"),
            history: lines("status_history.jsonl"),
            events: list("events.json"),
        }
    }

    /// The same scenario as another run of it was recorded.
    pub(crate) fn recorded_as(
        &self,
        notes: &[Note],
        calls: Vec<Value>,
        status: Vec<Value>,
        history: Vec<Value>,
        events: Vec<Value>,
    ) -> Self {
        let lines = notes
            .iter()
            .map(|note| format!("t={:.3}s {}\n", note.at, note.text));
        Self {
            name: self.name.clone(),
            notes: format!("{}\n{}", self.about(), lines.collect::<String>()),
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
            ("notes.txt", self.notes.clone()),
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

    /// Without what is not compared.
    pub(crate) fn reduced(mut self) -> Self {
        let present = self.images_present();
        let mut asked = Vec::new();
        self.calls.retain_mut(|call| {
            let method = method(call).to_owned();
            let image = image_of(call).to_owned();
            // Of ImageStatus, the first answer for an image that was present.
            let asks = method == "ImageStatus"
                && present.contains(&image)
                && !asked.contains(&image)
                && { asked.push(image); true };
            let addresses = method == "PodSandboxStatus" && call.pointer("/response/status/network/ip").is_some();
            if asks {
                let image = &call["response"]["image"];
                let (tags, uid, name) = (&image["repo_tags"], &image["uid"], &image["username"]);
                call["response"] = serde_json::json!({
                    "image": {"id": "present", "repo_tags": tags, "uid": uid, "username": name},
                });
            } else if addresses {
                let id = call["request"]["pod_sandbox_id"].clone();
                let again = asked.contains(&id.to_string());
                asked.push(id.to_string());
                call["response"] = serde_json::json!({"status": {"network": call["response"]["status"]["network"]}});
                return !again;
            }
            asks || COMPARED.contains(&method.as_str())
        });
        // Statuses after the removal are not compared.
        let end = self.removed_at();
        self.history
            .retain(|entry| entry["t"].as_f64() <= Some(end + 0.05));
        self
    }

    /// The same scenario with another text in the place of one, wherever it is.
    pub(crate) fn replaced(&self, text: &str, other: &str) -> Self {
        let all = serde_json::to_string(self).unwrap();
        serde_json::from_str(&all.replace(text, other)).unwrap()
    }

    /// The first line of the notes, which says what the scenario is about.
    pub(crate) fn about(&self) -> &str {
        self.notes.lines().next().unwrap_or_default()
    }

    pub(crate) fn mode(&self) -> Mode {
        match self.about().contains("mode api") {
            true => Mode::Api,
            false => Mode::Static,
        }
    }

    /// Whether pods had cgroups below those of their QoS classes.
    pub(crate) fn has_pod_cgroups(&self) -> bool {
        let settings = ["cgroupsPerQOS true", "pod cgroups true"];
        settings.iter().any(|it| self.about().contains(it))
    }

    /// What was done, in order.
    pub(crate) fn notes(&self) -> Vec<Note> {
        let lines = self.notes.lines().skip(1);
        // Another line goes on with what was said before.
        lines
            .filter_map(|line| {
                let (at, text) = line.strip_prefix("t=")?.split_once("s ")?;
                let at = at.parse().ok()?;
                let text = text.trim().to_owned();
                Some(Note { at, text })
            })
            .collect()
    }

    /// The clock at the scenario's zero, from the first line of the notes.
    pub(crate) fn zero(&self) -> Option<Timestamp> {
        let (_, rest) = self.about().split_once("t=0 is ")?;
        rest.split([';', ']']).next()?.trim().parse().ok()
    }

    /// When the recording window ended.
    pub(crate) fn end(&self) -> f64 {
        self.notes().last().map_or(0.0, |note| note.at)
    }

    /// When the pods were taken from the kubelet.
    pub(crate) fn removed_at(&self) -> f64 {
        let notes = self.notes();
        let found = notes.iter().rev().find(|note| is_removal(note));
        let deleted = |note: &&Note| matches!(step(note), Some(Step::Delete(_)));
        let found = found.or_else(|| notes.iter().rev().find(deleted));
        found.map_or_else(|| self.end(), |note| note.at)
    }

    /// The documents of the manifest, each with a flag: whether it replaces an earlier one.
    pub(crate) fn documents(&self) -> Vec<(bool, String)> {
        let mut documents = vec![String::new()];
        for line in self.manifest.lines() {
            if line == "---" {
                documents.push(String::new());
            } else if let Some(last) = documents.last_mut() {
                last.push_str(line);
                last.push('\n');
            }
        }
        let replaces = |text: &String| text.starts_with("# replaces");
        documents
            .into_iter()
            .map(|text| (replaces(&text), text))
            .collect()
    }

    /// The images that were present in the runtime when the scenario began: those that the first ImageStatus found.
    pub(crate) fn images_present(&self) -> Vec<String> {
        let mut first: Vec<(String, bool)> = Vec::new();
        for call in self
            .calls
            .iter()
            .filter(|call| method(call) == "ImageStatus")
        {
            let image = image_of(call).to_owned();
            if first.iter().all(|(known, _)| *known != image) {
                first.push((image, call.pointer("/response/image").is_some()));
            }
        }
        let present = first.into_iter().filter(|(_, present)| *present);
        present.map(|(image, _)| image).collect()
    }

    /// The statuses of a pod until its last one, an entry of `status.json`.
    pub(crate) fn history_of(&self, last: &Value) -> Vec<Value> {
        let metadata = &last["metadata"];
        let is_own = |entry: &&Value| entry["metadata"]["uid"] == metadata["uid"];
        // An API server's object has a status before the kubelet has given it one, and gets others when it is deleted.
        let deleted = |entry: &Value| entry["metadata"]["deletionTimestamp"].is_string();
        let is_of_kubelet = |entry: &&Value| {
            entry["status"]["conditions"].is_array() && (deleted(last) || !deleted(entry))
        };
        let own = self.history.iter().filter(is_own).filter(is_of_kubelet);
        let mut own: Vec<Value> = own.cloned().collect();
        if own
            .last()
            .is_none_or(|entry| entry["status"] != last["status"])
        {
            let mut entry = last.clone();
            entry["t"] = serde_json::json!(self.removed_at());
            own.push(entry);
        }
        own
    }

    /// The calls of a name.
    pub(crate) fn calls_of(&self, name: &'static str) -> impl DoubleEndedIterator<Item = &Value> {
        self.calls.iter().filter(move |call| method(call) == name)
    }

    /// The latest status of each pod at a time.
    pub(crate) fn statuses_at(&self, at: f64) -> Vec<Value> {
        let mut latest: Vec<Value> = Vec::new();
        // Notes have a resolution of 0.1 s.
        for entry in self
            .history
            .iter()
            .filter(|entry| entry["t"].as_f64().unwrap() <= at + 0.05)
        {
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

    #[test]
    fn written_scenario_is_read_back() {
        let scenario = Scenario {
            name: "written".to_owned(),
            notes: "A pod. [mode static]\n".to_owned(),
            manifest: "kind: Pod\n".to_owned(),
            calls: vec![json!({"method": "Version"}), json!({"method": "Status"})],
            status: vec![json!({"status": {"phase": "Running"}})],
            history: vec![json!({"t": 0.5, "pod": "default/p", "gone": true})],
            events: vec![json!({"reason": "Started"})],
        };
        let notes = [Note {
            at: 1.25,
            text: "manifest dropped".to_owned(),
        }];
        let recorded = scenario.recorded_as(
            &notes,
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
        assert_eq!(read.notes(), notes);
    }
}
