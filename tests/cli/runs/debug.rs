//! `crib debug`: ephemeral containers in pods of a `crib run`.

use harness::fixture_image::{ImageBuilder, Layer};

use crate::command::*;
use crate::runs::run::pod;

const FOREVER: &str = "trap 'exit 0' TERM; echo up; while true; do sleep 0.1; done";

async fn start(place: &Place) -> Running {
    let mut run = place.start(&["run", &place.file("web.yaml", &pod("web", FOREVER))]);
    run.line_with("up").await;
    run
}

#[tokio::test]
async fn container_is_added_with_kubectls_words_and_shown() {
    let place = Place::new();
    let run = start(&place).await;
    let args =
        ["debug", "web", "--image", "crib.local/host", "--", "sh", "-c", "echo $0 has started"];
    let added = place.crib(&args).await.exits(0);
    let name = added.out.trim_end().strip_prefix("Defaulting debug container name to debugger-");
    let suffix = name.and_then(|name| name.strip_suffix('.'));
    assert_eq!(suffix.map(str::len), Some(5), "{added:?}");
    let name = format!("debugger-{}", suffix.unwrap());
    // The ephemeral container is not restarted, and its exit does not affect the pod.
    harness::eventually(WAIT_LIMIT, "the container has ended", async || {
        let path = format!("jsonpath={{.status.ephemeralContainerStatuses[?(@.name==\"{name}\")].state.terminated.reason}}");
        let shown = place.crib(&["get", "pod", "web", "-o", &path]).await.exits(0);
        if shown.out == "Completed" { Ok(()) } else { Err(shown) }
    })
    .await;
    let described = place.crib(&["describe", "pod/web"]).await.exits(0);
    described.out_has("Ephemeral Containers:");
    let phase = place.crib(&["get", "pod", "web", "-o", "jsonpath={.status.phase}"]).await.exits(0);
    assert_eq!(phase.out, "Running");
    let logs = place.crib(&["logs", "web", "-c", &name]).await.exits(0);
    assert_eq!(logs.out, "sh has started\n");
    run.interrupt().await.exits(130);
}

#[tokio::test]
async fn standard_input_is_attached() {
    let place = Place::new();
    let run = start(&place).await;
    let args = [
        "debug",
        "web",
        "-i",
        "-q",
        "-c",
        "shell",
        "--image",
        "crib.local/host",
        "--env",
        "WORD=said",
        "--profile=baseline",
    ];
    let args = [&args[..], &["--", "sh", "-c", "read line; echo $WORD $line"]].concat();
    let ended = place.crib_with_stdin(&args, "hello\n").await.exits(0);
    assert_eq!(ended.out, "said hello\n");
    let context = "jsonpath={.spec.ephemeralContainers[?(@.name==\"shell\")].securityContext}";
    assert_eq!(place.crib(&["get", "pod", "web", "-o", context]).await.exits(0).out, "");
    run.interrupt().await.exits(130);
}

/// A container whose image has no shell. A debugging container sees its processes.
#[tokio::test]
async fn target_shows_processes_of_a_container_without_shell() {
    harness::needs!(Namespaces);
    let place = Place::new();
    let archive = place.path("image.tar");
    let layer = Layer::new().host_program("/bin/sleep").unwrap();
    ImageBuilder::new("registry.test/bare:1").layer(layer).write_oci(&archive).unwrap();
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
        containers:\n  - name: main\n    image: registry.test/bare:1\n    command: [/bin/sleep, '1234']\n";
    let manifest = place.file("p.yaml", manifest);
    let run = place.start(&["run", "--image-archive", archive.to_str().unwrap(), &manifest]);
    harness::eventually(WAIT_LIMIT, "the container runs", async || {
        let shown = place.crib(&["get", "pods"]).await;
        if shown.out.contains("1/1") { Ok(()) } else { Err(shown) }
    })
    .await;
    let script = "read go; tr '\\0' ' ' </proc/1/cmdline; ls /proc/1/root/bin";
    let args = [
        "debug",
        "web",
        "-i",
        "--image",
        "crib.local/host",
        "--target",
        "main",
        "--",
        "sh",
        "-c",
        script,
    ];
    let seen = place.crib_with_stdin(&args, "go\n").await.exits(0);
    seen.out_has("Targeting container \"main\". If you don't see processes from this container it may be because the container runtime doesn't support this feature.\n");
    seen.out_has("\n/bin/sleep 1234 sleep\n");
    run.interrupt().await.exits(130);
}

#[tokio::test]
async fn refusals_name_the_mistake() {
    let place = Place::new();
    let run = start(&place).await;
    let debug = async |args: &[&str]| place.crib(&[&["debug"], args].concat()).await;
    let image = ["--image", "crib.local/host"];
    let table = [
        (&["nothing"][..], 1, "pod \"nothing\" not found"),
        (&["web", "-c", "main"], 1, "name: duplicate value \"main\""),
        (
            &["web", "--target", "db"],
            1,
            "spec.ephemeralContainers[0].targetContainerName: \"db\" not found",
        ),
        (&["web", "-t"], 2, "--stdin"),
        (&["web", "--profile", "none"], 2, "possible values: general, baseline, restricted"),
    ];
    for (args, code, message) in table {
        debug(&[args, &image].concat()).await.exits(code).err_has(message);
    }
    debug(&["web"]).await.exits(2).err_has("--image");
    run.interrupt().await.exits(130);
    let (runtime, socket) = place.runtime().await;
    let client = harness::Client::new(&place.path("s"));
    let sandbox = fixture::sandbox("p");
    let id = client.run_pod(sandbox).await.unwrap();
    let args = ["debug", "--runtime-endpoint", &socket, &id, "--image", "crib.local/host"];
    place.crib(&args).await.exits(1).err_has("does not belong to a crib run");
    runtime.stop().await;
}

#[tokio::test]
async fn attach_reports_image_pull_failure() {
    let place = Place::new();
    let run = start(&place).await;
    let mut args = vec!["debug", "web", "-i", "--image", "registry.test/none:1"];
    args.extend(["--image-pull-policy", "Never", "-c", "none"]);
    let mut debug = place.command(&args).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = {
        use tokio::io::AsyncBufReadExt as _;
        tokio::io::BufReader::new(debug.stderr.take().unwrap()).lines()
    };
    let line = tokio::time::timeout(WAIT_LIMIT, lines.next_line()).await.unwrap().unwrap().unwrap();
    assert!(line.starts_with("crib: container none is waiting: ErrImageNeverPull: "), "{line}");
    debug.kill().await.unwrap();
    run.interrupt().await.exits(130);
}
