//! Pods and containers selected as with kubectl: `deploy/web`, `-l app=web`, a pod's default container.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::command::*;
use crate::runs::background::{Downs, out, start};

/// Objects with pods of several containers, each of which prints its name once.
const OBJECTS: &str = r#"
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
      initContainers: [{name: init, image: crib.local/host, command: [echo, from init]}]
      containers:
      - {name: main, image: crib.local/host, command: [sh, -c, echo from main; exec sleep infinity]}
      - {name: side, image: crib.local/host, command: [sh, -c, echo from side; exec sleep infinity]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: migrate}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: crib.local/host, command: [echo, from job]}]
---
apiVersion: v1
kind: ReplicationController
metadata: {name: old}
spec:
  template:
    metadata: {labels: {app: old}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: crib.local/host, command: [sleep, infinity]}]
---
apiVersion: v1
kind: Pod
metadata:
  name: annotated
  annotations: {kubectl.kubernetes.io/default-container: side}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: crib.local/host, command: [sh, -c, echo from main; exec sleep infinity]}
  - {name: side, image: crib.local/host, command: [sh, -c, echo from side; exec sleep infinity]}
"#;

const NOTE: &str = "crib: Defaulted container \"main\" out of: main, side, init (init)\n";

/// Starts a run, and waits until all containers have printed a line.
async fn objects(place: &Place) {
    start(place, &["first", "--wait", &place.file("all.yaml", OBJECTS)]).await;
    out(place, &["wait", "--for=condition=Complete", "job/migrate", "--timeout=50s"]).await;
    harness::eventually(WAIT_LIMIT, "all containers have said their names", async || {
        let args = ["logs", "-l", "app=web", "--all-containers"];
        let message = place.crib(&args).await;
        let annotated = place.crib(&["logs", "annotated", "--all-containers"]).await;
        match message.out.lines().count() + annotated.out.lines().count() {
            8 => Ok(()),
            _ => Err((message, annotated)),
        }
    })
    .await;
}

#[tokio::test]
async fn logs_take_objects_labels_and_default_containers() {
    let place = Place::new();
    let _downs = Downs(&place);
    objects(&place).await;
    for text in ["deploy/web", "deployment/web", "deployments.apps/default/web", "svc/web"] {
        let ended = place.crib(&["logs", text]).await.exits(0);
        assert_eq!(ended.out, "from main\n", "{text}");
        let (found, note) = ended.err.split_once('\n').unwrap();
        assert!(found.starts_with("crib: Found 2 pods, using pod/web-"), "{}", ended.err);
        assert_eq!(note, NOTE, "{text}");
    }
    let ended = place.crib(&["logs", "job/migrate"]).await.exits(0);
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("from job\n", ""));
    let ended = place.crib(&["logs", "annotated"]).await.exits(0);
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("from side\n", ""));
    let side = out(&place, &["logs", "deploy/web", "-c", "side"]).await;
    assert_eq!(side, "from side\n");
    let all = out(&place, &["logs", "annotated", "--all-containers", "--prefix"]).await;
    assert_eq!(all, "[pod/annotated/main] from main\n[pod/annotated/side] from side\n");
    let inline = ["logs", "annotated", "main", "--since-time=2020-01-02T03:04:05Z"];
    assert_eq!(out(&place, &inline).await, "from main\n");
    let too_many = ["logs", "-f", "-l", "app=web", "--max-log-requests=1"];
    let ended = place.crib(&too_many).await.exits(2);
    let problem = "you are attempting to follow 2 log streams, but maximum allowed concurrency is 1, \
                   use --max-log-requests to increase the limit";
    assert_eq!(ended.err, format!("{NOTE}{NOTE}crib: {problem}\n"));
    let ignored = place.crib(&["logs", "-p", "annotated", "--ignore-errors"]).await.exits(0);
    ignored.err_has("not found");
    let of_pods = out(&place, &["logs", "deploy/web", "--all-pods", "-c", "side"]).await;
    let lines: Vec<&str> = of_pods.lines().collect();
    assert_eq!(lines.len(), 2, "{of_pods}");
    let is_of_side =
        |line: &&str| line.starts_with("[pod/web-") && line.ends_with("/side] from side");
    assert!(lines.iter().all(is_of_side) && lines[0] != lines[1], "{of_pods}");
    // Followed logs of several containers are interleaved in any order.
    let mut followed =
        place.start(&["logs", "-f", "-l", "app=web", "--all-containers", "--prefix", "--tail=1"]);
    let mut each = Vec::new();
    for _ in 0..6 {
        let line = followed.line_with("] from ").await;
        each.push(line.rsplit('/').next().unwrap().to_owned());
    }
    each.sort();
    each.dedup();
    assert_eq!(each, ["init] from init", "main] from main", "side] from side"]);
    for (args, code, expected) in [
        (&["deploy/none"][..], 1, "crib: deployments.apps \"none\" not found\n"),
        (&["-l", "app=none"], 0, "crib: no resources found in default namespace\n"),
        (&["deploy/web", "-n", "shop"], 1, "crib: deployments.apps \"web\" not found\n"),
        (
            &["deploy/web", "-c", "none", "--all-pods"],
            1,
            "has no container \"none\": it has init, main, side\n",
        ),
        (&["secret/web"], 1, "crib: secrets \"web\" not found\n"),
    ] {
        let ended = place.crib(&[&["logs"], args].concat()).await.exits(code);
        assert!(ended.err.ends_with(expected), "{args:?}: {}", ended.err);
    }
    out(&place, &["down", "first"]).await;
    let ended = followed.end().await.exits(0);
    assert_eq!(ended.out.lines().count(), 6, "{}", ended.out);
}

