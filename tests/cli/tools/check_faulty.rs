//! `crib check` of runtimes that violate many rules.

use crate::command::*;
use crate::tools::check::{called, pod_of_check, start_proxy};

#[tokio::test]
async fn check_without_answer_to_version_exits_3() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &["Version hang"]).await;
    let args = ["check", "--runtime-endpoint", &endpoint, "--deadline", "4s"];
    let ended = place.crib(&args).await.exits(3);
    let waits = "waiting for the runtime's response call=\"Version\" within=4s";
    let message = "the runtime does not respond to Version: no answer to Version within 4 s";
    for message in [waits, message] {
        assert!(ended.err.contains(message), "{message}: {ended:?}");
    }
    proxy.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn check_warns_of_hanging_calls_before_first_rule_and_continues() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    // Each call hangs only once, so that the rule's own calls succeed.
    let calls = ["ListPodSandbox", "ImageStatus", "Status", "RuntimeConfig"];
    let faults = calls.map(|call| format!("{call} times 1 hang"));
    let faults = faults.each_ref().map(String::as_str);
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &faults).await;
    let args = ["check", "--runtime-endpoint", &endpoint, "--deadline", "2s"];
    let select = ["--select", "CRI-RTM-001"];
    let ended = place.crib(&[&args[..], &select].concat()).await.exits(0);
    ended.out_has(" 1 pass, ");
    for call in calls {
        let message = format!("no answer to {call}");
        assert!(ended.err.contains(&message), "{message}: {ended:?}");
    }
    proxy.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn overdue_rule_names_call_without_answer() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &["ExecSync hang"]).await;
    // By then, the rule has a container.
    let args = ["check", "--runtime-endpoint", &endpoint, "--deadline", "8s"];
    let select = ["--select", "CRI-STP-009"];
    let ended = place.crib(&[&args[..], &select].concat()).await.exits(1);
    for reported in ["seen      no answer to ExecSync for ", "--deadline 8s --select CRI-STP-009"] {
        ended.out_has(reported);
    }
    proxy.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn signal_ends_check_whose_runtime_hangs_before_first_rule() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (proxy, endpoint, trace) = start_proxy(&place, &upstream, &["Status hang"]).await;
    let check = place.start(&["check", "--runtime-endpoint", &endpoint]);
    called(&trace, "ListPodSandbox").await;
    check.signal(Signal::SIGINT);
    let ended = check.end().await.exits(130);
    assert!(!ended.out.contains("CRI-"), "{ended:?}");
    proxy.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn check_removes_pods_of_runtime_that_loses_labels() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let faults = ["ListPodSandbox drop items.labels"];
    let (proxy, endpoint, trace) = start_proxy(&place, &upstream, &faults).await;
    let args = ["check", "--runtime-endpoint", &endpoint];
    let select = ["--select", "CRI-CTR-032"];
    let checked = place.crib(&[&args[..], &select].concat()).await.exits(0);
    pod_of_check(&trace).await;
    assert!(!checked.out.contains("not removed"), "{checked:?}");
    let pods = place.crib(&["pods", "--quiet", "--runtime-endpoint", &upstream]).await;
    assert_eq!((pods.code, pods.out.as_str()), (Some(0), ""), "{pods:?}");
    proxy.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn check_that_cannot_remove_its_pods_exits_1_and_names_them() {
    let place = Place::unchecked();
    let (runtime, upstream) = place.runtime().await;
    let faults = ["RemovePodSandbox answer INTERNAL \"busy\""];
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &faults).await;
    let args = ["check", "--runtime-endpoint", &endpoint];
    let select = ["--select", "CRI-CTR-032"];
    let checked = place.crib(&[&args[..], &select].concat()).await.exits(1);
    checked.out_has(" 1 pass, 0 fail");
    checked.out_has("\nnot removed: pod ");
    proxy.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn check_names_list_that_hangs_at_its_end() {
    let place = Place::unchecked();
    let (runtime, upstream) = place.runtime().await;
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &["ListImages hang"]).await;
    let args = ["check", "--runtime-endpoint", &endpoint, "--deadline", "10s"];
    let select = ["--select", "CRI-CTR-032"];
    let checked = place.crib(&[&args[..], &select].concat()).await.exits(1);
    checked.out_has("\nnot removed: ListImages: no answer\n");
    assert!(!checked.out.contains("not removed: pod"), "{checked:?}");
    assert!(!checked.out.contains("did not remove the pods"), "{checked:?}");
    proxy.stop().await;
    runtime.stop().await;
}

