//! `crib wait`, `crib rollout`, `crib get --watch` and `crib run --wait`: commands that return on an event.

use crate::command::*;
use crate::runs::background::{Downs, out, start};

/// A pod that is ready once it has a file.
const LATE: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: late, labels: {app: late}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: crib.local/host
    command: [sleep, infinity]
    readinessProbe: {exec: {command: [test, -e, /dev/shm/ready]}, periodSeconds: 1}
"#;

/// A Deployment and a Job.
const WORKLOADS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: crib.local/behave/run}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: migrate}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: crib.local/behave/exit-0}]
"#;

/// Makes the pod ready.
async fn make_ready(place: &Place) {
    out(place, &["exec", "late", "touch", "/dev/shm/ready"]).await;
}

#[tokio::test]
async fn wait_returns_when_conditions_are_met() {
    let place = Place::new();
    let _downs = Downs(&place);
    let file = place.file("late.yaml", LATE);
    start(&place, &["first", &file]).await;
    let once = ["wait", "--for=condition=Ready", "pod/late", "--timeout=0"];
    let ended = place.crib(&once).await.exits(1);
    assert_eq!(ended.err, "crib: condition not met for pods/late\n");
    let met = "pod/late condition met\n";
    let waits =
        async |args: &[&str]| out(&place, &[&["wait", "--timeout=50s"], args].concat()).await;
    assert_eq!(waits(&["--for=condition=ready=FALSE", "pods", "-l", "app=late"]).await, met);
    assert_eq!(
        waits(&["--for=create", "--for=condition=ready=FALSE", "-f", &file]).await,
        met.repeat(2)
    );
    let both = ["wait", "--for=delete", "-f", &file, "pod/late"];
    place.crib(&both).await.exits(2).err_has("cannot be used with");
    assert_eq!(waits(&["--for=jsonpath={.status.phase}=Running", "pod", "late"]).await, met);
    // It prints each condition, so the pod becomes ready while the command waits.
    let both = ["wait", "--timeout=50s", "--for=create", "--for=condition=Ready", "pod/late"];
    let mut waiting = place.start(&both);
    waiting.line_with("pod/late condition met").await;
    make_ready(&place).await;
    let ended = waiting.end().await.exits(0);
    assert_eq!(ended.out, "pod/late condition met\npod/late condition met");
    assert_eq!(out(&place, &once).await, met);
    out(&place, &["down", "first"]).await;
}

#[tokio::test]
async fn wait_accepts_workloads_and_all_objects_of_kinds() {
    let place = Place::new();
    let _downs = Downs(&place);
    start(&place, &["first", &place.file("all.yaml", WORKLOADS)]).await;
    let waits =
        async |args: &[&str]| out(&place, &[&["wait", "--timeout=50s"], args].concat()).await;
    assert_eq!(
        waits(&["--for=condition=Available", "deploy/web"]).await,
        "deployment.apps/web condition met\n"
    );
    assert_eq!(
        waits(&["--for=condition=Complete", "job", "--all"]).await,
        "job.batch/migrate condition met\n"
    );
    let pods = waits(&["--for=condition=Ready", "pods", "-l", "app=web", "-A"]).await;
    assert_eq!(pods.lines().filter(|line| line.ends_with(" condition met")).count(), 2, "{pods}");
    let kinds = waits(&["--for=create", "deploy,job", "--all"]).await;
    assert_eq!(kinds, "deployment.apps/web condition met\njob.batch/migrate condition met\n");
    assert_eq!(waits(&["--for=delete", "pod/none"]).await, "");
    assert_eq!(waits(&["--for=delete", "pods", "-l", "app=none"]).await, "");
    for (args, code, expected) in [
        (&["--for=condition=Ready", "pod/none"][..], 1, "crib: pods \"none\" not found\n"),
        (
            &["--for=condition=Ready", "pods", "-l", "app=none"],
            1,
            "crib: no matching resources found\n",
        ),
        (
            &["--for=condition=Other", "deploy/web", "--timeout=10ms"],
            1,
            "crib: timed out waiting for the condition on deployments/web\n",
        ),
        (
            &["--for=create", "pod/none", "--timeout=10ms"],
            1,
            "crib: timed out waiting for the condition\n",
        ),
        (
            &["--for=jsonpath={.spec}=x", "deploy/web"],
            1,
            "crib: jsonpath leads to a nested object or list which is not supported\n",
        ),
        (
            &["--for=delete", "deploy/web", "--timeout=0"],
            1,
            "crib: condition not met for deployments/web\n",
        ),
        (
            &["--for=delete", "pods"],
            2,
            "crib: resource(s) were provided, but no name was specified: name objects, or choose them with -l or --all\n",
        ),
        (
            &["--for=delete", "pdo/web"],
            2,
            "crib: the server doesn't have a resource type \"pdo\"\n",
        ),
    ] {
        let ended = place.crib(&[&["wait"], args].concat()).await.exits(code);
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("", expected), "{args:?}");
    }
    place
        .crib(&["wait", "--for=cond=x", "pod/web"])
        .await
        .exits(2)
        .err_has("unrecognized condition: \"cond=x\"");
    out(&place, &["down", "first"]).await;
    place.crib(&["wait", "--for=delete", "pod/web"]).await.exits(3).err_has("no run found");
}

