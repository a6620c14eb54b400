//! What `crib run` prints about a pod besides its state: readiness, events, reasons.

use crate::command::*;
use crate::runs::run::pod;

/// A pod of one container with these additional lines in the container.
fn with(name: &str, script: &str, lines: &[&str]) -> String {
    let mut manifest = pod(name, script);
    for line in lines {
        manifest += &format!("    {line}\n");
    }
    manifest
}

#[tokio::test]
async fn json_has_readiness_events_and_the_pods_own_words() {
    let place = Place::new();
    // The container continues after a failed readiness probe, and exits a while after a successful one.
    let asks = "test -e /tmp/ready && touch /tmp/seen || { touch /tmp/asked; exit 1; }";
    let probe = format!(
        "readinessProbe: {{exec: {{command: [sh, -c, '{asks}']}}, periodSeconds: 1, timeoutSeconds: 30}}"
    );
    let script = "until [ -e /tmp/asked ]; do sleep 0.1; done; touch /tmp/ready; \
                  until [ -e /tmp/seen ]; do sleep 0.1; done; sleep 3; echo bye >/dev/termination-log; exit 3";
    let manifest = place.file("p.yaml", &with("p", script, &[&probe]));
    let ended = place.crib(&["run", "--output", "json", &manifest]).await.exits(1);
    let lines = ended.out.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<Value> = lines.collect();
    let of =
        |kind: &str| -> Vec<&Value> { lines.iter().filter(|line| line["type"] == kind).collect() };

    let readiness: Vec<bool> =
        of("readiness").iter().map(|line| line["ready"].as_bool().unwrap()).collect();
    assert_eq!(readiness, [true, false], "{}", ended.out);
    let first = of("readiness")[0];
    assert_eq!(
        (first["pod"].as_str(), first["container"].as_str()),
        (Some("default/p"), Some("main"))
    );
    assert!(first["time"].as_str().unwrap().ends_with('Z'), "{first}");
    let reported: Vec<&str> =
        of("event").iter().map(|line| line["reason"].as_str().unwrap()).collect();
    for reason in ["Pulling", "Pulled", "Created", "Started", "Unhealthy"] {
        assert!(reported.contains(&reason), "no event {reason} in {reported:?}");
    }

    let result = &lines.last().unwrap()["pods"][0];
    let seen = (result["phase"].as_str(), result["qosClass"].as_str());
    assert_eq!(seen, (Some("Failed"), Some("BestEffort")));
    let conditions = result["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready").unwrap();
    let seen = (ready["status"].as_str(), ready["reason"].as_str());
    assert_eq!(seen, (Some("False"), Some("PodFailed")));
    let main = &result["containers"][0];
    assert_eq!(
        (main["reason"].as_str(), main["exit_code"].as_i64(), main["restarts"].as_i64()),
        (Some("Error"), Some(3), Some(0))
    );
    assert_eq!(main["message"].as_str(), Some("bye\n"));
}

#[tokio::test]
async fn text_names_cause_of_pod_end() {
    let place = Place::new();
    // On a busy machine, the container may start late.
    let late = pod("late", "sleep 60").replace("spec:\n", "spec:\n  activeDeadlineSeconds: 5\n");
    let late =
        late.replace("terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 1");
    let hook = "lifecycle: {postStart: {exec: {command: [sh, -c, exit 4]}}}";
    let hooked = with("hooked", "sleep 60", &[hook])
        .replace("terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 1");
    let hungry = with("hungry", "true", &["resources: {requests: {cpu: '9999'}}"]);
    let files = [("late", late), ("hooked", hooked), ("hungry", hungry)]
        .map(|(name, manifest)| place.file(&format!("{name}.yaml"), &manifest));
    let ended = place.crib(&["run", &files[0], &files[1], &files[2]]).await.exits(1);
    for words in [
        "default/late: DeadlineExceeded: Pod was active on the node longer than the specified deadline",
        "default/late: Running → Failed (active deadline exceeded)",
        "pod default/late failed: DeadlineExceeded",
        "pod default/late failed: DeadlineExceeded: Pod was active on the node longer",
        "default/hooked main: FailedPostStartHook: PostStartHook failed",
        "→ Terminated(Error), exit 137 (stopped: PostStartHook failed: ",
        "default/hooked: Running → Failed (main stopped: PostStartHook failed: ",
        "default/hungry: Failed (OutOfcpu: Node didn't have enough resource: cpu, requested: 9999000",
        "pod default/hungry failed: OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu",
    ] {
        assert!(ended.err.contains(words), "no {words:?} in:\n{}", ended.err);
    }
    assert!(
        !ended.err.contains("Container created"),
        "only what nothing else tells:\n{}",
        ended.err
    );
}

#[tokio::test]
async fn text_names_why_a_pod_ends_that_never_ran() {
    let place = Place::new();
    let sick = "livenessProbe: {exec: {command: [sh, -c, echo sick; exit 1]}, periodSeconds: 1, failureThreshold: 1}";
    let manifests = [
        ("refused", with("refused", "true", &["workingDir: relative"])),
        ("missing", pod("missing", "true").replace("spec:\n", "spec:\n  runtimeClassName: none\n")),
        ("sick", with("sick", "sleep 60", &[sick])),
    ];
    let files = manifests.map(|(name, manifest)| {
        let manifest = manifest
            .replace("terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 1");
        place.file(&format!("{name}.yaml"), &manifest)
    });
    let ended = place.crib(&["run", &files[0], &files[1], &files[2]]).await.exits(1);
    for words in [
        "default/refused: Pending → Terminating (it cannot run)",
        "default/missing: Pending → Ended (it cannot run)",
        "default/sick: Running → Terminating (main Liveness probe failed: sick)",
        "default/sick main: Running → Terminated(Error), exit 137 (Liveness probe failed: sick)",
    ] {
        assert!(ended.err.contains(words), "no {words:?} in:\n{}", ended.err);
    }
    for words in ["removed from its source", "(new sandbox: the pod had none)\ndefault/missing"] {
        assert!(!ended.err.contains(words), "{words:?} in:\n{}", ended.err);
    }
}

#[tokio::test]
async fn events_are_printed_on_request() {
    let place = Place::unchecked();
    let manifest = place.file("p.yaml", &pod("p", "echo hi"));
    let ended = place.crib(&["run", "--events", &manifest]).await.exits(0);
    ended.err_has("default/p main: Created: Container created");
    ended.err_has("default/p main: Started: Container started");
    place.crib(&["run", "--events", "--quiet", &manifest]).await.exits(2);
}
