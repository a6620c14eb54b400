//! Pictures of the live view, written out.
#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::PodStatus;
use rstest::rstest;

use super::*;
use agent::pod::PodUid;

/// A pod in a phase, without containers.
pub(crate) fn pod(name: &str, phase: &str) -> PodReport {
    PodReport {
        uid: PodUid::new(name),
        namespace: "default".to_owned(),
        name: name.to_owned(),
        status: PodStatus {
            phase: Some(phase.to_owned()),
            ..PodStatus::default()
        },
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

const FRAME: Frame = Frame {
    elapsed: Duration::from_millis(1_234),
    tick: Some(0),
    colour: false,
};

fn check(reports: &Reports, picture: &[&str]) {
    assert_eq!(
        render(reports, FRAME),
        picture,
        "\n{}",
        render(reports, FRAME).join("\n")
    );
}

#[test]
fn view_shows_pending_pod_before_first_report() {
    check(&Reports::new(), &["⠋ starting  1.2s"]);
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
            ..container(
                "write",
                ContainerKind::Init,
                ContainerPhase::Terminated,
                "Completed",
            )
        },
        container("read", ContainerKind::Init, ContainerPhase::Running, ""),
        container(
            "server",
            ContainerKind::App,
            ContainerPhase::Waiting,
            "PodInitializing",
        ),
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
        ..container(
            "main",
            ContainerKind::App,
            ContainerPhase::Waiting,
            "CrashLoopBackOff",
        )
    }];
    let mut failed = pod("failed", "Failed");
    failed.containers = vec![ContainerReport {
        exit_code: Some(7),
        ..container(
            "main",
            ContainerKind::App,
            ContainerPhase::Terminated,
            "Error",
        )
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

#[test]
fn view_shrinks_to_terminal_height() {
    let many = |count: usize, finished: usize| {
        let one = |number: usize| PodReport {
            containers: vec![container(
                "main",
                ContainerKind::App,
                ContainerPhase::Running,
                "",
            )],
            ..pod(
                &format!("p{number:02}"),
                if number < finished {
                    "Succeeded"
                } else {
                    "Running"
                },
            )
        };
        render(&reports((0..count).map(one).collect()), FRAME)
    };
    assert_eq!(many(12, 0).len(), 24);
    assert_eq!(many(13, 0).len(), 13);
    let lines = many(30, 10);
    assert_eq!(lines.len(), LINES + 1);
    assert_eq!(lines.last().unwrap(), "  … and 6 more pods");
    assert_eq!(
        lines.iter().filter(|line| line.contains("Running")).count(),
        20,
        "{lines:?}"
    );
}

#[test]
fn view_colours_marks_when_enabled() {
    let frame = Frame {
        colour: true,
        ..FRAME
    };
    let lines = render(&reports(vec![pod("a", "Failed")]), frame);
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
