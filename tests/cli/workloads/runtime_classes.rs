//! RuntimeClasses: the runtime handlers that they name, and the overhead of their pods.

use crate::command::*;
use crate::nodes::agent_flags::{free_port, wait_until_shown};

/// The container exits with 3 if it can write to its root.
fn pod(name: &str, class: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: Never\n  runtimeClassName: {class}\n  \
         containers:\n  - {{name: app, image: crib.local/host, command: [sh, -c, 'touch /x 2>/dev/null && rm /x && exit 3; exit 0']}}\n"
    )
}

fn class(name: &str, more: &str) -> String {
    format!(
        "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {{name: {name}}}\n{more}\n---\n"
    )
}

#[tokio::test]
async fn class_names_handler_of_its_pods() {
    let place = Place::unchecked();
    let config = place.file("crib.yaml", "handlers:\n  strict: {read_only_root: true}\n");
    let (runtime, endpoint) = place.runtime_with(&["--config", &config]).await;
    let objects = class("careful", "handler: strict") + &class("gone", "handler: missing");
    place.file("objects/classes.yaml", &objects);
    for (name, of) in [("by-class", "careful"), ("by-handler", "strict"), ("nowhere", "gone")] {
        place.file(&format!("pods/{name}.yaml"), &pod(name, of));
    }
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let (pods, objects, root) = (path("pods"), path("objects"), path("agent"));
    let port = free_port();
    let number = port.to_string();
    let flags = ["agent", "--runtime-endpoint", &endpoint, "--root-dir", &root];
    let flags = [&flags[..], &["--manifests", &pods, "--objects", &objects]].concat();
    let agent = place.start(&[&flags[..], &["--read-only-port", &number]].concat());
    let expected = ["by-class Succeeded ", "by-handler Succeeded ", "nowhere Pending "];
    wait_until_shown(port, &expected).await;
    agent.signal(Signal::SIGTERM);
    let ended = agent.end().await.exits(0);
    let is_refusal = |line: &str| line.contains("handler \"missing\"");
    assert!(ended.err.lines().any(is_refusal), "{ended:?}");
    runtime.stop().await;
}

#[tokio::test]
async fn pods_of_crib_run_have_overhead_of_their_class() {
    let place = Place::unchecked();
    let class = class("vm", "handler: kata\noverhead: {podFixed: {memory: 20Mi}}");
    let own = pod("p", "vm").replace("spec:\n", "spec:\n  overhead: {memory: 10Mi}\n");
    let manifest = place.file("own.yaml", &(class.clone() + &own));
    let ended = place.crib(&["run", &manifest]).await.exits(2);
    let words =
        "own.yaml: pod default/p: spec.overhead is not that of the RuntimeClass vm: leave it out";
    ended.err_has(words);

    // crib's runtime has no such handler.
    let manifest = place.file("vm.yaml", &(class + &pod("p", "vm")));
    let ended = place.crib(&["run", &manifest]).await.exits(1);
    ended.err_has("handler \"kata\"");
}
