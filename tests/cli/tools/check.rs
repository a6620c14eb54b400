//! `crib check` and `crib proxy`.

use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;

use crate::command::*;

#[tokio::test]
async fn check_lists_rules_that_words_mean() {
    let place = Place::unchecked();
    let all = place.crib(&["check", "--list"]).await.exits(0);
    let rules = |text: &str| text.lines().filter(|line| line.starts_with("CRI-")).count();
    assert!(rules(&all.out) > 100, "{}", all.out);
    let some = place.crib(&["check", "--list", "--select", "RuntimeConfig"]).await;
    assert_eq!(rules(&some.out), 3, "{}", some.out);
    let none = place.crib(&["check", "--select", "dance"]).await.exits(2);
    let expected = "crib: no rule has the id, tag, area, call or severity \"dance\": `crib check --list` shows all\n";
    assert_eq!(none.err, expected);
    // A check without rules would always pass.
    let args = ["check", "--profile", "crictl", "--select", "StreamPodSandboxes"];
    let left_out = place.crib(&args).await.exits(2);
    let expected = "crib: no rule is left: --profile, --select and --skip exclude all rules\n";
    assert_eq!(left_out.err, expected);
}

/// With piped output: a terminal shows a progress bar.
#[tokio::test]
async fn check_prints_each_rule_as_it_ends() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let args = ["check", "--runtime-endpoint", &endpoint, "--parallel", "1", "--select", "sandbox"];
    let mut checking = place.start(&args);
    let first = checking.line_with("CRI-").await;
    // The check continues until a signal.
    checking.signal(Signal::SIGTERM);
    let ended = checking.end().await.exits(130);
    assert_eq!(ended.out.matches(first.as_str()).count(), 1, "{}", ended.out);
    runtime.stop().await;
}

#[tokio::test]
async fn check_of_runtime_passes_and_writes_reports() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let file = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let reports = ["html", "json", "junit", "sarif"].map(|form| format!("{form}={}", file(form)));
    let select = "CRI-RTM-001,CRI-RTM-010,CRI-SBX-001";
    let mut args = vec!["check", "--runtime-endpoint", &endpoint, "--select", select];
    for report in &reports {
        args.extend(["--report", report]);
    }
    let trace = file("trace");
    args.extend(["--trace", &trace]);
    let checked = place.crib(&args).await.exits(0);
    checked.out_has("3 rules on crib");
    let read = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
    let json: Value = serde_json::from_str(&read("json")).unwrap();
    assert_eq!(json["rules"].as_array().unwrap().len(), 3);
    assert!(read("junit").contains("tests=\"3\" failures=\"0\""));
    assert!(read("html").contains("3 of 3 rules"));
    let sarif: Value = serde_json::from_str(&read("sarif")).unwrap();
    assert_eq!(sarif["runs"][0]["results"], json!([]));
    let calls = read("trace");
    let first: Value = serde_json::from_str(calls.lines().next().unwrap()).unwrap();
    assert_eq!(first["rule"], "CRI-RTM-001");
    let run = calls.split_once("\"cgroup_parent\":\"/").unwrap().1;
    let run = run.split_once('"').unwrap().0;
    assert!(run.starts_with("crib-check-"), "{run}");
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten();
    for hierarchy in hierarchies {
        let group = hierarchy.unwrap().path().join(run);
        assert!(!group.exists(), "{} is left", group.display());
    }
    let left = std::fs::read_dir(place.path("tmp")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
    runtime.stop().await;
}

/// As in Bazel's sandboxes. The sockets of the check's proxies are in its directory.
#[tokio::test]
async fn check_works_with_temporary_directory_of_any_length() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let far = place.path(&format!("tmp/{}", "d".repeat(250)));
    std::fs::create_dir(&far).unwrap();
    let select = "CRI-RTM-001,CRI-SBX-001,CRI-STR-005";
    let args = ["check", "--runtime-endpoint", &endpoint, "--select", select];
    let mut command = place.command(&args);
    command.env("TMPDIR", &far);
    place.end(command).await.exits(0).out_has(" 3 pass, 0 fail");
    // The check leaves nothing there.
    std::fs::remove_dir(&far).unwrap();
    runtime.stop().await;
}

