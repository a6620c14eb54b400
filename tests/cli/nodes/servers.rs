//! `crib runtime` and `crib agent` if something prevents their start: one sentence with the cause and the remedy.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;

use crate::command::*;

/// Asserts that the command could not start, and printed one line about it.
fn assert_refused(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert_eq!(ended.out, "");
    let message: Vec<&str> = ended.err.lines().filter(|line| line.starts_with("crib: ")).collect();
    let [sentence] = message.as_slice() else { panic!("not one sentence: {}", ended.err) };
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in {sentence:?}");
    }
}

async fn runtime_at(place: &Place, socket: &str) -> Ended {
    let state = place.path("state");
    place.crib(&["runtime", "--listen", socket, "--state-dir", state.to_str().unwrap()]).await
}

#[tokio::test]
async fn runtime_rejects_too_long_socket_path() {
    let place = Place::unchecked();
    let socket = place.path(&"s".repeat(120));
    let ended = runtime_at(&place, socket.to_str().unwrap()).await;
    assert_refused(&ended, &["at most 107", "choose a shorter path"]);
}

#[tokio::test]
async fn runtime_rejects_occupied_socket_path() {
    let place = Place::unchecked();
    let file = place.file("file", "precious");
    assert_refused(&runtime_at(&place, &file).await, &["is not a socket", "remove it"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");

    let socket = place.path("busy.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    assert_refused(
        &runtime_at(&place, socket.to_str().unwrap()).await,
        &["already listening", "stop it"],
    );
}

/// As in Bazel's sandboxes. The sockets are in another directory, where other commands find them.
#[tokio::test]
async fn run_works_with_temporary_directory_of_any_length() {
    let place = Place::new();
    let manifest = place.file(
        "pod.yaml",
        &crate::runs::run::pod("p", "trap exit TERM; echo here; sleep 1000 & wait"),
    );
    let far = place.path(&format!("tmp/{}", "d".repeat(200)));
    let short = place.path("short");
    for directory in [&far, &short] {
        std::fs::create_dir(directory).unwrap();
    }
    let with_far = |words: &[&str]| {
        let mut command = place.command(words);
        command.env("TMPDIR", &far).env("XDG_RUNTIME_DIR", &short);
        command
    };
    let mut running = Running::start(with_far(&["run", &manifest]));
    running.line_with("here").await;
    assert_eq!(std::fs::read_dir(&far).unwrap().count(), 1);
    place.end(with_far(&["ps"])).await.exits(0).out_has("crib.local/host");
    place.end(with_far(&["describe", "p"])).await.exits(0).out_has("Name:             p");
    running.interrupt().await.exits(130);
    for directory in [&far, &short] {
        let left: Vec<_> = std::fs::read_dir(directory).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        std::fs::remove_dir(directory).unwrap();
    }
}

#[tokio::test]
async fn runtime_serves_when_log_is_not_writable() {
    let place = Place::new();
    let socket = place.path("s");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = place.command(&[
        "runtime",
        "--until-stdin-closes",
        "--listen",
        socket.to_str().unwrap(),
        "--state-dir",
        place.path("state").to_str().unwrap(),
    ]);
    command.stderr(full);
    // Standard input is at its end from the start: the runtime serves, prints its line, and exits.
    let ended = tokio::time::timeout(WAIT_LIMIT, command.output()).await.unwrap().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(!socket.exists());
    place.wait_until_clean().await;
}

/// The keepers work in other directories.
#[tokio::test]
async fn runtime_runs_pods_with_relative_state_directory() {
    let place = Place::new();
    let socket = place.path("s");
    let socket = socket.to_str().unwrap();
    let mut command =
        place.command(&["runtime", "--listen", socket, "--state-dir", "state", "--ephemeral"]);
    command.current_dir(place.path(""));
    let mut runtime = Running::start(command);
    runtime.line_with("listening").await;
    let endpoint = format!("unix://{socket}");
    let metadata = r#"{"name": "p", "namespace": "default", "uid": "u"}"#;
    let config = place.file("pod.json", &format!(r#"{{"metadata": {metadata}}}"#));
    place.crib(&["--runtime-endpoint", &endpoint, "runp", &config]).await.exits(0);
    assert!(place.path("state").is_dir());
    runtime.stop().await;
    place.wait_until_clean().await;
}

#[tokio::test]
async fn agent_exits_3_when_runtime_is_missing() {
    let place = Place::unchecked();
    let manifests = place.path("tmp");
    let agent = |socket: &str| {
        let args =
            ["agent", "--runtime-endpoint", socket, "--manifests", manifests.to_str().unwrap()]
                .map(str::to_owned);
        let place = &place;
        async move { place.crib(&args.each_ref().map(String::as_str)).await }
    };
    let nothing = place.path("nothing.sock");
    assert_refused(&agent(nothing.to_str().unwrap()).await, &["nothing.sock", "crib runtime"]);

    let socket = place.path("other.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for mut peer in listener.incoming().map_while(Result::ok) {
            let _ = peer.write_all(b"220 mail.example.org ESMTP\r\n");
            let _ = peer.read(&mut [0; 1024]);
        }
    });
    assert_refused(&agent(socket.to_str().unwrap()).await, &["other.sock"]);
}

#[tokio::test]
async fn agent_exits_2_for_image_flags_that_it_cannot_follow() {
    let place = Place::unchecked();
    let (manifests, secrets) = (place.path("tmp"), place.path("secrets.yaml"));
    std::fs::write(&secrets, "apiVersion: v1\nkind: Pod\n").unwrap();
    let secrets = secrets.to_str().unwrap();
    let list = "--preloaded-images-verification-allowlist";
    for (flags, word) in [
        (["--pull-secrets", secrets], "is a \"Pod\""),
        (["--pull-secrets", "/no/such/file"], "/no/such/file"),
        ([list, "nginx"], "NeverVerifyAllowlistedImages"),
        (["--image-gc-high-threshold", "80"], "must be less"),
    ] {
        let mut args = vec!["agent", "--runtime-endpoint", "/no/such.sock"];
        args.extend(["--manifests", manifests.to_str().unwrap()]);
        args.extend(flags);
        let ended = place.crib(&args).await.exits(2);
        ended.err_has(word);
    }
}

#[tokio::test]
async fn runtime_announces_socket_and_removes_it_at_exit() {
    let place = Place::new();
    let (socket, state) = (place.path("a/crib.sock"), place.path("state"));
    let args =
        ["runtime", "--listen", socket.to_str().unwrap(), "--state-dir", state.to_str().unwrap()];
    for _ in 0..2 {
        let mut runtime = place.start(&args);
        let seen = runtime.line_with("").await;
        assert_eq!(seen, format!("listening on unix://{}", socket.display()));
        assert!(socket.exists());
        runtime.stop().await;
        assert!(!socket.exists());
    }
    // The file of a killed one does not prevent the next from starting.
    let mut killed = place.start(&args);
    killed.line_with("listening").await;
    killed.signal(Signal::SIGKILL);
    killed.end().await;
    assert!(socket.exists());
    let mut next = place.start(&args);
    next.line_with("listening").await;

    let other = place.path("b.sock");
    let second = place
        .crib(&[
            "runtime",
            "--listen",
            other.to_str().unwrap(),
            "--state-dir",
            state.to_str().unwrap(),
        ])
        .await;
    assert_refused(&second, &["state", "in use"]);
    next.stop().await;
    place.wait_until_clean().await;
}

#[tokio::test]
async fn agent_runs_manifests_and_leaves_pods_running_at_exit() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let start = || Running::start(place.agent(&endpoint, "manifests", &[]));

    let manifest = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/forever.yaml"
    ))
    .unwrap();
    place.file("manifests/forever.yaml", &manifest);
    let logs = || logs(&place);
    let agent = start();
    eventually("the first line", || {
        if logs().is_empty() { vec!["no log".to_owned()] } else { vec![] }
    })
    .await;
    agent.stop().await;
    let before = logs();
    assert!(!before.contains("goodbye"), "{before}");
    let longer = || {
        if logs().len() > before.len() { vec![] } else { vec![logs()] }
    };
    eventually("another line while there is no agent", longer).await;

    std::fs::remove_file(place.path("manifests/forever.yaml")).unwrap();
    let agent = start();
    eventually("the pod is gone", || walk(&place.path("agent/pods"))).await;
    agent.stop().await;
    runtime.stop().await;
}

/// The output of all containers of the agent.
pub(crate) fn logs(place: &Place) -> String {
    let files = walk(&place.path("agent/logs"));
    files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).collect()
}

/// Everything below a directory, without directories; empty if it does not exist.
fn walk(dir: &std::path::Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path.display().to_string()] })
        .collect()
}
