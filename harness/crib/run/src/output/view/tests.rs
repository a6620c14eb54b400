//! Pictures of the live view, written out.
use std::sync::Arc;

use agent::{ContainerPhase, ContainerReport};
use api::pod::{ContainerKind, PodUid};
use k8s_openapi::api::core::v1::PodStatus;
use rstest::rstest;

use super::*;

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

/// A container in a state with a reason.
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
        ready: false,
        restarts: 0,
        image: "crib.local/host".to_owned(),
        container_id: String::new(),
        log_path: None,
        pull: None,
        create: None,
        start: None,
    }
}

/// Reports by uid.
pub(crate) fn reports(pods: Vec<PodReport>) -> Reports {
    pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect()
}

const FRAME: Frame = Frame { elapsed: Duration::from_millis(1_234), tick: Some(0), colour: false };

const SIZE: Size = Size { columns: 80, rows: 24 };

fn check(reports: &Reports, lines: &[&str]) {
    let drawn = picture(reports, FRAME, SIZE);
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
            "⠋ default/hello        Pending          1.2s",
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
    check(
        &reports(vec![failed, crashing]),
        &[
            "● default/crash        Running           1.2s",
            "  ! main          app  CrashLoopBackOff  restarts 3  back-off 10s restarting",
            "✗ default/failed       Failed",
            "  ✗ main          app  Error             exit 7",
        ],
    );
}

/// Pods with two containers each, of which the first ones have finished.
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
    let lines = picture(&many(15, 5), FRAME, sized(120, 40));
    assert_eq!(lines.len(), 15 + 24, "{lines:#?}");
    let at = |name| lines.iter().position(|line| line.contains(name)).unwrap();
    // Those that run come first.
    assert!(lines[at("p04")].ends_with("2/2 containers"), "{lines:#?}");
    let at = at("p05");
    assert!(lines[at + 1].starts_with("  ● main"), "{lines:#?}");
    assert_eq!(picture(&many(13, 0), FRAME, sized(120, 40)).len(), 39);
}

#[test]
fn picture_counts_pods_that_do_not_fit() {
    let lines = picture(&many(15, 10), FRAME, sized(40, 10));
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
            let lines = picture(&all, FRAME, sized(columns, rows));
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
    let seen = picture(&reports(vec![long]), FRAME, sized(40, 10));
    assert_eq!(seen, ["⠋ default/a-nam…rs-give-x7k2p  Pending …"]);
}

#[test]
fn table_has_every_container() {
    let table = table(&many(30, 30), FRAME);
    assert_eq!(table.len(), 90);
}

#[test]
fn view_colours_marks_when_enabled() {
    let frame = Frame { colour: true, ..FRAME };
    let lines = table(&reports(vec![pod("a", "Failed")]), frame);
    assert_eq!(lines, ["\u{1b}[31m✗\u{1b}[0m default/a    Failed"]);
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