/// A runtime in its own network namespace cannot reach the check's 127.0.0.1.
#[tokio::test]
async fn rules_of_images_are_skipped_in_other_network_namespace() {
    harness::needs!(Root);
    let place = Place::new();
    let (socket, state) = (place.path("s"), place.path("state"));
    let mut command = tokio::process::Command::new("unshare");
    let runtime = place.command(&["runtime", "--ephemeral", "--listen"]);
    let runtime = runtime.as_std();
    command.arg("--net").arg(runtime.get_program());
    command.args(runtime.get_args()).arg(&socket);
    command.arg("--state-dir").arg(&state);
    for (name, value) in runtime.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    let mut runtime = Running::start(command);
    runtime.line_with("listening").await;
    let endpoint = format!("unix://{}", socket.display());
    let args = ["check", "--runtime-endpoint", &endpoint];
    let select = ["--select", "image,pull,content"];
    let checked = place.crib(&[&args[..], &select].concat()).await.exits(0);
    let why = "[the runtime does not reach the registry of the check at http://127.0.0.1:";
    assert!(checked.out.matches(why).count() > 20, "{checked:?}");
    checked.out_has(" 0 fail,");
    runtime.stop().await;
}

#[tokio::test]
async fn failures_below_fail_on_do_not_count() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    // CRI-RTM-004 has the severity should.
    let faults = ["Status drop runtime_handlers"];
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &faults).await;
    let args = ["check", "--runtime-endpoint", &endpoint];
    let args = [&args[..], &["--select", "CRI-RTM-004"]].concat();
    for (fail_on, code) in [(None, 1), (Some("must"), 0), (Some("should"), 1), (Some("may"), 1)] {
        let option: Vec<&str> = fail_on.into_iter().flat_map(|word| ["--fail-on", word]).collect();
        let checked = place.crib(&[&args[..], &option].concat()).await;
        assert_eq!(checked.code, Some(code), "{fail_on:?}: {checked:?}");
        checked.out_has(" 1 fail,");
    }
    proxy.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn skipped_words_leave_out_rules() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let args = ["check", "--runtime-endpoint", &endpoint, "--select", "CRI-RTM"];
    for (skip, left) in [
        ("CRI-RTM-001,CRI-RTM-007", None),
        ("CRI-RTM", Some("no rule is left")),
        ("must,should", Some("CRI-RTM-005")),
    ] {
        let checked = place.crib(&[&args[..], &["--skip", skip]].concat()).await;
        let message = format!("{}{}", checked.out, checked.err);
        let runs = |id: &str| checked.out.lines().any(|line| line.contains(id));
        assert!(!runs("CRI-RTM-001") && !runs("CRI-RTM-007"), "{checked:?}");
        assert!(message.contains(left.unwrap_or("CRI-RTM-002")), "{checked:?}");
    }
    runtime.stop().await;
}

/// All calls except those before the first rule.
const ALL_CALLS: &str = "A*,C*,E*,G*,ImageF*,L*,Pod*,Port*,R*,S*,U*";

#[tokio::test]
async fn output_stays_short_when_every_call_fails_with_long_message() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let long = "many words\n".repeat(9_000);
    let fault = format!("{ALL_CALLS} answer INTERNAL \"{long}\"");
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &[&fault]).await;
    let json = place.path("json");
    let report = format!("json={}", json.display());
    let args = ["check", "--runtime-endpoint", &endpoint, "--select", "CRI-RTM-00,CRI-SBX-00"];
    let ended = place.crib(&[&args[..], &["--report", &report]].concat()).await.exits(1);
    let failed = ended.out.lines().filter(|line| line.starts_with("fail ")).count();
    let shown = ended.out.matches(" fails after ").count();
    assert!(failed > 12 && shown > 5, "{}", ended.out);
    // A line for each rule, 10 for each failure that is shown in full, and the common causes.
    let lines = ended.out.lines().count();
    assert!(lines <= failed * 2 + shown * 10 + 40, "{lines} lines: {}", ended.out);
    let longest = [&ended.out, &ended.err]
        .into_iter()
        .flat_map(|text| text.lines())
        .max_by_key(|line| line.len());
    assert!(longest.unwrap().len() < 600, "{longest:?}");
    let cause = ended
        .out
        .find(" rules failed with one cause, RunPodSandbox: Internal: many words many words ");
    assert!(cause < ended.out.find(" fails after "), "{}", ended.out);
    assert!(cause.is_some(), "{}", ended.out);
    // The report contains the whole message.
    let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let seen = report["rules"].as_array().unwrap().iter().map(|rule| &rule["difference"]["seen"]);
    assert!(seen.filter_map(Value::as_str).any(|seen| seen.contains(&long)));
    let verbose = place.crib(&[&args[..], &["--verbose"]].concat()).await.exits(1);
    assert!(verbose.out.matches("many words").count() > 30_000);
    proxy.stop().await;
    runtime.stop().await;
}
