//! Reads vectors and judges them: every case is run, and exactly the listed cases may differ.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;

use agent::labels;
use agent::observed::{
    ContainerId, ContainerState, ContainerUser, Exit, NetworkMode, Observed, ObservedContainer,
    ObservedSandbox, ProbeResult, ProbeResults, SandboxId,
};
use agent::pod::Pod;
use jiff::Timestamp;
use serde_json::Value;

/// One line of a vector file.
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) input: Value,
    pub(crate) expected: Value,
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors")
}

fn read(file: &str) -> Vec<Case> {
    let path = directory().join(format!("{file}.jsonl.gz"));
    let packed =
        std::fs::File::open(&path).unwrap_or_else(|e| panic!("opening {}: {e}", path.display()));
    let lines = BufReader::new(flate2::read::GzDecoder::new(packed)).lines();
    lines
        .map(|line| {
            let mut value: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let id = value["id"].as_str().unwrap().to_owned();
            let mut take = |a: &str, b: &str| {
                let key = if value.get(a).is_some() { a } else { b };
                value[key].take()
            };
            let input = take("input", "in");
            Case {
                id,
                input,
                expected: take("expected", "out"),
            }
        })
        .collect()
}

/// The listed differences of a file: case id → reason.
fn listed(file: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(directory().join("differences.tsv")).unwrap();
    let rows = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.filter_map(|row| {
        let mut cells = row.splitn(3, '\t');
        let (name, id, reason) = (cells.next()?, cells.next()?, cells.next()?);
        assert!(
            !reason.trim().is_empty(),
            "differences.tsv: {id} has no reason"
        );
        (name == file).then(|| (id.to_owned(), reason.to_owned()))
    })
    .collect()
}

/// Runs every case of `file`. Fails if an unlisted case differs, if a listed case agrees, or if a listed case does not
/// exist.
pub(crate) fn check(file: &str, judge: impl Fn(&Case) -> Result<(), String>) {
    check_within(file, |_| true, judge);
}

/// The same for the cases whose features crib has; the printed share counts only these.
pub(crate) fn check_within(
    file: &str,
    in_scope: impl Fn(&Case) -> bool,
    judge: impl Fn(&Case) -> Result<(), String>,
) {
    let all = read(file);
    let total = all.len();
    let cases: Vec<Case> = all.into_iter().filter(in_scope).collect();
    assert!(!cases.is_empty(), "{file} has no cases");
    let mut listed = listed(file);
    let (mut agree, mut unlisted, mut outdated) = (0, Vec::new(), Vec::new());
    for case in &cases {
        let known = listed.remove(&case.id).is_some();
        match (judge(case), known) {
            (Ok(()), false) => agree += 1,
            (Ok(()), true) => outdated.push(case.id.clone()),
            (Err(_), true) => {}
            (Err(difference), false) => unlisted.push((case.id.clone(), difference)),
        }
    }
    let share = 100.0 * f64::from(agree) / cases.len() as f64;
    let (judged, more) = (cases.len(), scope(cases.len(), total));
    // The test runner does not capture this, unlike `eprintln!`, so the share is always visible.
    writeln!(
        std::io::stderr().lock(),
        "{file}: {agree} of {judged} cases agree ({share:.1} %){more}"
    )
    .unwrap();
    if let Some(path) = std::env::var_os("CRIB_VECTORS_REPORT") {
        let mut report = std::fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        for (id, difference) in &unlisted {
            writeln!(
                report,
                "{file}\t{id}\t{}",
                difference.replace(['\n', '\t'], " ")
            )
            .unwrap();
        }
    }
    let shown: Vec<String> = unlisted
        .iter()
        .take(8)
        .map(|(id, why)| format!("{id}: {why}"))
        .collect();
    assert!(
        unlisted.is_empty(),
        "{file}: {} unlisted differences, first:\n{}",
        unlisted.len(),
        shown.join("\n")
    );
    assert!(
        outdated.is_empty(),
        "{file}: listed as different, but agree: {outdated:?}"
    );
    assert!(
        listed.is_empty(),
        "{file}: listed, but no such case: {listed:?}"
    );
}