#[tokio::test]
async fn check_fails_behind_faulty_proxy_and_not_with_baseline() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (proxy, endpoint, trace) =
        start_proxy(&place, &upstream, &["PodSandboxStatus drop status.labels"]).await;
    let args = [
        "check",
        "--runtime-endpoint",
        &endpoint,
        "--image",
        "crib.local/host",
        "--select",
        "CRI-SBX-031",
    ];
    let broken = place.crib(&args).await.exits(1);
    for part in [
        "fail        CRI-SBX-031 must",
        "looked at the labels in PodSandboxStatus",
        &format!(
            "alone     crib check --runtime-endpoint {endpoint} --image crib.local/host --select CRI-SBX-031"
        ),
        "RunPodSandbox",
    ] {
        assert!(broken.out.contains(part), "{part}: {}", broken.out);
    }
    let baseline = "CRI-SBX-031\tthe proxy drops labels\nCRI-SBX-31\tmistyped\n";
    let baseline = place.file("baseline", baseline);
    let junit = place.path("junit");
    let report = format!("junit={}", junit.display());
    let known = ["--baseline", &baseline, "--report", &report];
    let known = place.crib(&[&args[..], &known].concat()).await.exits(0);
    let message = "has \"CRI-SBX-31\", which is not a rule id: `crib check --list` shows all ids\n";
    assert!(known.err.ends_with(message), "{known:?}");
    let junit = std::fs::read_to_string(junit).unwrap();
    assert!(junit.contains("failures=\"0\" skipped=\"1\""), "{junit}");
    known.out_has("known     the proxy drops labels");
    pod_of_check(&trace).await;
    proxy.stop().await;
    runtime.stop().await;
}

#[tokio::test]
async fn check_that_cannot_write_a_report_runs_no_rule() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let (directory, file) = (place.path("none"), place.file("old", "as it was"));
    let missing = directory.join("check.html");
    let (old, html, trace) =
        (format!("json={file}"), format!("html={}", missing.display()), missing.to_str().unwrap());
    for option in [["--report", &html], ["--trace", trace]] {
        let args = ["check", "--runtime-endpoint", &endpoint, "--report", &old];
        let select = ["--select", "CRI-RTM-001"];
        let ended = place.crib(&[&args[..], &select, &option].concat()).await.exits(2);
        assert_eq!(ended.out, "");
        let message = format!("failed to write {}: No such file", missing.display());
        ended.err_has(&message);
    }
    // Opening the FIFO would block until it has a reader.
    let fifo = place.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let args = ["check", "--runtime-endpoint", &endpoint, "--trace", fifo.to_str().unwrap()];
    let ended = place.crib(&args).await.exits(2);
    ended.err_has(&format!("failed to write {}: No such device", fifo.display()));
    // A benchmark measures nothing, and a check without its baseline file does not run.
    for (args, what) in [
        (["bench", "--report", &html], "write"),
        (["check", "--baseline", trace], "read the baseline"),
    ] {
        let more = ["--runtime-endpoint", &endpoint];
        let ended = place.crib(&[&args[..], &more].concat()).await;
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended:?}");
        let message = format!("failed to {what} {}: No such file", missing.display());
        ended.err_has(&message);
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "as it was");
    runtime.stop().await;
}

#[tokio::test]
async fn printed_configuration_names_the_port_that_the_check_needs() {
    let place = Place::unchecked();
    for (runtime, option, port) in [
        ("containerd", &[][..], "5055"),
        ("crio", &[][..], "5055"),
        ("crio", &["--registry-port", "6000"][..], "6000"),
    ] {
        let args = [&["check", "--print-config", runtime], option].concat();
        let printed = place.crib(&args).await.exits(0);
        let check = format!("crib check --registry-port {port}\n");
        printed.out_has(&check);
        let address = format!("127.0.0.1:{port}");
        printed.out_has(&address);
    }
}

#[tokio::test]
async fn check_without_runtime_exits_3() {
    let place = Place::unchecked();
    let endpoint = format!("unix://{}", place.path("none").display());
    place.crib(&["check", "--runtime-endpoint", &endpoint]).await.exits(3);
}