#[tokio::test]
async fn wait_sees_the_end_of_the_run() {
    let place = Place::new();
    let _downs = Downs(&place);
    start(&place, &["first", &place.file("late.yaml", LATE)]).await;
    let args = |condition| ["wait", "--timeout=-1s", "--for=create", condition, "pod/late"];
    let mut deleted = place.start(&args("--for=delete"));
    let mut never = place.start(&args("--for=condition=Never"));
    for waiting in [&mut deleted, &mut never] {
        waiting.line_with("pod/late condition met").await;
    }
    out(&place, &["down", "first"]).await;
    let ended = deleted.end().await.exits(0);
    assert_eq!(ended.out, "pod/late condition met\npod/late condition met");
    let ended = never.end().await.exits(1);
    assert_eq!(ended.err, "crib: the run ended before the condition was met on pods/late\n");
}

#[tokio::test]
async fn interrupt_ends_wait_and_watch() {
    let place = Place::new();
    let _downs = Downs(&place);
    start(&place, &["first", &place.file("late.yaml", LATE)]).await;
    for args in [
        &["wait", "--for=create", "--for=condition=Never", "pod/late"][..],
        &["get", "pods", "--watch"],
    ] {
        let mut waiting = place.start(args);
        waiting.line_with("late").await;
        waiting.interrupt().await.exits(130);
    }
    out(&place, &["down", "first"]).await;
}

#[tokio::test]
async fn get_watch_prints_a_row_for_each_change_until_the_run_ends() {
    let place = Place::new();
    let _downs = Downs(&place);
    start(&place, &["first", &place.file("late.yaml", LATE)]).await;
    let mut rows = place.start(&["get", "pods", "-w"]);
    rows.line_with("late").await;
    let mut named = place.start(&["get", "pod/late", "--watch", "-o", "name"]);
    named.line_with("pod/late").await;
    let mut documents = place.start(&["get", "pods", "--watch", "-o", "yaml"]);
    documents.line_with("phase: Running").await;
    let mut columns = place.start(&[
        "get",
        "pods",
        "-w",
        "-o",
        "custom-columns=NAME:.metadata.name,READY:.status.conditions[?(@.type==\"Ready\")].status",
    ]);
    columns.line_with("late   False").await;
    let mut typed = place.start(&["get", "pods", "-w", "--output-watch-events"]);
    typed.line_with("ADDED").await;
    let path = "jsonpath={.type} {.object.metadata.name}{\"\\n\"}";
    let mut events = place.start(&["get", "pods", "-w", "--output-watch-events", "-o", path]);
    events.line_with("ADDED late").await;
    make_ready(&place).await;
    let ready = typed.line_with("1/1").await;
    assert!(ready.starts_with("MODIFIED   late   1/1"), "{ready}");
    events.line_with("MODIFIED late").await;
    let ready = rows.line_with("1/1").await;
    assert_eq!(
        ready.split_whitespace().take(4).collect::<Vec<_>>(),
        ["late", "1/1", "Running", "0"]
    );
    columns.line_with("late   True").await;
    out(&place, &["down", "first"]).await;
    let ended = rows.end().await.exits(0);
    let headings = ended.out.lines().filter(|line| line.starts_with("NAME")).count();
    assert_eq!((headings, ended.err.as_str()), (1, ""), "{}", ended.out);
    let ended = named.end().await.exits(0);
    let lines: Vec<&str> = ended.out.lines().collect();
    assert!(lines.len() > 2 && lines.iter().all(|line| *line == "pod/late"), "{lines:?}");
    let ended = documents.end().await.exits(0);
    assert!(ended.out.lines().filter(|line| *line == "---").count() > 0, "{}", ended.out);
    columns.end().await.exits(0).out_has("NAME   READY\n");
    let ended = typed.end().await.exits(0);
    assert!(ended.out.starts_with("EVENT      NAME   READY"), "{}", ended.out);
    events.end().await.exits(0);
}

