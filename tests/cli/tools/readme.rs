//! The README's commands, run as they are written; only the machine's paths and ports are replaced.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use harness::fixture_image::{ImageBuilder, Layer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::command::*;
use crate::nodes::agent_flags::free_port;

/// A pod that serves on its port 80 until SIGTERM.
const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: main
    image: crib.local/host
    command: [perl, -e]
    args:
    - |
      use IO::Socket::INET;
      $| = 1;
      $SIG{TERM} = sub { exit 0 };
      my $listener = IO::Socket::INET->new(LocalAddr => "127.0.0.1:80", Listen => 9) or die "cannot listen: $@\n";
      print "listening\n";
      while (my $peer = $listener->accept()) { print {$peer} "hello from port 80\n"; close($peer); }
"#;

/// The test that runs each command in the README's blocks, or another place, or the reason why none does.
const COMMANDS: [(&str, By); 27] = [
    (
        "cargo install --locked --path harness/crib",
        By::Nothing("a release build takes minutes; cargo test builds the same program"),
    ),
    ("crib run examples/hello.yaml", By::Test("runs/run", "run_exits_0_when_pods_succeed")),
    (
        "crib check --runtime-endpoint unix:///run/containerd/containerd.sock --report html=check.html",
        By::Test("tools/check", "check_of_runtime_passes_and_writes_reports"),
    ),
    (
        "crib proxy --listen unix:///tmp/p.sock --upstream unix:///run/crib/crib.sock --fault 'ListContainers after 1 fail INTERNAL' --lint",
        By::Test("tools/proxy", "client_meets_faults_and_is_judged"),
    ),
    (
        "crib bench --vs unix:///run/containerd/containerd.sock --report html=bench.html",
        By::Test("tools/bench", "two_runtimes_are_measured_in_turns"),
    ),
    (
        "crib runtime --listen unix:///run/crib/crib.sock",
        By::Test("tools/readme", "components_run_separately"),
    ),
    (
        "crib agent --runtime-endpoint unix:///run/crib/crib.sock --manifests ./pods",
        By::Test("tools/readme", "components_run_separately"),
    ),
    ("crib ps -a", By::Test("tools/readme", "components_run_separately")),
    ("crib logs -f web", By::Test("tools/readme", "components_run_separately")),
    ("crib exec -it web sh", By::Test("tools/readme", "components_run_separately")),
    ("crib cp web:/var/log/app.log .", By::Test("clients/cp", "tree_is_the_same_after_both_ways")),
    ("crib port-forward web 8080:80", By::Test("tools/readme", "components_run_separately")),
    (
        "crib inspect -o go-template --template '{{.info.pid}}' web",
        By::Test("tools/readme", "components_run_separately"),
    ),
    (
        "crib registry --listen 127.0.0.1:5000 --root images/ --load busybox.tar --load layouts/",
        By::Test("tools/readme", "images_come_from_registry_and_archives"),
    ),
    (
        "cargo run -- run examples/hello.yaml",
        By::Nothing("cargo test has the same program, and runs it with this manifest"),
    ),
    ("cargo test", By::Ci("run_tests root as_root cargo test")),
    // Commands within sentences.
    ("source <(crib completions bash)", By::Test("tools/readme", "completions_are_read_by_bash")),
    ("crib man --output DIR", By::Test("tools/reference", "manual_pages_are_printed_and_written")),
    ("cargo deb --package crib", By::Nothing("it needs cargo-deb")),
    (
        "crib runtime --until-stdin-closes --ephemeral",
        By::Test("tools/readme", "images_come_from_registry_and_archives"),
    ),
    (
        "crib runtime --stream-address 127.0.0.1:10010",
        By::Test("tools/readme", "components_run_separately"),
    ),
    ("crib runtime --config FILE", By::Test("tools/readme", "components_run_separately")),
    (
        "crib run --image-archive images/ pod.yaml",
        By::Test("tools/readme", "images_come_from_registry_and_archives"),
    ),
    ("crib logs server", By::Test("runs/live", "pods_of_all_runs_are_found_without_endpoint")),
    ("crib run --name web pod.yaml", By::Test("runs/background", "named_run_is_listed_until_down")),
    ("crib down web", By::Test("runs/background", "named_run_is_listed_until_down")),
    ("crib exec server sh", By::Test("runs/live", "pods_of_all_runs_are_found_without_endpoint")),
];

