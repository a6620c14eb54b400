//! The exact objects: other programs read them.
use std::time::Duration;

use agent::ContainerPhase;
use api::pod::ContainerKind;
use api::pod::PodUid;
use cluster::controllers::job::JobCounts;
use cluster::controllers::owned::Reason;
use harness::cri_log::Stream;

use super::*;
use crate::output::view::tests::{container as a_container, pod as a_pod, reports};

fn check(line: &str, wanted: serde_json::Value) {
    assert_eq!(line.matches('\n').count(), 1);
    assert_eq!(serde_json::from_str::<serde_json::Value>(line).unwrap(), wanted);
}

#[test]
fn transition_is_one_json_object() {
    let change = Transition {
        at: "2026-01-02T03:04:05.5Z".parse().unwrap(),
        pod: "default/p".to_owned(),
        uid: PodUid::new("u"),
        container: Some("c".to_owned()),
        from: "Running".to_owned(),
        to: "Terminated(Error)".to_owned(),
        cause: "exited".to_owned(),
        exit_code: Some(3),
    };
    check(
        &transition(&change),
        serde_json::json!({
            "type": "transition", "time": "2026-01-02T03:04:05.5Z", "pod": "default/p", "uid": "u", "container": "c",
            "from": "Running", "to": "Terminated(Error)", "cause": "exited", "exit_code": 3,
        }),
    );
    let change = Transition { container: None, exit_code: None, ..change };
    let line = transition(&change);
    assert!(!line.contains("container") && !line.contains("exit_code"), "{line}");
}

#[test]
fn readiness_is_one_json_object() {
    let change = ReadinessChange {
        at: "2026-01-02T03:04:05Z".parse().unwrap(),
        pod: "default/p".to_owned(),
        uid: PodUid::new("u"),
        container: "c".to_owned(),
        ready: true,
    };
    check(
        &readiness(&change),
        serde_json::json!({
            "type": "readiness", "time": "2026-01-02T03:04:05Z", "pod": "default/p", "uid": "u", "container": "c", "ready": true,
        }),
    );
}

#[test]
fn event_is_one_json_object() {
    let at = "2026-01-02T03:04:05Z".parse().unwrap();
    let happened = Event {
        object: agent::EventObject {
            kind: agent::EventObjectKind::Pod,
            uid: PodUid::new("u"),
            namespace: "default".to_owned(),
            name: "p".to_owned(),
            field_path: "spec.containers{c}".to_owned(),
        },
        kind: agent::EventType::Warning,
        reason: "Unhealthy".to_owned(),
        message: "Liveness probe failed".to_owned(),
        annotations: std::collections::BTreeMap::new(),
        count: 2,
        first_at: at,
        last_at: at,
    };
    check(
        &event(&happened),
        serde_json::json!({
            "type": "event", "time": "2026-01-02T03:04:05Z", "pod": "default/p", "uid": "u", "container": "c", "kind": "Warning",
            "reason": "Unhealthy", "message": "Liveness probe failed", "count": 2,
        }),
    );
    let of_pod = Event {
        object: agent::EventObject { field_path: String::new(), ..happened.object.clone() },
        ..happened
    };
    assert!(!event(&of_pod).contains("container"));
}

#[test]
fn log_line_is_one_json_object() {
    let label = Label { pod: "default/p".to_owned(), container: "c".to_owned() };
    let line = Line {
        time: "2026-01-02T03:04:05Z".to_owned(),
        stream: Stream::Stderr,
        text: "a \"b\"\u{1b}".to_owned(),
    };
    check(
        &log(&label, &line),
        serde_json::json!({
            "type": "log", "time": "2026-01-02T03:04:05Z", "pod": "default/p", "container": "c", "stream": "stderr",
            "text": "a \"b\"\u{1b}",
        }),
    );
}

#[test]
fn result_is_one_json_object() {
    let mut pod = a_pod("p", "Failed");
    pod.containers = vec![ContainerReport {
        exit_code: Some(1),
        restarts: 2,
        start: Some(Duration::from_millis(500)),
        ..a_container("c", ContainerKind::App, ContainerPhase::Terminated, "Error")
    }];
    check(
        &result(Exit::PodFailed, &reports(vec![pod]), &[]),
        serde_json::json!({
            "type": "result", "exit_code": 1,
            "pods": [{
                "pod": "default/p", "uid": "p", "phase": "Failed", "conditions": [],
                "containers": [{
                    "name": "c", "state": "Terminated", "reason": "Error", "exit_code": 1, "ready": false, "restarts": 2, "start_seconds": 0.5,
                }],
            }],
        }),
    );
}

/// The state's message is about the back-off; the termination message is about the run.
#[test]
fn result_has_termination_message_of_a_container_that_waits() {
    let mut pod = a_pod("p", "Running");
    let status = std::sync::Arc::make_mut(&mut pod.status);
    status.container_statuses = serde_json::from_value(serde_json::json!([{
        "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 3, "message": "no database"}},
    }]))
    .unwrap();
    pod.containers = vec![ContainerReport {
        exit_code: Some(3),
        ..a_container("c", ContainerKind::App, ContainerPhase::Waiting, "CrashLoopBackOff")
    }];
    let line = result(Exit::TimedOut, &reports(vec![pod]), &[]);
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let container = &line["pods"][0]["containers"][0];
    assert_eq!(container["termination_message"], "no database");
    assert_eq!(container["exit_code"], 3);
}

#[test]
fn result_names_jobs_and_their_outcome() {
    let job = JobResult {
        job: "default/backup".to_owned(),
        state: "Failed",
        reason: Some(Reason::new("DeadlineExceeded", "too late")),
        counts: JobCounts { succeeded: 1, failed: 2 },
    };
    check(
        &result(Exit::PodFailed, &reports(vec![]), &[job]),
        serde_json::json!({
            "type": "result", "exit_code": 1, "pods": [],
            "jobs": [{
                "job": "default/backup", "state": "Failed", "reason": "DeadlineExceeded", "message": "too late",
                "succeeded": 1, "failed": 2,
            }],
        }),
    );
}
