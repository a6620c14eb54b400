//! Pods in `crib pods`, `crib ps` and the final table of `crib run`: the columns and words of kubectl.

use std::collections::BTreeMap;

use crate::command::*;
use crate::runs::background::{Downs, out, start};
use crate::runs::run::stubborn;

/// Pods in all permanent states. The registry of one refuses connections.
const PODS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: runs}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: crib.local/behave/run}]
---
apiVersion: v1
kind: Pod
metadata: {name: unready}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: crib.local/behave/run}
  - name: side
    image: crib.local/host
    command: [sleep, infinity]
    readinessProbe: {exec: {command: ["false"]}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: crash}
spec:
  containers: [{name: main, image: crib.local/behave/exit-1}]
---
apiVersion: v1
kind: Pod
metadata: {name: done}
spec:
  restartPolicy: Never
  containers: [{name: main, image: crib.local/behave/exit-0}]
---
apiVersion: v1
kind: Pod
metadata: {name: failed}
spec:
  restartPolicy: Never
  containers: [{name: main, image: crib.local/behave/exit-3}]
---
apiVersion: v1
kind: Pod
metadata: {name: init}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
  - {name: first, image: crib.local/behave/exit-0}
  - {name: second, image: crib.local/behave/exit-1}
  containers: [{name: main, image: crib.local/behave/run}]
---
apiVersion: v1
kind: Pod
metadata: {name: pull}
spec:
  containers: [{name: main, image: "127.0.0.1:1/x:1"}]
"#;

/// The cells of a table under these headings, keyed by the cell under `by`. Columns are found by the positions of their headings.
fn cells(text: &str, by: &str, headings: &[&str]) -> BTreeMap<String, Vec<String>> {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let cell = |line: &str, heading: &str| -> String {
        let padded = format!("{first}   ");
        let at =
            padded.find(&format!("{heading}   ")).unwrap_or_else(|| panic!("{heading}: {text}"));
        line.get(at..).unwrap_or_default().split("   ").next().unwrap_or_default().to_owned()
    };
    let row =
        |line: &str| (cell(line, by), headings.iter().map(|heading| cell(line, heading)).collect());
    lines.map(row).collect()
}

/// Runs a command until its table has these cells.
async fn shows(
    place: &Place,
    args: &[&str],
    by: &str,
    headings: &[&str],
    expected: &[(&str, &[&str])],
) -> String {
    let owned = |(key, row): &(&str, &[&str])| {
        ((*key).to_owned(), row.iter().map(|cell| (*cell).to_owned()).collect())
    };
    let expected: BTreeMap<String, Vec<String>> = expected.iter().map(owned).collect();
    harness::eventually(WAIT_LIMIT, &format!("{args:?} shows {expected:?}"), async || {
        let text = out(place, args).await;
        if cells(&text, by, headings) == expected { Ok(text) } else { Err(text) }
    })
    .await
}

#[tokio::test]
async fn pods_of_runs_have_the_statuses_of_kubectl() {
    let place = Place::new();
    let _downs = Downs(&place);
    start(&place, &["all", &place.file("pods.yaml", PODS)]).await;
    let expected: &[(&str, &[&str])] = &[
        ("crash", &["0/1", "CrashLoopBackOff", "all"]),
        ("done", &["0/1", "Completed", "all"]),
        ("failed", &["0/1", "Error", "all"]),
        ("init", &["0/1", "Init:CrashLoopBackOff", "all"]),
        ("pull", &["0/1", "ImagePullBackOff", "all"]),
        ("runs", &["1/1", "Running", "all"]),
        ("unready", &["1/2", "Running", "all"]),
    ];
    shows(&place, &["pods"], "NAME", &["READY", "STATUS", "RUN"], expected).await;
    // A container that waits for its restart is listed, exited ones are not.
    let alive: &[(&str, &[&str])] = &[
        ("crash", &["CrashLoopBackOff", "main"]),
        ("init", &["CrashLoopBackOff", "second"]),
        ("runs", &["Running", "main"]),
    ];
    let filter = ["ps", "--name", "main|second"];
    let crashes = async || {
        let text = out(&place, &filter).await;
        let mut rows = cells(&text, "POD", &["STATE", "NAME"]);
        rows.remove("unready");
        (rows, text)
    };
    // In the same table: the container may restart at any moment, and is then missing.
    let restarts = harness::eventually(WAIT_LIMIT, "crib ps", async || {
        let (rows, text) = crashes().await;
        let owned = |row: &[&str]| row.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        let expected = alive.iter().map(|(pod, row)| ((*pod).to_owned(), owned(row)));
        if rows == expected.collect() { Ok(text) } else { Err(text) }
    })
    .await;
    let of_crash = &cells(&restarts, "POD", &["RESTARTS"])["crash"][0];
    assert!(of_crash.contains("s ago)"), "{restarts}");
    let ended = out(&place, &["ps", "-a"]).await;
    let ended = cells(&ended, "POD", &["STATE"]);
    assert_eq!((&*ended["done"][0], &*ended["failed"][0]), ("Exited", "Exited"));
    let verbose = out(&place, &["pods", "-v", "--name", "unready"]).await;
    assert!(verbose.contains("\nStatus: Running\nReady: 1/2\nRestarts: 0\n"), "{verbose}");
    // Programs read the runtime's response.
    let json = harness::eventually(WAIT_LIMIT, "the sandbox is stopped", async || {
        let json = out(&place, &["pods", "-o", "json", "--name", "done"]).await;
        if json.contains("SANDBOX_NOTREADY") { Ok(json) } else { Err(json) }
    })
    .await;
    assert!(!json.contains("Completed"), "{json}");
    out(&place, &["down", "--force", "all"]).await;
}