#[derive(Clone, Copy)]
enum By {
    /// A test, by its file and its name.
    Test(&'static str, &'static str),
    /// A step of `.ci/run`, by a part of its line.
    Ci(&'static str),
    /// Not run, for this reason.
    Nothing(&'static str),
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap()
}

/// The commands in the README's indented blocks.
fn blocks(readme: &str) -> Vec<&str> {
    let (mut fenced, mut session, mut found) = (false, false, Vec::new());
    for line in readme.lines() {
        fenced ^= line.starts_with("```");
        let Some(line) = line.strip_prefix("    ").filter(|_| !fenced) else {
            session &= line.is_empty();
            continue;
        };
        match line.strip_prefix("$ ") {
            Some(typed) => {
                session = true;
                found.push(typed);
            }
            None if session => {}
            None => found.push(line),
        }
    }
    found
}

#[test]
fn every_command_of_readme_is_run_or_has_a_reason_not_to_be() {
    let (readme, ci) = (read("README.md"), read(".ci/run"));
    for line in blocks(&readme) {
        assert!(COMMANDS.iter().any(|(command, _)| *command == line), "no test runs {line:?}");
    }
    let flat = readme.replace('\n', " ");
    for (command, by) in COMMANDS {
        assert!(flat.contains(command), "README.md does not show {command:?}");
        match by {
            By::Test(file, name) => {
                let tests = read(&format!("tests/cli/{file}.rs"));
                assert!(
                    tests.contains(&format!("fn {name}(")),
                    "{command}: no test {file}::{name}"
                );
            }
            By::Ci(line) => assert!(ci.contains(line), "{command}: .ci/run does not say {line:?}"),
            By::Nothing(reason) => assert!(!reason.is_empty()),
        }
    }
}

/// Runs a line of the README in a shell: with another socket than the machine's, with `changes`, and with additional options.
pub(crate) fn shown(place: &Place, line: &str, changes: &[(&str, &str)], options: &str) -> Command {
    assert!(
        COMMANDS.iter().any(|(command, _)| *command == line),
        "README.md does not show {line:?}"
    );
    let mut line = line.replace("/run/crib/crib.sock", &socket(place));
    for (from, to) in changes {
        assert!(line.contains(from), "{line:?} has no {from:?}");
        line = line.replace(from, to);
    }
    shell(place, &format!("exec {line} {options}"))
}

fn socket(place: &Place) -> String {
    place.path("crib.sock").display().to_string()
}

/// A shell in `place` with `crib` on its PATH.
fn shell(place: &Place, script: &str) -> Command {
    let directory = Path::new(env!("CARGO_BIN_EXE_crib")).parent().unwrap();
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.args(["-c", script])
        .current_dir(place.path(""))
        .env("PATH", path)
        .env("CONTAINER_RUNTIME_ENDPOINT", format!("unix://{}", socket(place)))
        .env("TMPDIR", place.path("tmp"))
        .env("XDG_DATA_HOME", place.path("data"))
        .env("XDG_RUNTIME_DIR", place.path("xdg"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    bash
}

async fn end(running: Running, signal: Signal, code: i32) {
    running.signal(signal);
    running.end().await.exits(code);
}

#[tokio::test]
async fn components_run_separately() {
    let place = Place::new();
    std::fs::create_dir(place.path("pods")).unwrap();
    place.file("pods/web.yaml", WEB);
    place.file("FILE", "streams:\n  idle_timeout: 1h\n");
    let state = place.path("state").display().to_string();
    let options = format!(
        "--ephemeral --state-dir {state} --config FILE --stream-address 127.0.0.1:{}",
        free_port()
    );
    let mut runtime = Running::start(shown(
        &place,
        "crib runtime --listen unix:///run/crib/crib.sock",
        &[],
        &options,
    ));
    runtime.line_with("listening on unix://").await;
    let agent = Running::start(shown(
        &place,
        "crib agent --runtime-endpoint unix:///run/crib/crib.sock --manifests ./pods",
        &[],
        &format!("--root-dir {}", place.path("agent").display()),
    ));
    harness::eventually(WAIT_LIMIT, "the pod listens", async || {
        let logs = place.end(shell(&place, "crib logs web")).await;
        if logs.out == "listening\n" { Ok(()) } else { Err(format!("{logs:?}")) }
    })
    .await;

    let listed = place.end(shown(&place, "crib ps -a", &[], "")).await.exits(0);
    assert!(listed.out.contains("main") && listed.out.contains("Running"), "{}", listed.out);
    let mut logs = Running::start(shown(&place, "crib logs -f web", &[], ""));
    logs.line_with("listening").await;
    end(logs, Signal::SIGINT, 130).await;

    // A terminal, in which a user would type.
    let in_terminal = ("crib exec -it web sh", "script -qec 'crib exec -it web sh' /dev/null");
    let mut terminal = shown(&place, in_terminal.0, &[in_terminal], "");
    let mut terminal = terminal.stdin(Stdio::piped()).spawn().unwrap();
    let mut keys = terminal.stdin.take().unwrap();
    keys.write_all(b"test -t 0 && exit 4\n").await.unwrap();
    let typed = tokio::time::timeout(WAIT_LIMIT, terminal.wait_with_output()).await;
    let typed = typed.expect("it did not end").unwrap();
    drop(keys);
    assert_eq!(typed.status.code(), Some(4), "{}", String::from_utf8_lossy(&typed.stdout));

    let port = free_port();
    let ports = ("8080:80", &*format!("{port}:80"));
    let mut forward = Running::start(shown(&place, "crib port-forward web 8080:80", &[ports], ""));
    forward.line_with(" -> 80").await;
    let mut connection = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "hello from port 80\n");
    end(forward, Signal::SIGINT, 130).await;

    let template = "crib inspect -o go-template --template '{{.info.pid}}' web";
    let inspected = place.end(shown(&place, template, &[], "")).await.exits(0);
    let process = Path::new("/proc").join(inspected.out.trim());
    assert!(inspected.out.trim().parse::<u32>().is_ok() && process.exists(), "{}", inspected.out);

    end(agent, Signal::SIGTERM, 0).await;
    end(runtime, Signal::SIGTERM, 0).await;
    place.wait_until_clean().await;
}

/// An image whose only program prints a line.
fn image(name: &str) -> ImageBuilder {
    let layer = Layer::new().host_program("/bin/echo").unwrap();
    ImageBuilder::new(name).layer(layer).entrypoint(["/bin/echo", "hello from", name])
}

#[tokio::test]
async fn images_come_from_registry_and_archives() {
    let place = Place::new();
    for directory in ["images", "layouts"] {
        std::fs::create_dir(place.path(directory)).unwrap();
    }
    let names = ["docker.io/library/busybox:1", "quay.io/team/app:2", "registry.test/archived:3"];
    image(names[0]).write_docker(&place.path("busybox.tar")).unwrap();
    image(names[1]).write_oci_layout(&place.path("layouts/app")).unwrap();
    let line =
        "crib registry --listen 127.0.0.1:5000 --root images/ --load busybox.tar --load layouts/";
    // The archives of the last command are in a directory of this name, too.
    let changes = [(":5000", ":0"), ("images/", "stored/")];
    let mut registry = Running::start(shown(&place, line, &changes, ""));
    let url = registry.line_with("listening on ").await;
    let url = url.strip_prefix("listening on ").unwrap();

    // Both registries' names, which are on the internet, are served here.
    let state = place.path("state").display().to_string();
    let options = format!(
        "--state-dir {state} --registry-mirror docker.io={url}/docker.io --registry-mirror quay.io={url}/quay.io"
    );
    let line = "crib runtime --until-stdin-closes --ephemeral";
    let mut runtime =
        shown(&place, line, &[], &format!("{options} --listen unix://{}", socket(&place)));
    runtime.stdin(Stdio::piped());
    let mut runtime = Running::start(runtime);
    let input = runtime.child.stdin.take();
    runtime.line_with("listening on unix://").await;
    for name in &names[..2] {
        place.end(shell(&place, &format!("crib pull {name}"))).await.exits(0);
    }
    drop(input);
    runtime.end().await.exits(0);
    end(registry, Signal::SIGTERM, 0).await;

    image(names[2]).write_oci(&place.path("images/archived.tar")).unwrap();
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  restartPolicy: Never\n  \
        containers: [{name: main, image: 'registry.test/archived:3'}]\n";
    place.file("pod.yaml", manifest);
    let ran = place
        .end(shown(&place, "crib run --image-archive images/ pod.yaml", &[], ""))
        .await
        .exits(0);
    assert_eq!(ran.out, "p/main | hello from registry.test/archived:3\n");
    place.wait_until_clean().await;
}

#[tokio::test]
async fn completions_are_read_by_bash() {
    let place = Place::unchecked();
    let line = "source <(crib completions bash)";
    shown(&place, line, &[], "");
    let read = place.end(shell(&place, &format!("{line} && complete -p crib"))).await.exits(0);
    read.out_has("crib");
}