#[tokio::test]
async fn compare_exits_1_for_new_failures_and_2_for_invalid_report() {
    let place = Place::unchecked();
    let report = |result: &str, median: f64| {
        json!({
            "runtime": "some 1.0",
            "rules": [{"id": "CRI-CTR-001", "severity": "must", "says": "It holds.", "result": result, "reason": "seen"}],
            "calls": [{"call": "Version", "count": 9, "medianSeconds": median}],
        })
        .to_string()
    };
    let old = place.file("old", &report("pass", 0.01));
    let new = place.file("new", &report("fail", 0.03));
    let (page, none) = (place.path("page"), place.file("none", "{}"));
    let worse = place
        .crib(&["check", "compare", &old, &new, "--html", page.to_str().unwrap()])
        .await
        .exits(1);
    for part in [
        "new failures: 1\n  CRI-CTR-001 must   pass → fail  It holds.\n    seen\n",
        "slower calls: 1\n  Version: median 10.0 ms → 30.0 ms\n",
    ] {
        assert!(worse.out.contains(part), "{part}: {}", worse.out);
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("new failures: 1</h2>"), "{page}");
    let better = place.crib(&["check", "compare", &new, &old]).await.exits(0);
    better.out_has("mended: 1\n");
    let cut = report("pass", 0.01).replacen('{', r#"{"interrupted": true,"#, 1);
    let cut = place.crib(&["check", "compare", &old, &place.file("cut", &cut)]).await;
    let message =
        "a check was interrupted: rules are missing, and may fail\n\n1 rules ended as before\n";
    assert!(cut.out.ends_with(message), "{cut:?}");
    let bad = place.crib(&["check", "compare", &old, &none]).await.exits(2);
    bad.err_has("is not a report of --report json=FILE");
}

#[tokio::test]
async fn profile_leaves_out_rules_of_other_clients() {
    let place = Place::unchecked();
    let rules = async |profile: &str| {
        let listed = place.crib(&["check", "--list", "--profile", profile]).await;
        assert_eq!(listed.code, Some(0), "{listed:?}");
        let lines = listed.out.lines().filter(|line| line.starts_with("CRI-"));
        lines.count()
    };
    let (kubelet, crictl, full) =
        (rules("kubelet").await, rules("crictl").await, rules("full").await);
    assert!(crictl < kubelet && kubelet < full, "{crictl} {kubelet} {full}");
}

/// Starts a proxy with faults in front of a runtime. Returns it, its endpoint, and the file with its calls.
pub(crate) async fn start_proxy(
    place: &Place,
    upstream: &str,
    faults: &[&str],
) -> (Running, String, PathBuf) {
    let (socket, trace) = (place.path("p"), place.path("trace"));
    let (socket, file) = (socket.to_str().unwrap(), trace.to_str().unwrap());
    let mut args = vec!["proxy", "--listen", socket, "--upstream", upstream, "--trace", file];
    args.extend(faults.iter().flat_map(|fault| ["--fault", fault]));
    let mut running = place.start(&args);
    running.line_with("listening").await;
    (running, format!("unix://{socket}"), trace)
}

/// Waits until the check behind the proxy with this trace has a pod.
pub(crate) async fn pod_of_check(trace: &Path) {
    called(trace, "RunPodSandbox").await;
}

/// Waits until a call has ended that goes through the proxy with this trace.
pub(crate) async fn called(trace: &Path, call: &str) {
    eventually(call, || {
        let text = std::fs::read_to_string(trace).unwrap_or_default();
        match text.contains(&format!("\"method\":\"{call}\"")) {
            true => Vec::new(),
            false => vec![text],
        }
    })
    .await;
}

#[tokio::test]
async fn check_restarts_runtime_by_command() {
    let place = Place::unchecked();
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let (requested, done) = (place.path("asked"), place.path("done"));
    for fifo in [&requested, &done] {
        nix::unistd::mkfifo(fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    // Opened for reading and writing, so that neither side waits for the other one to open.
    let mut asking = pipe::OpenOptions::new().read_write(true).open_receiver(&requested).unwrap();
    let mut telling = pipe::OpenOptions::new().read_write(true).open_sender(&done).unwrap();
    let command = format!("echo restart >{}; read line <{}", requested.display(), done.display());
    let endpoint = format!("unix://{}", runtime.socket().display());
    let args = [
        "check",
        "--runtime-endpoint",
        &endpoint,
        "--select",
        "CRI-RST-004,CRI-RST-006",
        "--restart-command",
        &command,
    ];
    let checking = place.crib(&args);
    let restarting = async {
        for _ in 0..2 {
            let mut line = [0; 8];
            asking.read_exact(&mut line).await.unwrap();
            runtime.restart().await.unwrap();
            telling.write_all(b"done\n").await.unwrap();
        }
        std::future::pending::<()>().await;
    };
    let checked = tokio::select! {
        checked = checking => checked,
        () = restarting => unreachable!("it never ends"),
    };
    assert_eq!(checked.code, Some(0), "{checked:?}");
    checked.out_has("2 pass");
}

#[tokio::test]
async fn check_fails_rule_whose_restart_command_fails() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let args = ["check", "--runtime-endpoint", &endpoint, "--select", "CRI-RST-004"];
    let skipped = place.crib(&args).await.exits(0);
    let why = "--restart-command does not say how to restart the runtime";
    skipped.out_has(why);
    let failed = place.crib(&[&args[..], &["--restart-command", "exit 3"]].concat()).await.exits(1);
    failed.out_has("\"exit 3\" ended with exit status: 3");
    runtime.stop().await;
}
