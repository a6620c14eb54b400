//! `crib check` of runtimes that break more than a rule.

use super::check::{called, pod_of_check, start_proxy};
use super::command::{Place, Running};

#[tokio::test]
async fn check_without_answer_to_version_exits_3() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &["Version hang"]).await;
    let args = ["check", "--runtime-endpoint", &endpoint, "--deadline", "4s"];
    let ended = place.crib(&args).await;
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let waits = "waiting for an answer of the runtime call=\"Version\" within=4s";
    let said = "the runtime does not answer Version: no answer to Version within 4 s";
    for said in [waits, said] {
        assert!(ended.err.contains(said), "{said}: {ended:?}");
    }
    proxy.stop().await;
    runtime.stop().await;
    place.assert_clean();
}

#[tokio::test]
async fn check_warns_of_calls_that_hang_before_first_rule_and_goes_on() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    // Each one hangs once: what the rule itself calls is another matter.
    let calls = ["ListPodSandbox", "ImageStatus", "Status", "RuntimeConfig"];
    let faults = calls.map(|call| format!("{call} times 1 hang"));
    let faults = faults.each_ref().map(String::as_str);
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &faults).await;
    let args = ["check", "--runtime-endpoint", &endpoint, "--deadline", "2s"];
    let select = ["--select", "CRI-RTM-001"];
    let ended = place.crib(&[&args[..], &select].concat()).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains(" 1 pass, "), "{ended:?}");
    for call in calls {
        let said = format!("no answer to {call}");
        assert!(ended.err.contains(&said), "{said}: {ended:?}");
    }
    proxy.stop().await;
    runtime.stop().await;
    place.assert_clean();
}

#[tokio::test]
async fn overdue_rule_names_call_without_answer() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &["ExecSync hang"]).await;
    let args = ["check", "--runtime-endpoint", &endpoint, "--deadline", "2s"];
    let select = ["--select", "CRI-STP-009"];
    let ended = place.crib(&[&args[..], &select].concat()).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for told in [
        "seen      no answer to ExecSync for ",
        "--deadline 2s --select CRI-STP-009",
    ] {
        assert!(ended.out.contains(told), "{ended:?}");
    }
    proxy.stop().await;
    runtime.stop().await;
    place.assert_clean();
}

#[tokio::test]
async fn signal_ends_check_whose_runtime_hangs_before_first_rule() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (proxy, endpoint, trace) = start_proxy(&place, &upstream, &["Status hang"]).await;
    let check = place.start(&["check", "--runtime-endpoint", &endpoint]);
    called(&trace, "ListPodSandbox").await;
    check.signal(nix::sys::signal::Signal::SIGINT);
    let ended = check.end().await;
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(!ended.out.contains("CRI-"), "{ended:?}");
    proxy.stop().await;
    runtime.stop().await;
    place.assert_clean();
}

#[tokio::test]
async fn check_removes_pods_of_runtime_that_loses_labels() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let faults = ["ListPodSandbox drop items.labels"];
    let (proxy, endpoint, trace) = start_proxy(&place, &upstream, &faults).await;
    let args = ["check", "--runtime-endpoint", &endpoint];
    let select = ["--select", "CRI-CTR-032"];
    let checked = place.crib(&[&args[..], &select].concat()).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    pod_of_check(&trace).await;
    assert!(!checked.out.contains("not removed"), "{checked:?}");
    let pods = place
        .crib(&["pods", "--quiet", "--runtime-endpoint", &upstream])
        .await;
    assert_eq!((pods.code, pods.out.as_str()), (Some(0), ""), "{pods:?}");
    proxy.stop().await;
    runtime.stop().await;
    place.assert_clean();
}

#[tokio::test]
async fn check_that_cannot_remove_its_pods_exits_1_and_names_them() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let faults = ["RemovePodSandbox answer INTERNAL \"busy\""];
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &faults).await;
    let args = ["check", "--runtime-endpoint", &endpoint];
    let select = ["--select", "CRI-CTR-032"];
    let checked = place.crib(&[&args[..], &select].concat()).await;
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(checked.out.contains(" 1 pass, 0 fail"), "{checked:?}");
    assert!(checked.out.contains("\nnot removed: pod "), "{checked:?}");
    proxy.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn check_names_list_that_hangs_at_its_end() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &["ListImages hang"]).await;
    let args = [
        "check",
        "--runtime-endpoint",
        &endpoint,
        "--deadline",
        "10s",
    ];
    let select = ["--select", "CRI-CTR-032"];
    let checked = place.crib(&[&args[..], &select].concat()).await;
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let said = "\nnot removed: ListImages: no answer\n";
    assert!(checked.out.contains(said), "{checked:?}");
    assert!(!checked.out.contains("not removed: pod"), "{checked:?}");
    assert!(
        !checked.out.contains("did not remove the pods"),
        "{checked:?}"
    );
    proxy.stop().await;
    runtime.stop().await;
}

/// A runtime in a network namespace of its own does not reach 127.0.0.1 of the check.
#[tokio::test]
async fn rules_of_images_are_skipped_in_other_network_namespace() {
    const NAME: &str = "rules_of_images_are_skipped_in_other_network_namespace";
    if !nix::unistd::geteuid().is_root() {
        harness::skip!(NAME, "a network namespace needs root");
    }
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
    let checked = place.crib(&[&args[..], &select].concat()).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let why = "[the runtime does not reach the registry of the check at http://127.0.0.1:";
    assert!(checked.out.matches(why).count() > 20, "{checked:?}");
    assert!(checked.out.contains(" 0 fail,"), "{checked:?}");
    runtime.stop().await;
    place.assert_clean();
}

#[tokio::test]
async fn failures_below_fail_on_do_not_count() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    // CRI-RTM-004 is a should.
    let faults = ["Status drop runtime_handlers"];
    let (proxy, endpoint, _) = start_proxy(&place, &upstream, &faults).await;
    let args = ["check", "--runtime-endpoint", &endpoint];
    let args = [&args[..], &["--select", "CRI-RTM-004"]].concat();
    for (fail_on, code) in [
        (None, 1),
        (Some("must"), 0),
        (Some("should"), 1),
        (Some("may"), 1),
    ] {
        let option: Vec<&str> = fail_on
            .into_iter()
            .flat_map(|word| ["--fail-on", word])
            .collect();
        let checked = place.crib(&[&args[..], &option].concat()).await;
        assert_eq!(checked.code, Some(code), "{fail_on:?}: {checked:?}");
        assert!(checked.out.contains(" 1 fail,"), "{checked:?}");
    }
    proxy.stop().await;
    runtime.stop().await;
    place.assert_clean();
}

#[tokio::test]
async fn skipped_words_leave_out_rules() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let args = [
        "check",
        "--runtime-endpoint",
        &endpoint,
        "--select",
        "CRI-RTM",
    ];
    for (skip, left) in [
        ("CRI-RTM-001,CRI-RTM-007", None),
        ("CRI-RTM", Some("no rule is left")),
        ("must,should", Some("CRI-RTM-005")),
    ] {
        let checked = place.crib(&[&args[..], &["--skip", skip]].concat()).await;
        let said = format!("{}{}", checked.out, checked.err);
        let runs = |id: &str| checked.out.lines().any(|line| line.contains(id));
        assert!(!runs("CRI-RTM-001") && !runs("CRI-RTM-007"), "{checked:?}");
        assert!(said.contains(left.unwrap_or("CRI-RTM-002")), "{checked:?}");
    }
    runtime.stop().await;
    place.assert_clean();
}
