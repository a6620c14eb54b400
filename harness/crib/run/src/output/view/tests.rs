//! The exact pictures of the live view.
use std::sync::Arc;

use agent::{ContainerPhase, ContainerReport};
use api::pod::{ContainerKind, PodUid};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::PodStatus;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::snapshot::PodEnd;

/// A pod in a phase, without containers.
pub(crate) fn pod(name: &str, phase: &str) -> PodReport {
    PodReport {
        uid: PodUid::new(name),
        namespace: "default".to_owned(),
        name: name.to_owned(),
        status: Arc::new(PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() }),
        published: Default::default(),
        finished: matches!(phase, "Succeeded" | "Failed"),
        removed: false,
        containers: Vec::new(),
    }
}

/// A container in a state, with a reason.
pub(crate) fn container(
    name: &str,
    kind: ContainerKind,
    state: ContainerPhase,
    reason: &str,
) -> ContainerReport {
    ContainerReport {
        name: name.to_owned(),
        kind,
        state,
        reason: reason.to_owned(),
        message: String::new(),
        exit_code: None,
        refused: false,
        ready: state == ContainerPhase::Running,
        restarts: 0,
        image: "crib.local/host".to_owned(),
        container_id: String::new(),
        log_path: None,
        in_hook: None,
        pull: None,
        create: None,
        start: None,
    }
}

/// Reports by uid.
pub(crate) fn reports(pods: Vec<PodReport>) -> Reports {
    pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect()
}

/// The pod in the store after this report.
pub(crate) fn shown_pod(report: &PodReport) -> PodSnapshot {
    let status = |container: &ContainerReport| {
        let state = match container.state {
            ContainerPhase::Waiting => json!({"waiting": {"reason": container.reason}}),
            ContainerPhase::Running => json!({"running": {}}),
            ContainerPhase::Terminated => json!({
                "terminated": {"reason": container.reason, "exitCode": container.exit_code},
            }),
        };
        json!({
            "name": container.name, "ready": container.ready, "restartCount": container.restarts, "state": state,
            "lastState": {"terminated": {"finishedAt": (container.restarts > 0).then_some(START)}},
        })
    };
    let of = |kind: ContainerKind| {
        let containers = report.containers.iter().filter(move |container| container.kind == kind);
        (
            containers.clone().map(|container| json!({"name": container.name})).collect::<Value>(),
            containers.map(status).collect::<Value>(),
        )
    };
    let (init, app) = (of(ContainerKind::Init), of(ContainerKind::App));
    PodSnapshot::of(&json!({
        "metadata": {
            "uid": report.uid.as_str(), "namespace": report.namespace, "name": report.name, "creationTimestamp": START,
        },
        "spec": {"initContainers": init.0, "containers": app.0},
        "status": {
            "phase": report.status.phase, "initContainerStatuses": init.1, "containerStatuses": app.1,
        },
    }))
}

/// The view after these reports.
fn snapshot(reports: &Reports) -> RunSnapshot {
    let pods = reports.values().map(|report| Arc::new(shown_pod(report)));
    RunSnapshot { pods: pods.collect(), ..RunSnapshot::default() }
}

/// The creation time of the pods.
const START: &str = "2026-01-02T03:04:05Z";

/// The current time.
fn now() -> Timestamp {
    START.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(7)
}

fn frame() -> Frame {
    Frame { elapsed: Duration::from_millis(1_234), now: now(), tick: Some(0), colour: false }
}

fn picture(reports: &Reports, size: Size) -> Vec<String> {
    super::picture(&snapshot(reports), reports, frame(), size)
}

const SIZE: Size = Size { columns: 80, rows: 24 };

fn check(reports: &Reports, lines: &[&str]) {
    let drawn = picture(reports, SIZE);
    assert_eq!(drawn, lines, "\n{}", drawn.join("\n"));
}

#[test]
fn view_shows_pending_pod_before_first_report() {
    check(&Reports::default(), &["⠋ starting  1.2s"]);
}

