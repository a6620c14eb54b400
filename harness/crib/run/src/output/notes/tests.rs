//! Notes that are printed once, and notes that are never printed.
use agent::ContainerReport;
use api::pod::ContainerKind;
use k8s_openapi::api::core::v1::{Pod as ApiPod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rstest::rstest;

use super::*;
use crate::output::view::tests::{container, pod, reports};

fn manifest(name: &str, policy: &str) -> Pod {
    Pod::new(ApiPod {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: Some(PodSpec { restart_policy: Some(policy.to_owned()), ..PodSpec::default() }),
        ..ApiPod::default()
    })
}

#[test]
fn note_announces_pods_that_never_end() {
    let notes = Notes::new(None, &[]);
    assert_eq!(
        notes.at_start(&[manifest("a", "Never"), manifest("b", "OnFailure")]),
        Vec::<String>::new()
    );
    let seen = notes.at_start(&[manifest("a", "Always")]);
    assert_eq!(seen, ["pod a has restartPolicy Always and runs until Ctrl-C"]);
    let mut notes = Notes::new(None, &[]);
    notes.end_with("`crib down web`");
    let seen = notes.at_start(&[manifest("a", "Always")]);
    assert_eq!(seen, ["pod a has restartPolicy Always and runs until `crib down web`"]);
    let notes = Notes::new(Some(Duration::from_secs(1)), &[]);
    assert_eq!(
        notes.at_start(&[manifest("a", "Never"), manifest("b", "Always"), manifest("c", "Always")]),
        ["2 pods (the first is b) have restartPolicy Always and run until --timeout or Ctrl-C"]
    );
}

#[test]
fn note_reports_each_failure_once() {
    let with = |reason: &str, message: &str| {
        let one = container("main", ContainerKind::App, ContainerPhase::Waiting, reason);
        let mut pod = pod("p", "Pending");
        pod.containers = vec![ContainerReport { message: message.to_owned(), ..one }];
        reports(vec![pod])
    };
    let mut notes = Notes::new(None, &[]);
    assert_eq!(notes.on_reports(&with("ContainerCreating", "")), Vec::<String>::new());
    assert_eq!(
        notes.on_reports(&with("ErrImagePull", "there is no\nsuch image")),
        [
            "pod default/p, container main: ErrImagePull: there is no such image; as in Kubernetes, it is retried until Ctrl-C"
        ]
    );
    assert_eq!(notes.on_reports(&with("ImagePullBackOff", "back-off")), Vec::<String>::new());
    assert_eq!(notes.on_reports(&with("ErrImagePull", "again")), Vec::<String>::new());
    assert_eq!(
        notes.on_reports(&with("CrashLoopBackOff", "")),
        [
            "pod default/p, container main: CrashLoopBackOff; as in Kubernetes, it is retried until Ctrl-C"
        ]
    );
}

#[rstest]
#[case("Never", "RunContainerError", "")]
#[case("Never", "PostStartHookError", "")]
#[case("OnFailure", "RunContainerError", "; as in Kubernetes, it is retried until Ctrl-C")]
#[case("Never", "CreateContainerError", "; as in Kubernetes, it is retried until Ctrl-C")]
fn note_names_next_step_by_restart_policy(
    #[case] policy: &str,
    #[case] reason: &str,
    #[case] next: &str,
) {
    let manifest = manifest("p", policy);
    let mut waiting = pod("p", "Pending");
    waiting.uid = manifest.uid().clone();
    waiting.containers =
        vec![container("main", ContainerKind::App, ContainerPhase::Waiting, reason)];
    let seen = Notes::new(None, &[manifest]).on_reports(&reports(vec![waiting]));
    assert_eq!(seen, [format!("pod default/p, container main: {reason}{next}")]);
}

#[test]
fn note_omits_retry_for_finished_pod() {
    let mut over = pod("p", "Failed");
    over.containers =
        vec![container("main", ContainerKind::App, ContainerPhase::Waiting, "CrashLoopBackOff")];
    assert_eq!(Notes::new(None, &[]).on_reports(&reports(vec![over])), Vec::<String>::new());
}

#[rstest]
#[case("CrashLoopBackOff", true)]
#[case("ImagePullBackOff", true)]
#[case("ErrImagePull", true)]
#[case("ErrImageNeverPull", true)]
#[case("InvalidImageName", true)]
#[case("CreateContainerConfigError", true)]
#[case("RunContainerError", true)]
#[case("FailedMount", true)]
#[case("FailedCreatePodSandBox", true)]
#[case("PodInitializing", false)]
#[case("ContainerCreating", false)]
#[case("", false)]
fn failure_is_recognised_by_waiting_reason(#[case] reason: &str, #[case] expected: bool) {
    assert_eq!(is_failure_reason(reason), expected);
}