#[tokio::test]
async fn exec_takes_objects_and_describe_takes_labels() {
    let place = Place::new();
    let _downs = Downs(&place);
    objects(&place).await;
    let ended = place.crib(&["exec", "deploy/web", "hostname"]).await.exits(0);
    assert!(ended.out.starts_with("web-"), "{}", ended.out);
    assert_eq!(ended.err, NOTE);
    let host = out(&place, &["exec", "rc/old", "hostname"]).await;
    assert!(host.starts_with("old-"), "{host}");
    let set = out(&place, &["get", "rs", "-o", "name"]).await;
    let host = out(&place, &["exec", set.trim(), "-c", "side", "hostname"]).await;
    assert!(host.starts_with("web-"), "{host}");
    let ended = place.crib(&["exec", "svc/web", "-c", "side", "--", "hostname"]).await.exits(0);
    assert_eq!(ended.err, "");
    let kubectl = ["exec", "--stdin=false", "-n", "default", "annotated", "--", "hostname"];
    assert_eq!(out(&place, &kubectl).await, "annotated\n");
    let elsewhere = ["exec", "annotated", "-n", "shop", "--", "hostname"];
    place.crib(&elsewhere).await.exits(1).err_has("not found");
    place
        .crib(&["cp", "-n", "shop", "annotated:/etc/hosts", "-"])
        .await
        .exits(1)
        .err_has("not found");
    place.crib(&["attach", "-n", "shop", "deploy/web"]).await.exits(1).err_has("not found");
    let ended = place.crib(&["exec", "job/migrate", "hostname"]).await.exits(1);
    assert!(!ended.err.is_empty());
    let of_labels = ["describe", "pods", "-l", "app=web"];
    assert_eq!(out(&place, &of_labels).await.matches("\nContainers:").count(), 2);
    let every = out(&place, &["describe", "pods"]).await;
    assert!(every.contains("Name:             old-"), "{every}");
    let everywhere = out(&place, &["describe", "pods", "-A"]).await;
    assert_eq!(everywhere.matches("\nContainers:").count(), every.matches("\nContainers:").count());
    assert!(!everywhere.contains("\nEvents:"), "{everywhere}");
    let with_events = out(&place, &["describe", "pods", "--show-events"]).await;
    assert!(with_events.contains("\nEvents:"), "{with_events}");
    let begun = out(&place, &["describe", "pod", "web-"]).await;
    assert_eq!(begun.matches("\nContainers:").count(), 2, "{begun}");
    let named = place.crib(&["describe", "pod", "web", "-A"]).await.exits(2);
    let problem = "a resource cannot be retrieved by name across all namespaces";
    assert_eq!(named.err, format!("crib: {problem}\n"));
    let both = place.crib(&["describe", "web", "-l", "app=web"]).await.exits(2);
    assert_eq!(both.err, "crib: name cannot be provided when a selector is specified\n");
    let none = place.crib(&["describe", "-l", "app=none"]).await.exits(0);
    assert_eq!(none.err, "crib: no resources found in default namespace\n");
    assert_eq!(
        out(&place, &["describe", "-l", "app=web"]).await.matches("\nContainers:").count(),
        2
    );
    out(&place, &["down", "first"]).await;
}

