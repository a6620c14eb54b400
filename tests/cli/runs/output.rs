//! The output of `crib run` without a terminal: container output, transitions, and the final table.

use crate::command::*;
use crate::runs::run::{CANNOT_PULL, FOREVER, HELLO, pod, run_until_timeout};

#[tokio::test]
async fn run_quiet_prints_container_output_only() {
    let place = Place::unchecked();
    let ended = place.crib(&["run", "--quiet", HELLO]).await.exits(0);
    assert_eq!(ended.out.lines().count(), 4, "{}", ended.out);
    assert_eq!(ended.err, "");
}

#[tokio::test]
async fn run_json_prints_one_object_per_line() {
    let place = Place::new();
    let ended = place.crib(&["run", "--output", "json", HELLO]).await.exits(0);
    let objects: Vec<Value> =
        ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let logs = objects.iter().filter(|object| object["type"] == "log");
    assert_eq!(
        logs.filter(|log| log["pod"] == "default/hello" && log["stream"] == "stdout").count(),
        4
    );
    for container in ["write", "read", "server", "client"] {
        let ended = objects.iter().filter(|object| {
            object["type"] == "transition"
                && object["container"] == container
                && object["exit_code"] == 0
        });
        assert_eq!(ended.count(), 1, "{container}: {}", ended_text(&objects));
    }
    let result = objects.last().unwrap();
    assert_eq!(result["type"], "result");
    assert_eq!(result["exit_code"], 0);
    assert_eq!(result["pods"][0]["phase"], "Succeeded");
}

fn ended_text(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("{object}\n")).collect()
}

#[tokio::test]
async fn run_timeout_marks_each_pod_as_it_ended() {
    let place = Place::new();
    let done = place.file("done.yaml", &pod("done", "exit 0"));
    let failed = place.file("failed.yaml", &pod("failed", "exit 7"));
    // Before the timeout, which stops pods that are still running.
    let have_ended = |ended: &Ended| {
        let before = ended.err.split("crib: timed out").next().unwrap();
        let has_ended = |pod: &str, phase: &str| {
            let mut lines = before.lines().filter(|line| line.starts_with(pod));
            lines.any(|line| line.contains(phase))
        };
        has_ended("default/done: ", "→ Succeeded")
            && has_ended("default/failed: ", "→ Failed")
            && before.contains("ErrImagePull")
    };
    let ended = run_until_timeout(&place, &[&done, &failed, CANNOT_PULL], have_ended).await;
    let row = |start: &str| {
        let found = ended.err.lines().find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("no row {start:?} in:\n{}", ended.err))
    };
    assert!(row("✓ default/done ").ends_with(" 0/1  Completed"));
    assert!(row("✗ default/failed ").ends_with(" 0/1  Error"));
    // It had not exited by itself.
    assert!(row("■ default/cannot-pull ").ends_with(" 0/1  Stopped"));
    let reason = "crib.local/no-such-image:1";
    assert!(
        ended.err.lines().any(|line| line.starts_with("  ■ main ")
            && line.contains("ImagePull")
            && line.contains(reason)),
        "{}",
        ended.err
    );
}

#[tokio::test]
async fn run_prints_each_change_with_its_own_cause() {
    let place = Place::new();
    let ended = place.crib(&["run", HELLO]).await.exits(0);
    let changes: Vec<&str> =
        ended.err.lines().filter(|line| line.starts_with("default/hello")).collect();
    // A state that is shorter than an observation may be missing, so some containers are not seen running.
    for (container, start) in [
        ("write", "started: the pod starts in a new sandbox"),
        ("read", "started: init container write is done"),
        ("server", "started: for the first time"),
        ("client", "started: for the first time"),
    ] {
        let prefix = format!("default/hello {container}: ");
        let own: Vec<&&str> = changes.iter().filter(|line| line.starts_with(&prefix)).collect();
        let (last, earlier) = own.split_last().unwrap();
        assert!(last.ends_with(" → Terminated(Completed), exit 0 (exited)"), "{changes:#?}");
        for line in earlier {
            assert!(line.ends_with(&format!("({start})")), "{changes:#?}");
        }
    }
    assert!(changes.iter().all(|line| line.contains(" → ")), "{changes:#?}");
}

#[tokio::test]
async fn run_timeout_names_stop_as_cause() {
    let place = Place::new();
    // The container sets its trap before it prints.
    let has_trap = |ended: &Ended| ended.out.contains("forever/clock | ");
    let ended = run_until_timeout(&place, &[FOREVER], has_trap).await;
    let line = "default/forever clock: Running → Terminated(Completed), exit 0 (stopped: --timeout expired)";
    assert!(ended.err.lines().any(|line_of_err| line_of_err == line), "{}", ended.err);
}

#[tokio::test]
async fn run_prints_isolation_first() {
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "echo done"));
    for (args, first) in [
        (&["--isolation", "process"][..], Some("crib: isolation: process")),
        (&["--isolation", "process", "--output", "json"][..], Some("crib: isolation: process")),
        (&["--isolation", "process", "--quiet"][..], None),
    ] {
        let args = [&["run", &manifest], args].concat();
        let ended = place.crib(&args).await.exits(0);
        assert_eq!(ended.err.lines().next(), first, "{args:?}: {}", ended.err);
        assert!(!ended.out.contains("isolation"), "{}", ended.out);
    }
}

#[tokio::test]
async fn run_ends_pod_that_can_never_run() {
    let place = Place::new();
    let began = std::time::Instant::now();
    let ended = place.crib(&["run", "--isolation", "process", HELLO]).await.exits(1);
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
    let expect_err =
        |text: &str| assert!(ended.err.contains(text), "{text:?} is not in: {}", ended.err);
    expect_err("container write: CreateContainerError: ");
    expect_err(
        "nothing can be mounted at /shared, because isolation `process` has no mount namespaces",
    );
    expect_err("; further attempts would fail too, so the pod is not retried\n");
    expect_err("\n✗ default/hello ");
    expect_err("\n  ✗ write ");
    expect_err(
        "crib: pod default/hello failed: container write cannot run (CreateContainerError)\n",
    );
    assert!(!ended.err.contains("it is retried"), "{}", ended.err);
}

#[tokio::test]
async fn run_ends_only_the_pod_that_can_never_run() {
    let place = Place::new();
    let good = place.file("good.yaml", &pod("good", "sleep 1; echo done"));
    let args = ["run", "--isolation", "process", "--output", "json", HELLO, &good];
    let ended = place.crib(&args).await.exits(1);
    let result: Value = serde_json::from_str(ended.out.lines().last().unwrap()).unwrap();
    let phases: Vec<&str> = result["pods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod["phase"].as_str().unwrap())
        .collect();
    assert!(phases.contains(&"Succeeded") && phases.contains(&"Pending"), "{result}");
}

#[tokio::test]
async fn run_ends_pod_whose_manifest_no_runtime_can_follow() {
    let relative = pod("p", "echo hi")
        .replace("spec:\n", "spec:\n  volumes: [{name: v, hostPath: {path: some/where}}]\n")
        + "    volumeMounts: [{name: v, mountPath: /v}]\n";
    let image = pod("p", "echo hi").replace("crib.local/host", "crib.local/NO:such:image");
    for (manifest, reason) in [
        (relative, "CreateContainerError: mounts: host_path \"some/where\""),
        (image, "InvalidImageName"),
    ] {
        let place = Place::new();
        let ended = place.crib(&["run", &place.file("p.yaml", &manifest)]).await.exits(1);
        ended.err_has(reason);
        ended.err_has("further attempts would fail too");
    }
}