#[test]
fn view_shows_starting_pod() {
    let mut pod = pod("hello", "Pending");
    pod.containers = vec![
        ContainerReport {
            exit_code: Some(0),
            pull: Some(Duration::from_millis(12)),
            create: Some(Duration::from_micros(8_400)),
            start: Some(Duration::from_micros(460)),
            ..container("write", ContainerKind::Init, ContainerPhase::Terminated, "Completed")
        },
        container("read", ContainerKind::Init, ContainerPhase::Running, ""),
        container("server", ContainerKind::App, ContainerPhase::Waiting, "PodInitializing"),
    ];
    check(
        &reports(vec![pod]),
        &[
            "⠋ default/hello  0/1   Init:1/2         7s",
            "  ✓ write        init  Completed        pull 12ms  create 8ms  start 0.4ms",
            "  ● read         init  Running",
            "  ⠋ server       app   PodInitializing",
        ],
    );
}

#[test]
fn view_explains_waiting_reason() {
    let mut crashing = pod("crash", "Running");
    crashing.containers = vec![ContainerReport {
        message: "back-off 10s\nrestarting".to_owned(),
        restarts: 3,
        ..container("main", ContainerKind::App, ContainerPhase::Waiting, "CrashLoopBackOff")
    }];
    let mut failed = pod("failed", "Failed");
    failed.containers = vec![ContainerReport {
        exit_code: Some(7),
        ..container("main", ContainerKind::App, ContainerPhase::Terminated, "Error")
    }];
    let mut pulling = pod("pull", "Pending");
    pulling.containers = vec![ContainerReport {
        message: "Back-off pulling image \"a.example/long/x:1\": ErrImagePull: image a.example/long/x:1 could not be pulled: refused"
            .to_owned(),
        ..container("main", ContainerKind::App, ContainerPhase::Waiting, "ImagePullBackOff")
    }];
    let mut unready = pod("unready", "Running");
    unready.containers = vec![ContainerReport {
        ready: false,
        ..container("main", ContainerKind::App, ContainerPhase::Running, "")
    }];
    check(
        &reports(vec![failed, crashing, pulling, unready]),
        &[
            "! default/crash    0/1  CrashLoopBackOff  restarts 3 (7s ago)  7s",
            "  ! main           app  CrashLoopBackOff  restarts 3  back-off 10s restarting",
            "✗ default/failed   0/1  Error",
            "  ✗ main           app  Error             exit 7",
            "! default/pull     0/1  ImagePullBackOff  7s",
            "  ! main           app  ImagePullBackOff  refused: image a.example/long/x:1",
            "⠋ default/unready  0/1  Running           7s",
            "  ⠋ main           app  NotReady",
        ],
    );
}

#[test]
fn view_tells_pods_that_end_from_those_that_were_stopped_and_removed() {
    let mut stopped = pod("stopped", "Failed");
    stopped.containers = vec![ContainerReport {
        exit_code: Some(143),
        ..container("main", ContainerKind::App, ContainerPhase::Terminated, "Error")
    }];
    let mut ending = pod("ending", "Running");
    ending.containers = vec![container("main", ContainerKind::App, ContainerPhase::Running, "")];
    let until = now() + SignedDuration::from_secs(9);
    let with_end = |report: &PodReport, end| Arc::new(PodSnapshot { end, ..shown_pod(report) });
    let mut snapshot = RunSnapshot {
        pods: vec![with_end(&stopped, PodEnd::Stopped), with_end(&ending, PodEnd::Ending(until))],
        removed: 25,
        next_job: Some(("cronjob default/tick".to_owned(), until)),
    };
    // The store's status of a terminating pod.
    Arc::make_mut(&mut snapshot.pods[1]).summary.status = "Terminating".to_owned();
    let reports = reports(vec![stopped, ending]);
    assert_eq!(
        super::picture(&snapshot, &reports, frame(), SIZE),
        [
            "⠋ default/ending   1/1  Terminating  ends within 9s",
            "  ● main           app  Running",
            "■ default/stopped  0/1  Stopped",
            "  ■ main           app  Error        exit 143",
            "… 25 pods ended and were removed",
            "… cronjob default/tick starts its next Job in 9s",
        ]
    );
    snapshot.pods.clear();
    let waits = super::picture(&snapshot, &reports, frame(), SIZE);
    assert_eq!(waits[0], "⠋ cronjob default/tick starts its next Job in 9s");
    assert_eq!(table(&snapshot, &reports, frame()), ["… 25 pods ended and were removed"]);
}