#[tokio::test]
async fn log_of_a_container_that_waits_is_refused_with_its_reason() {
    let place = Place::new();
    let _downs = Downs(&place);
    let waits = "
apiVersion: v1
kind: Pod
metadata: {name: waits}
spec: {containers: [{name: main, image: localhost:1/none, imagePullPolicy: Never}]}
";
    start(&place, &["first", &place.file("waits.yaml", waits)]).await;
    let reason = "jsonpath={.status.containerStatuses[0].state.waiting.reason}=ErrImageNeverPull";
    out(&place, &["wait", &format!("--for={reason}"), "pod/waits", "--timeout=50s"]).await;
    for args in [&["waits"][..], &["pod/waits", "-c", "main"], &["waits", "-n", "default"]] {
        let ended = place.crib(&[&["logs"], args].concat()).await.exits(1);
        let expected = "container \"main\" in pod \"waits\" is waiting to start: ErrImageNeverPull";
        assert_eq!(ended.err, format!("crib: {expected}\n"), "{args:?}");
    }
    out(&place, &["down", "first"]).await;
}

#[tokio::test]
async fn previous_log_is_found_while_a_container_waits_for_its_restart() {
    let place = Place::new();
    let _downs = Downs(&place);
    let crashes = r#"
apiVersion: v1
kind: Pod
metadata: {name: crashes}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: crib.local/host, command: [sh, -c, echo it ends; exit 1]}
  - {name: good, image: crib.local/behave/run}
"#;
    start(&place, &["first", &place.file("crashes.yaml", crashes)]).await;
    let waiting = "jsonpath={.status.containerStatuses[?(@.name==\"main\")].state.waiting.reason}=CrashLoopBackOff";
    out(&place, &["wait", &format!("--for={waiting}"), "pod/crashes", "--timeout=50s"]).await;
    let ended = place.crib(&["logs", "-p", "crashes", "-c", "main"]).await.exits(0);
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("it ends\n", ""));
    let ended = place.crib(&["logs", "-p", "crashes", "-c", "good"]).await.exits(1);
    assert_eq!(ended.err, "crib: previous attempt of container \"good\" not found\n");
    out(&place, &["down", "first"]).await;
}

/// A Deployment whose pods send these words on each connection to the port of a Service.
fn server(words: &str) -> String {
    let script = format!(
        "use IO::Socket::INET; my $l = IO::Socket::INET->new(LocalPort => 8080, Listen => 9, ReuseAddr => 1) or die $@; \
         while (my $c = $l->accept()) {{ print $c \"{words}\"; close $c; }}"
    );
    let probe = "readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}";
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  selector: {{matchLabels: {{app: web}}}}\n  template:\n    \
         metadata: {{labels: {{app: web}}}}\n    spec:\n      terminationGracePeriodSeconds: 0\n      containers:\n      - name: main\n        \
         image: crib.local/host\n        command: [perl, -e, {script:?}]\n        ports: [{{name: http, containerPort: 8080}}]\n        {probe}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec: {{selector: {{app: web}}, ports: [{{name: web, port: 80, targetPort: http}}]}}\n"
    )
}

/// The words of a server.
async fn response(address: &str) -> String {
    let mut text = String::new();
    let mut socket = TcpStream::connect(address).await.unwrap();
    let _ = socket.write_all(b"hello").await;
    let _ = socket.read_to_string(&mut text).await;
    text
}

