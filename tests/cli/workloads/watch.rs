//! `crib run --watch`: the effect of changed manifests on running pods.

use crate::command::*;

const TRAP: &str = "trap 'echo bye; exit 0' TERM; ";

fn pod(name: &str, says: &str) -> String {
    let script = format!("{TRAP}echo {says}; while true; do sleep 0.1; done");
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - name: main\n    image: crib.local/host\n    \
         command: [bash, -c, {script:?}]\n"
    )
}

fn deployment(says: &str) -> String {
    let script = format!("{TRAP}echo {says}; while true; do sleep 0.1; done");
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  selector: {{matchLabels: {{app: web}}}}\n  template:\n    \
         metadata: {{labels: {{app: web}}}}\n    spec:\n      containers:\n      - name: main\n        image: crib.local/host\n        \
         command: [bash, -c, {script:?}]\n"
    )
}

/// A directory of manifests.
fn directory(place: &Place) -> String {
    std::fs::create_dir(place.path("manifests")).unwrap();
    place.path("manifests").display().to_string()
}

/// Replaces a file as editors do: writes another file and renames it.
fn replace(place: &Place, name: &str, text: &str) {
    let new = place.path("manifests").join(format!("{name}~"));
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, place.path("manifests").join(name)).unwrap();
}

/// Reads standard error until it contains these words.
async fn errors_until(running: &mut Running, words: &str) -> String {
    use tokio::io::AsyncReadExt as _;
    let stderr = running.child.stderr.as_mut().unwrap();
    let mut text = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&text).contains(words) {
            text.push(stderr.read_u8().await.unwrap());
        }
    };
    let found = tokio::time::timeout(std::time::Duration::from_secs(60), read).await;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(found.is_ok(), "no {words:?} within 60 s: {text}");
    text
}

#[tokio::test]
async fn watched_directory_adds_replaces_and_removes_pods() {
    let place = Place::new();
    let manifests = directory(&place);
    replace(&place, "a.yaml", &pod("a", "first-a"));
    let mut running = place.start(&["run", "--watch", &manifests]);
    running.line_with("first-a").await;
    replace(&place, "b.yaml", &pod("b", "first-b"));
    running.line_with("first-b").await;
    replace(&place, "a.yaml", &pod("a", "second-a"));
    running.line_with("bye").await;
    running.line_with("second-a").await;
    std::fs::remove_file(place.path("manifests/b.yaml")).unwrap();
    running.line_with("bye").await;
    let ended = running.interrupt().await.exits(130);
    for news in [
        "crib: pod default/b is new",
        "crib: pod default/a is replaced, because its manifest changed",
        "crib: pod default/b ends: its manifest was removed",
    ] {
        assert!(ended.err.contains(news), "{news}: {}", ended.err);
    }
    // Pod b was not affected by the change of a, and each pod was started once for each of its manifests.
    for (words, times) in [("first-a", 1), ("second-a", 1), ("first-b", 1), ("bye", 3)] {
        assert_eq!(ended.out.matches(words).count(), times, "{words}: {}", ended.out);
    }
}

#[tokio::test]
async fn immutable_config_map_stays_as_it_was() {
    let place = Place::new();
    let manifests = directory(&place);
    let map = |value: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\nimmutable: true\ndata: {{VALUE: {value}}}\n"
        )
    };
    let reads = |name: &str| {
        let env = "    envFrom: [{configMapRef: {name: m}}]\n    command";
        pod(name, &format!("{name}-$VALUE")).replace("    command", env)
    };
    replace(&place, "m.yaml", &map("one"));
    replace(&place, "a.yaml", &reads("a"));
    let mut running = place.start(&["run", "--watch", &manifests]);
    running.line_with("a-one").await;
    replace(&place, "m.yaml", &map("two"));
    let warning = "crib: warning: configmap default/m is immutable and was not changed: give the new object another name";
    errors_until(&mut running, warning).await;
    replace(&place, "b.yaml", &reads("b"));
    running.line_with("b-one").await;
    running.interrupt().await.exits(130);
}

#[tokio::test]
async fn invalid_change_is_reported_and_pods_stay() {
    let place = Place::new();
    let manifests = directory(&place);
    replace(&place, "a.yaml", &pod("a", "first-a"));
    let mut running = place.start(&["run", "--watch", &manifests]);
    running.line_with("first-a").await;
    replace(&place, "a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {}\n");
    let words = "failed to apply the manifests: the pods are not changed";
    let errors = errors_until(&mut running, words).await;
    assert!(errors.contains("spec.containers"), "{errors}");
    // An unchanged manifest has no effect.
    replace(&place, "a.yaml", &pod("a", "first-a"));
    replace(&place, "b.yaml", &pod("b", "first-b"));
    running.line_with("first-b").await;
    let ended = running.interrupt().await.exits(130);
    assert_eq!(ended.out.matches("first-a").count(), 1, "{}", ended.out);
}

#[tokio::test]
async fn changed_deployment_rolls() {
    let place = Place::new();
    let manifests = directory(&place);
    // Without a probe the old pod is stopped once the new one has started, which may print later.
    let web = |says: &str| {
        let message = format!("echo {says}; touch /dev/shm/said;");
        let probe =
            "exec: {command: [test, -e, /dev/shm/said]}, periodSeconds: 1, timeoutSeconds: 30";
        deployment(says).replace(&format!("echo {says};"), &message)
            + &format!("        readinessProbe: {{{probe}}}\n")
    };
    replace(&place, "web.yaml", &web("first-web"));
    let mut running = place.start(&["run", "--watch", &manifests]);
    running.line_with("first-web").await;
    replace(&place, "web.yaml", &web("second-web"));
    running.line_with("second-web").await;
    running.line_with("bye").await;
    let ended = running.interrupt().await.exits(130);
    // The new pod runs before the old one ends.
    let message: Vec<&str> =
        ended.out.lines().filter_map(|line| line.rsplit("| ").next()).collect();
    assert_eq!(message, ["first-web", "second-web", "bye", "bye"]);
}