/// `Ok` if equal; otherwise both sides.
pub(crate) fn same(what: &str, ours: &Value, theirs: &Value) -> Result<(), String> {
    if ours == theirs {
        Ok(())
    } else {
        Err(format!("{what}: ours {ours}, expected {theirs}"))
    }
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(crate) fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

pub(crate) fn pod(value: &Value) -> Pod {
    Pod::new(serde_json::from_value(value.clone()).unwrap())
}

/// The `runtime` and `probes` members of an input.
pub(crate) fn observed(pod: &Pod, input: &Value, at: Timestamp) -> Observed {
    let runtime = &input["runtime"];
    Observed {
        at,
        runtime_name: "containerd".to_owned(),
        sandboxes: list(&runtime["sandboxes"]).iter().map(sandbox).collect(),
        containers: list(&runtime["containers"])
            .iter()
            .map(|seen| container(pod, seen, time))
            .collect(),
        probes: input["probes"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(id, seen)| (ContainerId::new(id), probes(seen)))
            .collect(),
    }
}

fn sandbox(seen: &Value) -> ObservedSandbox {
    ObservedSandbox {
        id: SandboxId::new(text(&seen["id"])),
        ready: seen["state"] == "ready",
        attempt: u32::try_from(seen["attempt"].as_u64().unwrap()).unwrap(),
        created_at: time(&seen["createdAt"]),
        network: if seen["network"] == "node" {
            NetworkMode::Node
        } else {
            NetworkMode::Pod
        },
        ips: seen.get("ip").map(|ip| {
            let further = list(&seen["additionalIps"]).iter();
            std::iter::once(ip)
                .chain(further)
                .map(|ip| text(ip).to_owned())
                .collect()
        }),
    }
}

/// Reads one container; `time` parses the file's time format.
pub(crate) fn container(
    pod: &Pod,
    seen: &Value,
    time: impl Fn(&Value) -> Timestamp,
) -> ObservedContainer {
    let name = text(&seen["name"]).to_owned();
    let started_at = seen.get("startedAt").map(&time);
    let state = match text(&seen["state"]) {
        "created" => ContainerState::Created,
        "running" => ContainerState::Running {
            started_at: started_at.unwrap(),
        },
        "exited" => ContainerState::Exited(Exit {
            code: i32::try_from(seen["exitCode"].as_i64().unwrap()).unwrap(),
            reason: text(&seen["reason"]).to_owned(),
            message: text(&seen["message"]).to_owned(),
            started_at,
            finished_at: time(&seen["finishedAt"]),
        }),
        "unknown" => ContainerState::Unknown,
        other => panic!("container state {other}"),
    };
    let hash = match pod.container(&name) {
        Some((_, spec)) if seen["hashMatches"] != false => labels::container_hash(spec),
        Some(_) | None => "0".to_owned(),
    };
    ObservedContainer {
        id: ContainerId::new(text(&seen["id"])),
        name,
        sandbox_id: SandboxId::new(text(&seen["sandboxId"])),
        state,
        created_at: time(&seen["createdAt"]),
        restart_count: u32::try_from(seen["restartCount"].as_u64().unwrap_or_default()).unwrap(),
        image: text(&seen["image"]).to_owned(),
        image_ref: text(&seen["imageRef"]).to_owned(),
        hash,
        log_path: None,
        user: seen.get("user").map(|user| ContainerUser {
            uid: user["uid"].as_i64().unwrap_or_default(),
            gid: user["gid"].as_i64().unwrap_or_default(),
            supplemental_groups: list(&user["supplementalGroups"])
                .iter()
                .filter_map(Value::as_i64)
                .collect(),
        }),
        mounts: Vec::new(),
    }
}

fn probes(seen: &Value) -> ProbeResults {
    let one = |value: &Value| match value.as_str() {
        None => None,
        Some("success") => Some(ProbeResult::Success),
        Some("failure") => Some(ProbeResult::Failure),
        Some("unknown") => Some(ProbeResult::Unknown),
        Some(other) => panic!("probe result {other}"),
    };
    ProbeResults {
        startup: one(&seen["startup"]),
        liveness: one(&seen["liveness"]),
        readiness: one(&seen["readiness"]),
    }
}

/// Formats seconds as in the files: whole numbers without a fraction.
pub(crate) fn seconds(seconds: f64) -> Value {
    if seconds.fract() == 0.0 {
        serde_json::json!(seconds as i64)
    } else {
        serde_json::json!(seconds)
    }
}

fn scope(judged: usize, total: usize) -> String {
    if judged == total {
        String::new()
    } else {
        format!("; {} more are out of scope", total - judged)
    }
}

pub(crate) fn texts(value: &Value) -> Vec<String> {
    list(value)
        .iter()
        .map(|item| text(item).to_owned())
        .collect()
}
