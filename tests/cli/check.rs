//! `crib check` and `crib proxy`.

use super::command::{Place, eventually};

#[tokio::test]
async fn check_lists_rules_that_words_mean() {
    let place = Place::new();
    let all = place.crib(&["check", "--list"]).await;
    assert_eq!(all.code, Some(0), "{all:?}");
    let rules = |text: &str| text.lines().filter(|line| line.starts_with("CRI-")).count();
    assert!(rules(&all.out) > 100, "{}", all.out);
    let some = place
        .crib(&["check", "--list", "--select", "RuntimeConfig"])
        .await;
    assert_eq!(rules(&some.out), 1, "{}", some.out);
    let none = place.crib(&["check", "--select", "dance"]).await;
    assert_eq!(none.code, Some(2));
    let expected = "crib: no rule has the id, tag, area, call or severity \"dance\": `crib check --list` shows all\n";
    assert_eq!(none.err, expected);
}

#[tokio::test]
async fn check_of_runtime_passes_and_writes_reports() {
    let place = Place::new();
    let (_runtime, endpoint) = place.runtime().await;
    let file = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let reports = ["json", "junit", "tap"].map(|form| format!("{form}={}", file(form)));
    let select = "runtime,CRI-SBX-001";
    let mut args = vec!["check", "--runtime-endpoint", &endpoint, "--select", select];
    for report in &reports {
        args.extend(["--report", report]);
    }
    let trace = file("trace");
    args.extend(["--trace", &trace]);
    let checked = place.crib(&args).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.out.contains("8 rules on crib"), "{}", checked.out);
    let read = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&read("json")).unwrap();
    assert_eq!(json["rules"].as_array().unwrap().len(), 8);
    assert!(read("junit").contains("tests=\"8\" failures=\"0\""));
    assert!(read("tap").starts_with("TAP version 13\n1..8\n"));
    let calls = read("trace");
    let first: serde_json::Value = serde_json::from_str(calls.lines().next().unwrap()).unwrap();
    assert_eq!(first["rule"], "CRI-RTM-001");
    let left = std::fs::read_dir(place.path("tmp")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn check_fails_behind_faulty_proxy_and_not_with_baseline() {
    let place = Place::new();
    let (_runtime, upstream) = place.runtime().await;
    let (socket, trace) = (place.path("p"), place.path("trace"));
    let (socket, trace_file) = (socket.to_str().unwrap(), trace.to_str().unwrap());
    let fault = "PodSandboxStatus drop status.labels";
    let mut proxy = place.start(&[
        "proxy",
        "--listen",
        socket,
        "--upstream",
        &upstream,
        "--fault",
        fault,
        "--trace",
        trace_file,
    ]);
    proxy.line_with("listening").await;
    let endpoint = format!("unix://{socket}");
    let args = [
        "check",
        "--runtime-endpoint",
        &endpoint,
        "--select",
        "CRI-SBX-031",
    ];
    let broken = place.crib(&args).await;
    assert_eq!(broken.code, Some(1), "{broken:?}");
    for part in [
        "fail        CRI-SBX-031 must",
        "looked at the labels in PodSandboxStatus",
        "RunPodSandbox",
    ] {
        assert!(broken.out.contains(part), "{part}: {}", broken.out);
    }
    let baseline = place.file("baseline", "CRI-SBX-031\tthe proxy drops labels\n");
    let known = place
        .crib(&[&args[..], &["--baseline", &baseline]].concat())
        .await;
    assert_eq!(known.code, Some(0), "{known:?}");
    assert!(
        known.out.contains("known     the proxy drops labels"),
        "{}",
        known.out
    );
    eventually("the calls in the trace", || {
        let text = std::fs::read_to_string(&trace).unwrap_or_default();
        match text.contains("\"method\":\"RunPodSandbox\"") {
            true => Vec::new(),
            false => vec![text],
        }
    })
    .await;
}

#[tokio::test]
async fn check_without_runtime_exits_3() {
    let place = Place::new();
    let endpoint = format!("unix://{}", place.path("none").display());
    let ended = place
        .crib(&["check", "--runtime-endpoint", &endpoint])
        .await;
    assert_eq!(ended.code, Some(3), "{ended:?}");
}