/// Pods with two containers each; the first pods have finished.
fn many(count: usize, finished: usize) -> Reports {
    let one = |number: usize| {
        let phase = if number < finished { "Succeeded" } else { "Running" };
        let runs = |name| container(name, ContainerKind::App, ContainerPhase::Running, "");
        PodReport {
            containers: vec![runs("main"), runs("side")],
            ..pod(&format!("p{number:02}"), phase)
        }
    };
    reports((0..count).map(one).collect())
}

fn sized(columns: usize, rows: usize) -> Size {
    Size { columns, rows }
}

#[test]
fn picture_shows_containers_of_as_many_pods_as_fit() {
    let lines = picture(&many(15, 5), sized(120, 40));
    assert_eq!(lines.len(), 15 + 24, "{lines:#?}");
    let at = |name| lines.iter().position(|line| line.contains(name)).unwrap();
    // Running pods come first.
    assert!(!lines[at("p04") + 1].contains("main"), "{lines:#?}");
    let at = at("p05");
    assert!(lines[at + 1].starts_with("  ● main"), "{lines:#?}");
    assert_eq!(picture(&many(13, 0), sized(120, 40)).len(), 39);
}

#[test]
fn picture_counts_pods_that_do_not_fit() {
    let lines = picture(&many(15, 10), sized(40, 10));
    assert_eq!(lines.len(), 9, "{lines:#?}");
    let running = lines.iter().filter(|line| line.contains("Running"));
    assert_eq!(running.count(), 5, "{lines:#?}");
    assert_eq!(lines[8], "… and 7 more: 7 Succeeded");
}

#[test]
fn picture_never_exceeds_the_terminal() {
    let mut long = pod("a-name-as-long-as-those-that-controllers-give-x7k2p", "Pending");
    long.containers = vec![ContainerReport {
        message: "a message\nof \x1b[2Jseveral words ".repeat(9),
        ..container("main", ContainerKind::App, ContainerPhase::Waiting, "CrashLoopBackOff")
    }];
    let mut all = many(9, 3);
    all.insert_mut(long.uid.clone(), long);
    for columns in 20..130 {
        for rows in 1..40 {
            let lines = picture(&all, sized(columns, rows));
            assert!(lines.len() < rows.max(2), "{columns}x{rows}: {lines:#?}");
            for line in &lines {
                assert!(line.chars().count() <= columns, "{columns}x{rows}: {line:?}");
                assert!(!line.contains(char::is_control), "{line:?}");
            }
        }
    }
}

#[test]
fn picture_shortens_names_so_that_states_are_seen() {
    let long = pod("a-name-as-long-as-those-that-controllers-give-x7k2p", "Pending");
    let seen = picture(&reports(vec![long]), sized(40, 10));
    assert_eq!(seen, ["⠋ default/a-…-give-x7k2p  0/0  Pending …"]);
}

#[test]
fn table_has_every_container() {
    let many = many(30, 30);
    assert_eq!(table(&snapshot(&many), &many, frame()).len(), 90);
}

#[test]
fn view_colours_marks_when_enabled() {
    let reports = reports(vec![pod("a", "Failed")]);
    let lines = table(&snapshot(&reports), &reports, Frame { colour: true, ..frame() });
    assert_eq!(lines, ["\u{1b}[31m✗\u{1b}[0m default/a  0/0  Failed"]);
}

#[rstest]
#[case(Duration::from_micros(460), "0.4ms")]
#[case(Duration::from_micros(1_000), "1ms")]
#[case(Duration::from_millis(999), "999ms")]
#[case(Duration::from_millis(1_250), "1.2s")]
#[case(Duration::from_secs(59), "59.0s")]
#[case(Duration::from_secs(184), "3m04s")]
#[case(Duration::from_secs(7_500), "2h05m")]
fn view_formats_durations(#[case] value: Duration, #[case] text: &str) {
    assert_eq!(duration(value), text);
}
