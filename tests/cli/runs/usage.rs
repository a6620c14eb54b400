//! Invalid arguments, help and version.

use std::path::Path;

use crate::command::*;
use crate::runs::run::pod;
use crate::tools::reference::commands;

#[tokio::test]
async fn bad_flags_exit_2_with_message() {
    let place = Place::new();
    let empty = place.path("empty");
    std::fs::create_dir(&empty).unwrap();
    let config = place.file("c.yaml", "registries:\n  docker.io: {mirror: x}\n");
    let multicast = place.file("m.yaml", "network:\n  pod_cidr: ff00::/64\n");
    let table: [(&[&str], &str); 10] = [
        (
            &["runtime", "--pod-cidr", "127.0.0.0/8"],
            "the subnet 127.0.0.0/8 has loopback addresses (127.0.0.0/8), which no pod can have; take one such as",
        ),
        (
            &["runtime", "--config", &multicast],
            "m.yaml:2:13: network.pod_cidr: the subnet ff00::/64 has multicast addresses",
        ),
        (
            &["runtime", "--config", &config],
            "c.yaml:2:15: registries.docker.io.mirror: unknown field `mirror`, expected one of",
        ),
        (
            &["runtime", "--config", "/nowhere.yaml"],
            "failed to read the configuration /nowhere.yaml: No such file",
        ),
        (&[], "Usage: crib"),
        (&["run"], "required arguments were not provided"),
        (&["run", "--timeout", "soon", "x"], "invalid duration"),
        (
            &["run", "/nowhere/pod.yaml"],
            "failed to read the manifest /nowhere/pod.yaml: No such file or directory",
        ),
        (&["run", empty.to_str().unwrap()], "no *.yaml, *.yml or *.json file"),
        (&["runtime", "--listen", "tcp://127.0.0.1:1"], "give a unix socket"),
    ];
    for (args, sentence) in table {
        let ended = place.crib(args).await;
        assert_eq!(ended.code, Some(2), "{args:?}: {ended:?}");
        assert!(ended.err.contains(sentence), "{args:?}: {}", ended.err);
        assert_eq!(ended.out, "", "{args:?}");
    }
}

#[tokio::test]
async fn run_rejects_image_archive_that_cannot_have_images() {
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "true"));
    let [empty, fifo, socket] = ["empty", "fifo", "socket"].map(|name| place.path(name));
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(empty.join("README"), "images go here").unwrap();
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let neither = "it is neither a file nor a directory";
    for (archive, sentence) in [
        (Path::new("/dev/zero"), neither),
        (fifo.as_path(), neither),
        (socket.as_path(), neither),
        (empty.as_path(), "contains no image"),
    ] {
        let args = ["run", "--image-archive", archive.to_str().unwrap(), &manifest];
        let ended = place.crib(&args).await.exits(2);
        ended.err_has(sentence);
        assert_eq!(ended.out, "", "{args:?}");
    }
}

#[tokio::test]
async fn run_prints_all_manifest_errors_and_starts_nothing() {
    let place = Place::new();
    let one = place.file(
        "one.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: one}\nspec:\n  containers:\n  - nam: x\n",
    );
    let two = place.file("two.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: two}\nspec: [\n");
    let ended = place.crib(&["run", &one, "/nowhere.yaml", &two]).await.exits(2);
    for place in ["one.yaml:6:", "two.yaml:", "/nowhere.yaml"] {
        assert!(ended.err.contains(place), "{place}: {}", ended.err);
    }
    assert_eq!(ended.out, "");
}

#[tokio::test]
async fn run_reads_manifest_from_stdin() {
    let ended =
        Place::unchecked().crib_with_stdin(&["run", "-"], "kind: Nonsense\n").await.exits(2);
    ended.err_has("<stdin>:");
}

#[tokio::test]
async fn version_help_and_completions_are_printed() {
    let place = Place::unchecked();
    let plain = place.crib(&["version"]).await.exits(0);
    assert!(plain.out.starts_with(concat!("crib ", env!("CARGO_PKG_VERSION"))), "{}", plain.out);
    // As composed by the build script, with the commit if known.
    let version = place.crib(&["--version"]).await.out;
    assert_eq!(version, concat!("crib ", env!("CRIB_VERSION"), "\n"));
    assert!(version.starts_with(concat!("crib ", env!("CARGO_PKG_VERSION"))));
    assert_eq!(plain.out.lines().next(), version.lines().next());
    let json: Value =
        serde_json::from_str(&place.crib(&["version", "--output", "json"]).await.out).unwrap();
    assert_eq!(json["crib"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["cri"], "v1");

    for command in commands(&place, "").await {
        let help = place.crib(&[command.as_str(), "--help"]).await.exits(0);
        help.out_has("Examples:");
    }
    let help = place.crib(&["run", "--help"]).await.out;
    for code in ["0  ", "1  ", "2  ", "3  ", "124  ", "130  "] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(code)), "{code}: {help}");
    }
    place.crib(&["down", "--help"]).await.out_has("\n  124  a run did not answer in time");
    for shell in ["bash", "zsh", "fish"] {
        let script = place.crib(&["completions", shell]).await;
        assert!(script.code == Some(0) && script.out.contains("CRIB_COMPLETE"), "{shell}");
    }
}

#[tokio::test]
async fn empty_endpoint_variable_counts_as_unset() {
    let place = Place::unchecked();
    let mut command = place.command(&["ps"]);
    command.env("CONTAINER_RUNTIME_ENDPOINT", "").env("IMAGE_SERVICE_ENDPOINT", "");
    let with_empty = place.end(command).await;
    let mut command = place.command(&["ps"]);
    command.env_remove("CONTAINER_RUNTIME_ENDPOINT").env_remove("IMAGE_SERVICE_ENDPOINT");
    let without = place.end(command).await;
    assert_eq!(with_empty.code, without.code, "{with_empty:?}");
    assert_eq!(with_empty.err, without.err);
    assert!(!with_empty.err.contains("invalid value"), "{with_empty:?}");

    let mut agent = place.command(&["agent", "--manifests", "/"]);
    agent.env("CONTAINER_RUNTIME_ENDPOINT", "");
    let ended = place.end(agent).await.exits(2);
    ended.err_has("an empty endpoint: give a unix socket");
}

#[tokio::test]
async fn exec_with_terminal_needs_one() {
    let place = Place::unchecked();
    let ended = place.crib(&["exec", "-it", "main", "sh"]).await.exits(2);
    assert_eq!(
        ended.err,
        "crib: standard input is not a terminal: leave out --tty, or run this in a terminal\n"
    );
}
