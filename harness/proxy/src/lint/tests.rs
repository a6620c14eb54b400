//! Recordings of clients, correct and faulty, and their findings.
use rstest::rstest;

use super::*;
use crate::recorded::RecordedCall;

/// A call: its time, its duration, its method, its request, its response.
fn call(at: f64, takes: f64, method: &str, request: &str, answer: &str) -> String {
    let end = at + takes;
    format!(
        "{{\"t_start\": {at}, \"t_end\": {end}, \"method\": \"{method}\", \"connection\": 1, \
         \"deadline_s\": 2, \"request\": {{{request}}}, \"response\": {{{answer}}}, \"code\": \"OK\"}}"
    )
}

/// A recording whose lines are `TIME METHOD CONTAINER-OR-SANDBOX`; each call takes half a second. A container's name begins with
/// its sandbox's letter and a slash.
fn calls(lines: &str) -> Vec<CallFacts> {
    let lines = lines.lines().map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let (at, method, id) = (words[0].parse().unwrap(), words[1], words[2]);
        let sandbox = id.split('/').next().unwrap();
        let of_sandbox = format!("\"pod_sandbox_id\": \"{sandbox}\"");
        let of_container = format!("\"container_id\": \"{id}\"");
        match method {
            "RunPodSandbox" => call(at, 0.5, method, "", &of_sandbox),
            "CreateContainer" => call(at, 0.5, method, &of_sandbox, &of_container),
            _ if method.contains("PodSandbox") => call(at, 0.5, method, &of_sandbox, ""),
            "Exited" => {
                let answer =
                    format!("\"status\": {{\"id\": \"{id}\", \"state\": \"CONTAINER_EXITED\"}}");
                call(at, 0.5, "ContainerStatus", &of_container, &answer)
            }
            _ => call(at, 0.5, method, &of_container, ""),
        }
    });
    parsed(&lines.collect::<Vec<_>>().join("\n"))
}

fn parsed(text: &str) -> Vec<CallFacts> {
    let calls = RecordedCall::parse_all(text).unwrap();
    calls.iter().map(CallFacts::from).collect()
}

fn rules(found: &[Finding]) -> Vec<&'static str> {
    found.iter().map(|finding| finding.rule).collect()
}

const LIFE: &str = "0 RunPodSandbox p\n1 CreateContainer p/a\n2 StartContainer p/a\n3 StopContainer p/a\n\
                    4 RemoveContainer p/a\n5 StopPodSandbox p\n6 RemovePodSandbox p";

#[rstest]
#[case::whole_life(LIFE, &[])]
#[case::exit_seen("0 RunPodSandbox p\n1 CreateContainer p/a\n2 StartContainer p/a\n3 Exited p/a\n4 RemoveContainer p/a", &[])]
#[case::created_only("0 RunPodSandbox p\n1 CreateContainer p/a\n4 RemoveContainer p/a", &[])]
#[case::stopped_with_sandbox("0 RunPodSandbox p\n1 CreateContainer p/a\n2 StartContainer p/a\n3 StopPodSandbox p\n4 RemoveContainer p/a", &[])]
#[case::made_earlier("1 StartContainer q/a\n2 StopContainer q/a\n3 RemovePodSandbox q", &[])]
#[case::idempotent("0 RunPodSandbox p\n1 StopPodSandbox p\n2 RemovePodSandbox p\n3 StopPodSandbox p\n4 RemovePodSandbox p", &[])]
#[case::create_early("0 RunPodSandbox p\n0.2 CreateContainer p/a", &["create-before-sandbox"])]
#[case::start_early("0 RunPodSandbox p\n1 CreateContainer p/a\n1.2 StartContainer p/a", &["start-before-create"])]
#[case::started_twice("1 StartContainer p/a\n2 StartContainer p/a", &["started-twice"])]
#[case::started_while_starting("1 StartContainer p/a\n1.2 StartContainer p/a", &["started-twice"])]
#[case::create_in_stopped("0 RunPodSandbox p\n1 StopPodSandbox p\n2 CreateContainer p/a", &["stopped-sandbox"])]
#[case::start_in_stopped("0 RunPodSandbox p\n1 CreateContainer p/a\n2 StopPodSandbox p\n3 StartContainer p/a", &["stopped-sandbox"])]
#[case::running_sandbox("0 RunPodSandbox p\n1 RemovePodSandbox p", &["remove-running-sandbox"])]
#[case::running_container("1 StartContainer p/a\n2 RemoveContainer p/a", &["remove-running-container"])]
#[case::removed_container("1 StopContainer p/a\n2 RemoveContainer p/a\n3 ContainerStatus p/a\n4 ContainerStatus p/a", &["removed-object"])]
#[case::removed_sandbox("0 RunPodSandbox p\n1 StopPodSandbox p\n2 RemovePodSandbox p\n3 CreateContainer p/a", &["removed-object"])]
#[case::removed_with_sandbox("0 RunPodSandbox p\n1 CreateContainer p/a\n2 StopPodSandbox p\n3 RemovePodSandbox p\n4 ContainerStatus p/a", &["removed-object"])]
#[case::asked_before_removal("1 StopContainer p/a\n2 RemoveContainer p/a\n2.2 ContainerStatus p/a", &[])]
fn order_of_calls_is_judged(#[case] lines: &str, #[case] expected: &[&str]) {
    assert_eq!(rules(&lint(&calls(lines))), expected);
}