#[tokio::test]
async fn port_forward_continues_when_pods_are_replaced() {
    let place = Place::new();
    let _downs = Downs(&place);
    std::fs::create_dir(place.path("manifests")).unwrap();
    let file = place.file("manifests/web.yaml", &server("first"));
    let manifests = place.path("manifests").display().to_string();
    start(&place, &["first", "--wait", "--watch", &manifests]).await;
    let mut forwards = Vec::new();
    for args in [&["deploy/web", ":http"][..], &["svc/web", ":80"], &["svc/web", ":web"]] {
        let mut running = place.start(&[&["port-forward"], args].concat());
        let line = running.line_with("Forwarding from ").await;
        let local = line.strip_prefix("Forwarding from ").unwrap();
        let (local, remote) = local.split_once(" -> ").unwrap();
        // The pod's port, also for a Service.
        assert_eq!(remote, "8080", "{args:?}");
        let local = local.to_owned();
        assert_eq!(response(&local).await, "first", "{args:?}");
        forwards.push((running, local));
    }
    let pod = out(&place, &["get", "pods", "-o", "name"]).await;
    let mut running = place.start(&["port-forward", pod.trim(), ":http"]);
    running.line_with(" -> 8080").await;
    running.interrupt().await.exits(130);
    std::fs::write(&file, server("second")).unwrap();
    let changed =
        ["wait", "--for=jsonpath={.metadata.generation}=2", "deploy/web", "--timeout=50s"];
    out(&place, &changed).await;
    out(&place, &["rollout", "status", "deploy/web", "--timeout=50s"]).await;
    for (running, local) in forwards {
        harness::eventually(WAIT_LIMIT, "the new pod answers", async || {
            match response(&local).await {
                text if text == "second" => Ok(()),
                text => Err(text),
            }
        })
        .await;
        running.interrupt().await.exits(130);
    }
    let ended = place.crib(&["port-forward", "svc/web", ":81"]).await.exits(2);
    assert_eq!(ended.err, "crib: Service web does not have a service port 81\n");
    let ended = place.crib(&["port-forward", "svc/web", ":http"]).await.exits(2);
    assert_eq!(ended.err, "crib: Service 'web' does not have a named port 'http'\n");
    out(&place, &["down", "first"]).await;
}

#[tokio::test]
async fn describe_shows_objects_with_their_pods_and_endpoints() {
    let place = Place::new();
    let _downs = Downs(&place);
    objects(&place).await;
    out(&place, &["rollout", "status", "deploy/web"]).await;
    for args in [&["deploy/web"][..], &["deployment", "web"], &["deploy/default/web"], &["deploy"]]
    {
        let text = out(&place, &[&["describe"], args].concat()).await;
        assert!(text.starts_with("Name:                   web\n"), "{args:?}: {text}");
        for key in ["Pod Template:", "OldReplicaSets:", "NewReplicaSet:", "Events:"] {
            assert!(text.contains(&format!("\n{key}")), "{key}: {text}");
        }
        assert!(text.contains(" 2 desired | 2 updated | 2 total | 2 available"), "{text}");
        assert!(text.contains("(2/2 replicas created)"), "{text}");
        assert!(text.ends_with("<none>\n"), "{text}");
    }
    let set = out(&place, &["get", "rs", "-o", "name"]).await;
    let text = out(&place, &["describe", set.trim()]).await;
    assert!(text.contains("2 Running / 0 Waiting / 0 Succeeded / 0 Failed"), "{text}");
    assert!(text.contains("Controlled By:  Deployment/web"), "{text}");
    let both = out(&place, &["describe", "svc/web", "job/migrate"]).await;
    assert!(both.contains("\n\n\nName:"), "{both}");
    assert!(both.contains(" / 1 Succeeded / 0 Failed"), "{both}");
    assert!(!both.contains("Events:"), "{both}");
    assert!(both.contains("<unset>  80/TCP"), "{both}");
    assert!(!both.contains("Endpoints:                <none>"), "{both}");
    let json = out(&place, &["describe", "rc/old", "-o", "json"]).await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["objects"][0]["metadata"]["name"], "old");
    assert_eq!(json["pods"], serde_json::json!([]));
    let of_files = ["describe", "-f", &place.file("again.yaml", OBJECTS)];
    let all = out(&place, &of_files).await;
    for kind in ["StrategyType:", "Session Affinity:", "Completions:", "QoS Class:"] {
        assert!(all.contains(kind), "{kind}: {all}");
    }
    let refused = place.crib(&["describe", "pv/a"]).await.exits(2);
    assert!(
        refused.err.starts_with("crib: cannot describe persistentvolumes: "),
        "{}",
        refused.err
    );
    for more in [&[] as &[&str], &["deploy/web"]] {
        let missing = place.crib(&[&["describe", "deploy/none"], more].concat()).await.exits(1);
        assert_eq!(missing.err, "crib: deployments.apps \"none\" not found\n");
        assert_eq!(missing.out.contains("StrategyType:"), !more.is_empty(), "{}", missing.out);
    }
    let none = place.crib(&["describe", "deploy", "-l", "app=none"]).await.exits(0);
    assert_eq!(none.err, "crib: no resources found in default namespace\n");
    out(&place, &["down", "first"]).await;
}
