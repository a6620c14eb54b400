//! RuntimeClasses: which of the runtime's handlers they name, and the overhead of their pods.

use nix::sys::signal::Signal;

use super::agent_flags::{free_port, shown};
use super::command::{PATIENCE, Place};

/// Its container ends with 3 if it may write to its root.
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
    let place = Place::new();
    let config = place.file("crib.yaml", "handlers:\n  strict: {read_only_root: true}\n");
    let (runtime, endpoint) = place.runtime_with(&["--config", &config]).await;
    let objects = class("careful", "handler: strict") + &class("gone", "handler: missing");
    place.file("objects/classes.yaml", &objects);
    for (name, of) in [
        ("by-class", "careful"),
        ("by-handler", "strict"),
        ("nowhere", "gone"),
    ] {
        place.file(&format!("pods/{name}.yaml"), &pod(name, of));
    }
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let (pods, objects, root) = (path("pods"), path("objects"), path("agent"));
    let port = free_port();
    let number = port.to_string();
    let flags = [
        "agent",
        "--runtime-endpoint",
        &endpoint,
        "--root-dir",
        &root,
    ];
    let flags = [&flags[..], &["--manifests", &pods, "--objects", &objects]].concat();
    let agent = place.start(&[&flags[..], &["--read-only-port", &number]].concat());
    let expected = [
        "by-class Succeeded ",
        "by-handler Succeeded ",
        "nowhere Pending ",
    ];
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let (seen, _) = shown(port).await;
        if seen == expected {
            break;
        }
        let waits = tokio::time::Instant::now() < deadline;
        assert!(waits, "waited for {expected:?}; last seen: {seen:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    agent.signal(Signal::SIGTERM);
    let ended = agent.end().await;
    assert_eq!(ended.code, Some(0));
    let is_refusal = |line: &str| line.contains("handler \"missing\"");
    assert!(ended.err.lines().any(is_refusal), "{ended:?}");
    runtime.signal(Signal::SIGTERM);
    assert_eq!(runtime.end().await.code, Some(0));
}

#[tokio::test]
async fn pods_of_crib_run_have_overhead_of_their_class() {
    let place = Place::new();
    let class = class("vm", "handler: kata\noverhead: {podFixed: {memory: 20Mi}}");
    let own = pod("p", "vm").replace("spec:\n", "spec:\n  overhead: {memory: 10Mi}\n");
    let manifest = place.file("own.yaml", &(class.clone() + &own));
    let ended = place.crib(&["run", &manifest]).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let words =
        "own.yaml: pod default/p: spec.overhead is not that of the RuntimeClass vm: leave it out";
    assert!(ended.err.contains(words), "{ended:?}");

    // crib's runtime has no such handler.
    let manifest = place.file("vm.yaml", &(class + &pod("p", "vm")));
    let ended = place.crib(&["run", &manifest]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("handler \"kata\""), "{ended:?}");
}