#[tokio::test]
async fn pod_that_ends_is_terminating_everywhere() {
    let place = Place::new();
    let _downs = Downs(&place);
    start(&place, &["p", &stubborn(&place)]).await;
    let mut down = place.command(&["down", "p"]).spawn().unwrap();
    let listed =
        shows(&place, &["pods"], "RUN", &["READY", "STATUS"], &[("p", &["1/1", "Terminating"])]);
    let name = cells(&listed.await, "RUN", &["NAME"])["p"][0].clone();
    shows(&place, &["ps"], "RUN", &["STATE"], &[("p", &["Terminating"])]).await;
    shows(&place, &["get", "pods"], "NAME", &["STATUS"], &[(&name, &["Terminating"])]).await;
    let text = out(&place, &["describe", &name]).await;
    for words in [
        "\nStatus:                    Terminating (lasts ",
        "\nTermination Grace Period:  60s\n",
        "\nConditions:\n",
        "\nVolumes:",
        "\nEvents:\n",
        "Container started",
    ] {
        assert!(text.contains(words), "{words:?}: {text}");
    }
    place.crib(&["down", "--force", "p"]).await.exits(0);
    let ended = tokio::time::timeout(WAIT_LIMIT, down.wait()).await;
    assert_eq!(ended.unwrap().unwrap().code(), Some(0));
}

#[tokio::test]
async fn list_without_any_runtime_is_empty() {
    let place = Place::new();
    for command in ["ps", "pods"] {
        let listed = place.crib(&[command]).await.exits(0);
        assert_eq!((listed.out.lines().count(), listed.err.as_str()), (1, ""), "{listed:?}");
        let named = place.crib(&[command, "--runtime-endpoint", "unix:///nowhere.sock"]).await;
        named.exits(3).err_has("failed to connect to the runtime");
    }
}

/// A pod that ignores SIGTERM, without a grace period in its manifest.
const IMPATIENT: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: deaf}
spec:
  containers: [{name: main, image: crib.local/host, command: [bash, -c, "trap '' TERM; echo up; while true; do sleep 0.1; done"]}]
"#;

#[tokio::test]
async fn interrupted_pods_are_stopped_and_not_failed() {
    let place = Place::new();
    let done = IMPATIENT.replace("deaf", "done").replace("    containers", "");
    let done = done.replace("trap '' TERM; echo up; while true; do sleep 0.1; done", "exit 3");
    let done = done.replace("spec:", "spec:\n  restartPolicy: Never");
    let (deaf, done) = (place.file("deaf.yaml", IMPATIENT), place.file("done.yaml", &done));
    let mut running = place.start(&["run", &deaf, &done]);
    running.line_with("up").await;
    shows(&place, &["pods"], "NAME", &["STATUS"], &[("deaf", &["Running"]), ("done", &["Error"])])
        .await;
    let ended = running.interrupt().await.exits(130);
    for words in [
        // The manifest sets no grace period.
        "crib: ending the pods, which may take 10 s; Ctrl-C kills them after 2 s\n",
        "crib: waiting for pod default/deaf (",
        "\n■ default/deaf  0/1  Stopped\n",
        "\n  ■ main        app  Error    exit 137",
        "\n✗ default/done  0/1  Error\n",
        "\n  ✗ main        app  Error    exit 3",
    ] {
        ended.err_has(words);
    }
}
