//! static-pod-dirs: a kubelet's updates from a directory or a file of manifests as it changes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use agent::source::ManifestMode;
use agent::source::files::{Changed, ManifestFiles};
use agent::source::merge::{SourceKind, SourcePods};
use api::pod::Pod;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::judge::Set;
use crate::read::{self, Case};

pub(crate) const SET: Set =
    Set::new("static-pod-dirs", "pod updates from a static pod directory or file over time", judge);

fn judge(case: &Case) -> Result<(), String> {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("manifests");
    let node_name = read::text(&case.input["nodeName"]).to_owned();
    let path = if case.input["single_file"] == true { dir.join("only.yaml") } else { dir.clone() };
    let mut files =
        ManifestFiles::new(path.clone(), ManifestMode::Kubelet { node_name, may_refer: false });
    let mut source = SourcePods::default();
    let mut tokens = BTreeMap::new();
    let expected = read::list(&case.expected["steps"]);
    let steps = read::list(&case.input["steps"]).iter().zip(expected);
    for (index, (operations, expected)) in steps.enumerate() {
        for operation in read::list(operations) {
            apply(&dir, root.path(), operation);
        }
        let listed = files.list(&Changed::Unknown, Timestamp::now());
        // A missing path is an error that empties the source.
        let missing = expected["error"] == "path does not exist, ignoring";
        let failed = expected["error"].is_string() && !missing;
        if failed != listed.is_err() {
            return Err(format!("step {index}: {listed:?}, expected {expected}"));
        }
        let updates = match listed {
            Ok(pods) => source.merge(SourceKind::File, pods, Timestamp::now()).0,
            Err(_) => Vec::new(),
        };
        let ours: Vec<Value> = updates
            .iter()
            .map(|update| {
                let mut pods: Vec<&Pod> = update.pods.iter().collect();
                pods.sort_by_key(|pod| pod.full_name());
                let pods: Vec<Value> = pods.iter().map(|pod| show(pod, &mut tokens)).collect();
                json!({"op": update.op.to_string(), "pods": pods})
            })
            .collect();
        read::same(&format!("step {index}"), &json!(ours), &expected["updates"])?;
    }
    Ok(())
}

fn apply(dir: &Path, root: &Path, operation: &Value) {
    let name = |key: &str| operation[key].as_str().map(|name| dir.join(name));
    fs::create_dir_all(dir).unwrap();
    let gone = |path: &Path| {
        let _ = fs::remove_file(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).unwrap();
        }
    };
    if let Some(path) = name("write") {
        if path.exists() && !path.is_file() {
            gone(&path);
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, read::text(&operation["content"])).unwrap();
    } else if let Some(path) = name("delete") {
        let _ = fs::remove_file(path);
    } else if let (Some(from), Some(to)) = (name("rename"), name("to")) {
        let _ = fs::rename(from, to);
    } else if let Some(path) = name("symlink") {
        gone(&path);
        let target = root.join(format!("target-{}", path.file_name().unwrap().display()));
        match operation["target_content"].as_str() {
            Some(content) => {
                fs::write(&target, content).unwrap();
                symlink(target, path).unwrap();
            }
            None => symlink(root.join("nowhere"), path).unwrap(),
        }
    } else if let Some(path) = name("fifo") {
        gone(&path);
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    } else {
        panic!("operation {operation}");
    }
}

fn show(pod: &Pod, tokens: &mut BTreeMap<String, String>) -> Value {
    let next = format!("u{}", tokens.len() + 1);
    let uid = tokens.entry(pod.uid().to_string()).or_insert(next);
    let source = pod.annotations().find(|(key, _)| *key == "kubernetes.io/config.source");
    json!({
        "namespace": pod.namespace(),
        "name": pod.name(),
        "uid": uid,
        "image": pod.containers()[0].image,
        "source": source.map(|(_, source)| source),
    })
}