#[tokio::test]
async fn watch_only_omits_existing_objects() {
    let place = Place::new();
    let _downs = Downs(&place);
    std::fs::create_dir(place.path("manifests")).unwrap();
    let labelled = |number: usize| {
        WORKLOADS.replace(
            "metadata: {name: web}",
            &format!("metadata: {{name: web, labels: {{number: a{number}}}}}"),
        )
    };
    let file = place.file("manifests/web.yaml", &labelled(0));
    let manifests = place.path("manifests").display().to_string();
    start(&place, &["first", "--watch", &manifests]).await;
    let label = "jsonpath={.metadata.labels.number}{\"\\n\"}";
    let mut only = place.start(&["get", "deploy/web", "--watch-only", "-o", label]);
    // The watch prints nothing when it starts: make changes until it reports one.
    let mut number = 0;
    let first = loop {
        number += 1;
        std::fs::write(&file, labelled(number)).unwrap();
        let next = tokio::time::timeout(std::time::Duration::from_millis(500), only.line_with("a"));
        match next.await {
            Ok(line) => break line,
            Err(_) => assert!(number < 120, "no change was seen"),
        }
    };
    assert_ne!(first, "a0");
    for (args, expected) in [
        (&["deploy,svc", "-w"][..], "crib: you may only specify a single resource type\n"),
        (&["pod/a", "pod/b", "-w"], "crib: you may only specify a single resource type\n"),
    ] {
        assert_eq!(place.crib(&[&["get"], args].concat()).await.exits(2).err, expected);
    }
    let mut sorted =
        place.start(&["get", "pods", "-w", "-o", "name", "--sort-by", "{.metadata.name}"]);
    sorted.line_with("pod/").await;
    let warning = "--watch requested, --sort-by will be ignored for watch events received";
    sorted.err_line_with(warning).await;
    sorted.interrupt().await.exits(130);
    let missing = place.crib(&["get", "pod/none", "-w"]).await.exits(1);
    assert_eq!(missing.err, "crib: pods \"none\" not found\n");
    out(&place, &["down", "first"]).await;
    only.end().await.exits(0);
}

#[tokio::test]
async fn rollout_restart_replaces_the_pods() {
    let place = Place::new();
    let _downs = Downs(&place);
    let file = place.file("web.yaml", WORKLOADS);
    start(&place, &["first", "--wait", &file]).await;
    let uids = || async {
        out(&place, &["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.uid}"])
            .await
    };
    let before = uids().await;
    let restarted = out(&place, &["rollout", "restart", "deploy/web"]).await;
    assert_eq!(restarted, "deployment.apps/web restarted\n");
    let status = out(&place, &["rollout", "status", "deploy/web", "--timeout", "50s"]).await;
    assert!(status.ends_with("deployment \"web\" successfully rolled out\n"), "{status}");
    harness::eventually(WAIT_LIMIT, "other pods", async || {
        let after = uids().await;
        let are_new = after.split(' ').all(|uid| !before.contains(uid));
        if are_new { Ok(()) } else { Err(format!("{before} → {after}")) }
    })
    .await;
    let deployment = WORKLOADS.split("---\n").next().unwrap();
    let own = place.file("own.yaml", deployment);
    let status = out(&place, &["rollout", "status", "-f", &own]).await;
    assert_eq!(status, "deployment \"web\" successfully rolled out\n");
    let other = place.file("other.yaml", &deployment.replace("name: web}", "name: other}"));
    let template = "jsonpath={.spec.template.metadata.annotations}";
    let annotations = out(&place, &["get", "deploy", "web", "-o", template]).await;
    assert!(annotations.contains("kubectl.kubernetes.io/restartedAt"), "{annotations}");
    for (args, code, expected) in [
        (
            &["job/migrate"][..],
            1,
            "crib: job.batch/migrate was not restarted: restarting is not supported\n",
        ),
        (&["-f", &other], 1, "crib: deployments.apps \"other\" not found\n"),
        (&["deploy/none"], 1, "crib: deployments.apps \"none\" not found\n"),
        (&["deploy", "-l", "app=none"], 0, "crib: no resources found in default namespace\n"),
        (
            &["deploy/web", "-l", "app=web"],
            2,
            "crib: name cannot be provided when a selector is specified\n",
        ),
    ] {
        let ended = place.crib(&[&["rollout", "restart"], args].concat()).await.exits(code);
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("", expected), "{args:?}");
    }
    out(&place, &["down", "first"]).await;
}