#[test]
fn failed_start_may_be_tried_again() {
    let mut calls = calls("1 StartContainer p/a\n2 StartContainer p/a\n3 StartContainer p/a");
    calls[0].is_success = false;
    assert_eq!(rules(&lint(&calls)), ["started-twice"]);
    calls[1].is_success = false;
    assert_eq!(lint(&calls), []);
}

#[rstest]
#[case("Version", "{}", true)]
#[case("StopContainer", r#"{"timeout": "30"}"#, true)]
#[case("ExecSync", r#"{"timeout": "30"}"#, true)]
#[case("ExecSync", "{}", false)]
#[case("PullImage", "{}", false)]
#[case("GetContainerEvents", "{}", false)]
#[case("StreamContainers", "{}", false)]
fn missing_deadline_is_found_once_for_each_call(
    #[case] method: &str,
    #[case] request: &str,
    #[case] expected: bool,
) {
    let line = |at: u32| {
        format!(
            "{{\"t_start\": {at}, \"t_end\": {at}.5, \"method\": \"{method}\", \"request\": {request}, \"code\": \"OK\"}}"
        )
    };
    let found = lint(&parsed(&[line(1), line(2)].join("\n")));
    let texts: Vec<_> = found.iter().map(Finding::to_string).collect();
    let text =
        format!("1.000 s  connection 0  deadline-missing: {method} without a deadline, 2 times");
    let expected: &[String] = if expected { &[text] } else { &[] };
    assert_eq!(texts, expected);
}

#[rstest]
#[case::often(0.05, "ContainerStatus", &["polled-too-often"])]
#[case::seldom(0.2, "ContainerStatus", &[])]
#[case::no_question(0.05, "ReopenContainerLog", &[])]
fn repeated_question_is_found_by_its_rate(
    #[case] apart: f64,
    #[case] method: &str,
    #[case] expected: &[&str],
) {
    let lines: Vec<_> =
        (0..40).map(|number| format!("{} {method} p/a", apart * f64::from(number))).collect();
    let found = lint(&calls(&lines.join("\n")));
    assert_eq!(rules(&found), expected);
    if let Some(found) = found.first() {
        assert!(found.what.ends_with("21 times within 1 s"), "{found}");
    }
}

#[rstest]
#[case::beside(Some(2.0), 1.0, &["stream-left-open"])]
#[case::after(Some(2.0), 3.0, &[])]
#[case::never_ended(None, 3.0, &["stream-left-open"])]
fn stream_that_is_opened_again_is_found(
    #[case] end: Option<f64>,
    #[case] again: f64,
    #[case] expected: &[&str],
) {
    let stream = |start: f64, end: Option<f64>| {
        let end = end.map_or("null".to_owned(), |end| end.to_string());
        format!(
            "{{\"t_start\": {start}, \"t_end\": {end}, \"method\": \"GetContainerEvents\", \"request\": {{}}}}"
        )
    };
    let text = [stream(0.0, end), stream(again, None)].join("\n");
    assert_eq!(rules(&lint(&parsed(&text))), expected);
}

#[test]
fn calls_beyond_the_limit_are_counted_and_leave_no_gap() {
    let all = calls(LIFE);
    let limit: usize = all[..3].iter().map(CallFacts::size).sum();
    let mut large = all[3].clone();
    large.request = "x".repeat(limit);
    let mut seen = SeenCalls::with_limit(limit);
    // The call that starts later ends first.
    for call in [&all[1], &all[0], &large, &all[2]] {
        seen.add(call.clone());
    }
    let (kept, left_out) = seen.finish();
    assert_eq!((kept.as_slice(), left_out), (&all[..2], 2));
}
