//! `crib proxy record`, `replay` and `lint`: a session of crib's own commands, its replay without a runtime, and its lint findings.

use crate::command::*;

/// A client's queries, with full ids in the output.
fn questions(pod: &str) -> Vec<Vec<String>> {
    let lines = [
        "version".to_owned(),
        "pods --no-trunc --output json".to_owned(),
        "ps --all --output json".to_owned(),
        "images --output json".to_owned(),
        format!("inspectp {pod}"),
        format!("inspectp {pod}x"),
        "info".to_owned(),
        "imagefsinfo".to_owned(),
    ];
    let words = |line: &String| line.split(' ').map(str::to_owned).collect();
    lines.iter().map(words).collect()
}

/// Runs the queries at an endpoint.
async fn ask(place: &Place, endpoint: &str, pod: &str) -> Vec<(Option<i32>, String, String)> {
    let mut answers = Vec::new();
    for question in questions(pod) {
        let mut args = vec!["--runtime-endpoint", endpoint];
        args.extend(question.iter().map(String::as_str));
        let Ended { code, out, err } = place.crib(&args).await;
        answers.push((code, out, err));
    }
    answers
}

#[tokio::test]
async fn recorded_session_is_replayed_without_runtime() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (listen, file) = (place.path("p"), place.path("session.jsonl"));
    let (listen, file) = (listen.to_str().unwrap(), file.to_str().unwrap());
    let endpoint = format!("unix://{listen}");
    let mut recording =
        place.start(&["proxy", "record", file, "--listen", listen, "--upstream", &upstream]);
    recording.line_with("listening").await;
    let config =
        place.file("pod.json", r#"{"metadata": {"name": "p", "namespace": "n", "uid": "u"}}"#);
    let run = place.crib(&["--runtime-endpoint", &endpoint, "runp", &config]).await.exits(0);
    let pod = run.out.trim();
    let recorded = ask(&place, &endpoint, pod).await;
    assert_eq!(recorded[0].0, Some(0), "{recorded:?}");
    assert!(recorded[1].1.contains(pod), "{recorded:?}");

    place.crib(&["--runtime-endpoint", &upstream, "rmp", "--force", pod]).await.exits(0);
    recording.stop().await;
    runtime.stop().await;

    let mut replay = place.start(&["proxy", "replay", file, "--listen", listen]);
    replay.line_with("listening").await;
    assert_eq!(ask(&place, &endpoint, pod).await, recorded);
    // Once more: repeated queries get the last responses.
    assert_eq!(ask(&place, &endpoint, pod).await, recorded);
    let other = place
        .crib(&["--runtime-endpoint", &endpoint, "runp", &config, "--runtime", "kata"])
        .await
        .exits(1);
    let why = "no recorded RunPodSandbox has this request: the nearest, in line 1, differs in runtime_handler: \
               recorded nothing, received \"kata\"";
    assert!(other.err.contains(why) && other.err.contains("FailedPrecondition"), "{other:?}");
    replay.signal(Signal::SIGTERM);
    let ended = replay.end().await.exits(0);
    ended.err_has(why);
}

#[tokio::test]
async fn lint_finds_client_mistakes_and_exits_1() {
    let place = Place::new();
    let bad = place.file(
        "bad.jsonl",
        "{\"t_start\": 1, \"t_end\": 2, \"method\": \"RunPodSandbox\", \"deadline_s\": 1, \"connection\": 1, \
         \"request\": {}, \"response\": {\"pod_sandbox_id\": \"p\"}, \"code\": \"OK\"}\n\
         {\"t_start\": 3, \"t_end\": 4, \"method\": \"RemovePodSandbox\", \"deadline_s\": 1, \"connection\": 1, \
         \"request\": {\"pod_sandbox_id\": \"p\"}, \"response\": {}, \"code\": \"OK\"}\n",
    );
    let found = place.crib(&["proxy", "lint", &bad]).await.exits(1);
    let line = "3.000 s  connection 1  remove-running-sandbox: RemovePodSandbox p, which was not stopped\n";
    assert_eq!(found.out, line);
    place.crib(&["proxy", "lint", &bad, "--allow", "remove-running-sandbox"]).await.exits(0);
    let unknown = place.crib(&["proxy", "lint", &bad, "--allow", "remove-running"]).await.exits(2);
    unknown.err_has("remove-running-container");
    let good =
        place.file("good.jsonl", "{\"t_start\": 1, \"method\": \"Version\", \"deadline_s\": 1}\n");
    let clean = place.crib(&["proxy", "lint", &good]).await;
    let reported = "1 call, no findings\n";
    assert_eq!((clean.code, clean.out.as_str()), (Some(0), reported), "{clean:?}");
    let broken = place.file("broken.jsonl", "{\"t_start\": 1}\n");
    let refused = place.crib(&["proxy", "lint", &broken]).await.exits(2);
    refused.err_has("line 1 is not a recorded call: missing field `method` at column 14");
    let endless = place.crib(&["proxy", "lint", "/dev/zero"]).await.exits(2);
    endless.err_has("failed to read the recording /dev/zero: line 1 has more than 64 MiB");
    // A killed recorder leaves a part of a line.
    let cut = place.file(
        "cut.jsonl",
        "{\"t_start\": 1, \"method\": \"Version\", \"deadline_s\": 1}\n{\"t_start\": 2, \"met",
    );
    let judged = place.crib(&["proxy", "lint", &cut]).await;
    let reported = "crib: CUT: ignored the last line, which is incomplete\n";
    assert_eq!(
        (judged.code, judged.err.replace(&cut, "CUT").as_str()),
        (Some(0), reported),
        "{judged:?}"
    );
}

#[tokio::test]
async fn proxy_judges_client_when_it_ends() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (listen, trace) = (place.path("p"), place.path("trace"));
    let (listen, trace) = (listen.to_str().unwrap(), trace.to_str().unwrap());
    let args = ["proxy", "--listen", listen, "--upstream", &upstream, "--lint", "--trace", trace];
    let mut proxy = place.start(&args);
    proxy.line_with("listening").await;
    let client = harness::Client::new(listen.as_ref());
    client.version().await.unwrap();
    eventually("the call in the trace", || {
        let text = std::fs::read_to_string(trace).unwrap();
        if text.contains("Version") { Vec::new() } else { vec![text] }
    })
    .await;
    proxy.signal(Signal::SIGTERM);
    let ended = proxy.end().await.exits(1);
    ended.out_has("deadline-missing: Version without a deadline, once");
    runtime.stop().await;
}

/// Rules call removed objects and remove running ones, to test the runtime; but every call has a deadline.
#[tokio::test]
async fn check_gives_each_call_a_deadline() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (listen, trace) = (place.path("p"), place.path("trace.jsonl"));
    let (listen, trace) = (listen.to_str().unwrap(), trace.to_str().unwrap());
    let proxy = ["proxy", "record", trace, "--listen", listen, "--upstream", &upstream];
    let mut proxy = place.start(&proxy);
    proxy.line_with("listening").await;
    let check =
        ["check", "--runtime-endpoint", listen, "--select", "CRI-SBX-00,CRI-CTR-00,CRI-EXE-00"];
    place.crib(&check).await.exits(0);
    proxy.stop().await;
    let allowed = "polled-too-often,removed-object,started-twice,stopped-sandbox,stream-left-open,\
                   remove-running-container,remove-running-sandbox";
    let judged = place.crib(&["proxy", "lint", trace, "--allow", allowed]).await.exits(0);
    judged.out_has("no findings");
    runtime.stop().await;
}