#[tokio::test]
async fn rollout_undo_restores_the_pod_template_of_a_revision() {
    let place = Place::new();
    let _downs = Downs(&place);
    start(&place, &["first", "--wait", &place.file("web.yaml", WORKLOADS)]).await;
    let rolled_out = ["rollout", "status", "deploy/web", "--timeout", "50s"];
    let history = async || out(&place, &["rollout", "history", "deploy/web"]).await;
    let revisions = |numbers: &[u32]| {
        let rows = numbers.iter().map(|number| format!("{number}         <none>\n"));
        format!("deployment.apps/web\nREVISION  CHANGE-CAUSE\n{}\n", rows.collect::<String>())
    };
    assert_eq!(history().await, revisions(&[1]));
    let undo = place.crib(&["rollout", "undo", "deploy/web"]).await.exits(1);
    let problem =
        "deployment.apps/web was not rolled back: no rollout history found for deployment \"web\"";
    assert_eq!(undo.err, format!("crib: {problem}\n"));
    out(&place, &["rollout", "restart", "deploy/web"]).await;
    out(&place, &rolled_out).await;
    assert_eq!(history().await, revisions(&[1, 2]));
    let second = out(&place, &["rollout", "history", "deploy/web", "--revision", "2"]).await;
    let first_line = second.lines().next();
    assert_eq!(first_line, Some("deployment.apps/web with revision #2"));
    assert!(second.contains("kubectl.kubernetes.io/restartedAt: "), "{second}");

    let undone = out(&place, &["rollout", "undo", "deploy/web"]).await;
    assert_eq!(undone, "deployment.apps/web rolled back\n");
    out(&place, &rolled_out).await;
    assert_eq!(history().await, revisions(&[2, 3]));
    let template = "jsonpath={.spec.template.metadata}";
    let metadata = out(&place, &["get", "deploy", "web", "-o", template]).await;
    assert!(!metadata.contains("restartedAt"), "{metadata}");
    assert!(!metadata.contains("pod-template-hash"), "{metadata}");
    for (args, code, printed, error) in [
        (
            &["deploy/web", "--to-revision=3"][..],
            0,
            "deployment.apps/web skipped rollback (current template already matches revision 3)\n",
            "",
        ),
        (
            &["deploy/web", "--to-revision=1"],
            1,
            "",
            "crib: deployment.apps/web was not rolled back: unable to find specified revision 1 in history\n",
        ),
        (
            &["job/migrate"],
            1,
            "",
            "crib: job.batch/migrate was not rolled back: a run keeps no revisions of jobs.batch\n",
        ),
        (&["deploy/none"], 1, "", "crib: deployments.apps \"none\" not found\n"),
    ] {
        let ended = place.crib(&[&["rollout", "undo"], args].concat()).await.exits(code);
        assert_eq!((ended.out.as_str(), ended.err.as_str()), (printed, error), "{args:?}");
    }
    out(&place, &["down", "first"]).await;
}

