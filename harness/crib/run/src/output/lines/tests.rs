//! The exact lines.
use std::sync::Arc;

use agent::ContainerReport;
use api::pod::ContainerKind;
use api::pod::PodUid;
use harness::cri_log::Stream;
use rstest::rstest;

use super::*;
use crate::output::view::tests::{container, pod, reports};

fn label(pod: &str, container: &str) -> Label {
    Label { pod: pod.to_owned(), container: container.to_owned() }
}

fn line(text: &str) -> Line {
    Line { time: String::new(), stream: Stream::Stdout, text: text.to_owned() }
}

#[test]
fn prefixes_are_aligned_and_omit_single_namespace() {
    let (a, b) = (label("default/p", "main"), label("default/p", "sidecar"));
    let prefixes = Prefixes::new(&[a.clone(), b.clone()], false, false);
    assert_eq!(prefixes.line(&a, &line("x")), "p/main    | x\n");
    assert_eq!(prefixes.line(&b, &line("")), "p/sidecar | \n");
    // Containers of pods that were created later.
    let later = |pod: &str| prefixes.line(&label(pod, "c"), &line("x"));
    assert_eq!(later("n/q"), "n/q/c     | x\n");
    assert_eq!(later("default/q"), "q/c       | x\n");
}

#[test]
fn prefixes_show_namespace_when_pods_have_several() {
    let (a, b) = (label("default/p", "main"), label("other/p", "main"));
    let prefixes = Prefixes::new(&[a.clone(), b.clone()], false, false);
    assert_eq!(prefixes.line(&a, &line("x")), "default/p/main | x\n");
    assert_eq!(prefixes.line(&b, &line("x")), "other/p/main   | x\n");
}

#[test]
fn prefix_colours_differ_and_are_reset() {
    let (a, b) = (label("default/p", "a"), label("default/p", "b"));
    let prefixes = Prefixes::new(&[a.clone(), b.clone()], true, false);
    assert_eq!(prefixes.line(&a, &line("x")), "\u{1b}[36mp/a |\u{1b}[0m x\n");
    assert_eq!(
        prefixes.line(&b, &line("\u{1b}[31mred")),
        "\u{1b}[33mp/b |\u{1b}[0m \u{1b}[31mred\u{1b}[0m\n"
    );
}

#[rstest]
#[case(
    Some("c"),
    "Running",
    "Terminated(Error)",
    "exited",
    Some(3),
    "default/p c: Running → Terminated(Error), exit 3 (exited)"
)]
#[case(
    Some("c"),
    "Running",
    "Waiting(CrashLoopBackOff)",
    "back-off 10s",
    None,
    "default/p c: Running → Waiting(CrashLoopBackOff)"
)]
#[case(None, "Pending", "Running", "", None, "default/p: Pending → Running")]
fn transition_line_names_pod_container_and_state(
    #[case] container: Option<&str>,
    #[case] from: &str,
    #[case] to: &str,
    #[case] cause: &str,
    #[case] exit_code: Option<i32>,
    #[case] text: &str,
) {
    let change = Transition {
        at: "2026-01-02T03:04:05Z".parse().unwrap(),
        pod: "default/p".to_owned(),
        uid: PodUid::new("u"),
        container: container.map(str::to_owned),
        from: from.to_owned(),
        to: to.to_owned(),
        cause: cause.to_owned(),
        exit_code,
    };
    assert_eq!(transition(&change), text);
}

#[test]
fn summary_explains_failed_pods_only() {
    let mut bad = pod("bad", "Failed");
    bad.containers = vec![
        ContainerReport {
            exit_code: Some(0),
            ..container("good", ContainerKind::App, ContainerPhase::Terminated, "Completed")
        },
        ContainerReport {
            exit_code: Some(127),
            message: "no such file: /bin/nothing\n".to_owned(),
            ..container("worse", ContainerKind::App, ContainerPhase::Terminated, "StartError")
        },
        container("never", ContainerKind::App, ContainerPhase::Waiting, "PodInitializing"),
    ];
    let mut evicted = pod("evicted", "Failed");
    Arc::make_mut(&mut evicted.status).reason = Some("Evicted".to_owned());
    let text = "Usage of EmptyDir volume \"v\" exceeds the limit \"20Mi\". ";
    Arc::make_mut(&mut evicted.status).message = Some(text.to_owned());
    evicted.containers = vec![ContainerReport {
        exit_code: Some(137),
        ..container("c", ContainerKind::App, ContainerPhase::Terminated, "Error")
    }];
    let all = reports(vec![pod("fine", "Succeeded"), evicted, bad]);
    assert_eq!(
        failures(all.values()),
        [
            "pod default/bad failed: container worse ended with exit code 127 (StartError: no such file: /bin/nothing)",
            "pod default/evicted failed: Evicted: Usage of EmptyDir volume \"v\" exceeds the limit \"20Mi\", container c ended with exit \
             code 137 (Error)",
        ],
    );
}

#[rstest]
#[case::escape("\x1b[2J", "\u{241b}[2J")]
#[case::order("\u{202e}b", "\u{fffd}b")]
#[case::colour_ends_with_its_line("\x1b[8mb", "\x1b[8mb\x1b[0m")]
fn escapes_are_filtered_on_terminals_only(#[case] text: &str, #[case] on_terminal: &str) {
    let label = label("default/p", "c");
    for (terminal, shown) in [(true, on_terminal), (false, text)] {
        let prefixes = Prefixes::new(std::slice::from_ref(&label), false, terminal);
        assert_eq!(prefixes.line(&label, &line(text)), format!("p/c | {shown}\n"));
    }
}