/// A rollout whose old pod ignores SIGTERM.
#[tokio::test]
async fn rollout_status_reports_progress_until_complete() {
    let place = Place::new();
    let manifests = directory(&place);
    let deaf = |says: &str| {
        let spec = "    spec:\n      terminationGracePeriodSeconds: 3\n";
        deployment(says)
            .replace("trap 'echo bye; exit 0' TERM", "trap '' TERM")
            .replace("    spec:\n", spec)
    };
    replace(&place, "web.yaml", &deaf("first-web"));
    let mut running = place.start(&["run", "--watch", &manifests]);
    running.line_with("first-web").await;
    replace(&place, "web.yaml", &deaf("second-web"));
    for words in [
        "crib: deployment default/web is updated",
        "crib: deployment default/web: 1 of 1 pods updated, 1 ready, waiting for pod default/web-",
        "crib: deployment default/web: 1 of 1 pods updated, 1 ready: rolled out",
    ] {
        errors_until(&mut running, words).await;
    }
    let ended = running.interrupt().await.exits(130);
    ended.err_has("\n… 1 pod ended and was removed\n");
    let rows: Vec<&str> = ended.err.lines().filter(|line| line.contains(" default/web-")).collect();
    let stopped = rows.iter().filter(|row| row.starts_with("■ default/web-"));
    assert_eq!(stopped.count(), 1, "{}", ended.err);
    assert!(!ended.err.contains('✗'), "{}", ended.err);
}

#[tokio::test]
async fn changed_config_map_is_reported() {
    let place = Place::new();
    let manifests = directory(&place);
    let map = |value: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata: {{VALUE: {value}}}\n"
        )
    };
    replace(&place, "m.yaml", &map("one"));
    replace(&place, "a.yaml", &pod("a", "up"));
    let mut running = place.start(&["run", "--watch", &manifests]);
    running.line_with("up").await;
    replace(&place, "m.yaml", &map("two"));
    errors_until(&mut running, "crib: configmap default/m was updated: volumes are updated too")
        .await;
    running.interrupt().await.exits(130);
}

const SERVER: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: crib.local/host
    command: [perl, -MIO::Socket::INET, -e]
    args:
    - |
      my $tcp = IO::Socket::INET->new(LocalPort => 8080, Listen => 9) or die $@;
      while (my $client = $tcp->accept()) { print {$client} "served\n"; }
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: crib.local/host
    command: [bash, -c]
    args:
    - |
      address() { getent ahostsv4 web | sed -n '1s/ .*//p'; }
      page() { exec 3<>"/dev/tcp/web/$1" && cat <&3; }
      until [ "$(page 80 2>/dev/null)" = served ]; do sleep 0.1; done
      first=$(address)
      echo added
      until [ "$(page 81 2>/dev/null)" = served ]; do sleep 0.1; done
      [ "$(address)" = "$first" ] && echo changed
      while [ "$(address)" ]; do sleep 0.1; done
      echo removed
      sleep infinity
"#;

#[tokio::test]
async fn changed_services_are_applied_and_keep_their_addresses() {
    let place = Place::new();
    let manifests = directory(&place);
    replace(&place, "pods.yaml", SERVER);
    let mut running = place.start(&["run", "-q", "--watch", &manifests]);
    let service = |port: u16| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: web}}\n\
             spec: {{type: NodePort, selector: {{app: web}}, ports: [{{port: {port}, targetPort: 8080}}]}}\n"
        )
    };
    let other = service(80).replace("web", "other");
    replace(&place, "web.yaml", &service(80));
    running.line_with("added").await;
    let errors =
        errors_until(&mut running, "service default/web: port 80 is reachable at 127.0.0.1:3")
            .await;
    assert!(!errors.contains("warning"), "{errors}");
    replace(&place, "other.yaml", &other);
    replace(&place, "web.yaml", &service(81));
    running.line_with("changed").await;
    errors_until(&mut running, "service default/web: port 81 is reachable at 127.0.0.1:3").await;
    std::fs::remove_file(place.path("manifests/web.yaml")).unwrap();
    running.line_with("removed").await;
    running.interrupt().await.exits(130);
}

#[tokio::test]
async fn standard_input_cannot_be_watched() {
    let place = Place::new();
    let ended = place.crib(&["run", "--watch", "-"]).await.exits(2);
    ended.err_has("standard input cannot be watched");
}

/// Like a change of the subresource `resize`: the container keeps running with its new limits.
#[tokio::test]
async fn changed_memory_of_running_pod_is_resized_in_place() {
    let place = Place::unchecked();
    let manifests = directory(&place);
    let with_memory = |memory: &str| {
        let resources = format!("resources: {{requests: {{memory: {memory}}}}}\n    command");
        pod("a", "first-a").replace("command", &resources)
    };
    replace(&place, "a.yaml", &with_memory("10Mi"));
    let mut running = place.start(&["run", "--watch", &manifests]);
    running.line_with("first-a").await;
    replace(&place, "a.yaml", &with_memory("20Mi"));
    let reported = errors_until(&mut running, "ResizeCompleted").await;
    let ended = running.interrupt().await.exits(130);
    let updated = "crib: pod default/a is updated";
    assert!(reported.contains(updated), "{reported}");
    assert_eq!(ended.out.matches("first-a").count(), 1, "{ended:?}");
}