#[tokio::test]
async fn rollout_status_follows_a_changed_deployment() {
    let place = Place::new();
    let _downs = Downs(&place);
    std::fs::create_dir(place.path("manifests")).unwrap();
    let file = place.file("manifests/web.yaml", WORKLOADS);
    let manifests = place.path("manifests").display().to_string();
    start(&place, &["first", "--watch", &manifests]).await;
    let status = ["rollout", "status", "deployment", "web", "--timeout", "50s"];
    let done = "deployment \"web\" successfully rolled out\n";
    let rolled_out = out(&place, &status).await;
    assert!(rolled_out.ends_with(done), "{rolled_out}");
    let uids = || async {
        out(&place, &["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.uid}"])
            .await
    };
    let before = uids().await;
    std::fs::write(
        &file,
        WORKLOADS.replace("name: main,", "name: main, env: [{name: A, value: b}],"),
    )
    .unwrap();
    // The store counts changes of the spec.
    let changed =
        ["wait", "--for=jsonpath={.metadata.generation}=2", "deploy/web", "--timeout=50s"];
    out(&place, &changed).await;
    assert!(out(&place, &status).await.ends_with(done));
    // A rollout does not wait for the removal of old pods.
    harness::eventually(WAIT_LIMIT, "other pods", async || {
        let after = uids().await;
        let are_new = after.split(' ').all(|uid| !before.contains(uid));
        if are_new { Ok(()) } else { Err(format!("{before} → {after}")) }
    })
    .await;
    assert_eq!(out(&place, &["rollout", "status", "deploy/web", "--watch=false"]).await, done);
    // A Deployment whose pods never become ready.
    std::fs::write(
        &file,
        WORKLOADS.replace("behave/run}", "behave/run, readinessProbe: {exec: {command: [none]}}}"),
    )
    .unwrap();
    let changed =
        ["wait", "--for=jsonpath={.metadata.generation}=3", "deploy/web", "--timeout=50s"];
    out(&place, &changed).await;
    let once = out(&place, &["rollout", "status", "deploy/web", "-w=false"]).await;
    assert!(once.starts_with("Waiting for deployment "), "{once}");
    let ended =
        place.crib(&["rollout", "status", "deploy/web", "--timeout", "10ms"]).await.exits(1);
    assert_eq!(ended.err, "crib: timed out waiting for the condition\n");
    ended.out_has("Waiting for deployment \"web\" rollout to finish: ");
    for (args, code, expected) in [
        (&["job/migrate"][..], 1, "crib: no status viewer has been implemented for Job.batch\n"),
        (&["deploy/none"], 1, "crib: deployments.apps \"none\" not found\n"),
        (
            &["deploy"],
            2,
            "crib: resource(s) were provided, but no name was specified: name one, such as deploy/web\n",
        ),
    ] {
        let ended = place.crib(&[&["rollout", "status"], args].concat()).await.exits(code);
        assert_eq!(ended.err, expected);
    }
    out(&place, &["down", "first"]).await;
}

#[tokio::test]
async fn run_waits_until_pods_are_ready() {
    let place = Place::new();
    let _downs = Downs(&place);
    let script = "command: [sh, -c, 'sleep 1; touch /dev/shm/ready; sleep infinity']";
    let soon = LATE.replace("command: [sleep, infinity]", script);
    let files = [place.file("soon.yaml", &soon), place.file("all.yaml", WORKLOADS)];
    start(&place, &["first", "--wait", &files[0], &files[1]]).await;
    let ready = r#"jsonpath={range .items[*]}{.status.phase} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}"#;
    for line in out(&place, &["get", "pods", "-o", ready]).await.lines() {
        assert!(["Running True", "Succeeded False", "Running False"].contains(&line), "{line}");
    }
    let of_late = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    assert_eq!(out(&place, &["get", "pod/late", "-o", of_late]).await, "True");
    out(&place, &["down", "first"]).await;

    let fails = LATE.replace("command: [sleep, infinity]", "command: [sh, -c, 'exit 3']");
    let fails = fails.replace("spec:\n", "spec:\n  restartPolicy: Never\n");
    let ended = place
        .crib(&["run", "--name", "second", "--wait", &place.file("fails.yaml", &fails)])
        .await
        .exits(1);
    ended.err_has("crib: a pod can never be ready; run second continues in the background: ");
    out(&place, &["down", "second"]).await;
    let usage = place.crib(&["run", "--wait", &files[0]]).await.exits(2);
    usage.err_has("--name");
}
