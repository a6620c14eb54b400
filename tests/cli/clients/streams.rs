//! `crib exec`, `attach` and `port-forward` against a real runtime, through pipes and at a terminal.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::command::*;

/// Runs a command against a runtime with this standard input; returns its exit code and both outputs.
async fn crib(runtime: &Runtime, args: &[&str], stdin: &[u8]) -> (Option<i32>, Vec<u8>, String) {
    let place = Place::unchecked();
    let socket = runtime.socket().display().to_string();
    let (command, rest) = args.split_first().unwrap();
    let mut all = vec![*command, "--runtime-endpoint", &socket];
    all.extend(rest);
    let mut child = place.command(&all).stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let input = async {
        // A command that does not read its input may exit before it has all.
        let _ = pipe.write_all(stdin).await;
        drop(pipe);
    };
    let both = async { tokio::join!(input, child.wait_with_output()).1.unwrap() };
    let output = tokio::time::timeout(WAIT_LIMIT, both).await.expect("it did not end");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), output.stdout, err)
}

/// A runtime with a pod whose container `main` runs until it is stopped, and the container's id.
async fn with_main() -> (Runtime, harness::Pod, String) {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("main")).await.unwrap();
    (runtime, pod, id)
}

#[rstest]
#[case("spdy")]
#[case("websocket")]
#[tokio::test]
async fn exec_connects_streams_and_returns_exit_code(#[case] transport: &str) {
    let (runtime, ..) = with_main().await;
    let script = "echo out; echo err >&2; exit 9";
    let args = ["exec", "-r", transport, "main", "sh", "-c", script];
    let (code, out, err) = crib(&runtime, &args, b"unread").await;
    assert_eq!((code, &out[..], err.as_str()), (Some(9), &b"out\n"[..], "err\n"));
    // Bytes of all values, more than any buffer holds, in both directions.
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let args = ["exec", "--transport", transport, "-i", "main", "cat"];
    let (code, out, err) = crib(&runtime, &args, &bytes).await;
    assert!(code == Some(0) && out == bytes, "{code:?} {} {err}", out.len());
}

#[rstest]
#[case::spdy(&["-r", "spdy", "main", "yes"])]
#[case::websocket(&["-r", "websocket", "main", "yes"])]
#[case::attach(&["talks"])]
#[tokio::test]
async fn stream_ends_when_its_output_is_closed(#[case] args: &[&str]) {
    let (runtime, pod, _) = with_main().await;
    pod.start(pod.script("talks", "while :; do echo y; sleep 0.01; done")).await.unwrap();
    let place = Place::unchecked();
    let socket = runtime.socket().display().to_string();
    let command = if args == ["talks"] { "attach" } else { "exec" };
    let mut running = place.start(&[&[command, "--runtime-endpoint", &socket], args].concat());
    running.line_with("y").await;
    let ended = running.stop_reading().wait_with_output();
    let ended = tokio::time::timeout(WAIT_LIMIT, ended).await.unwrap().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
}

/// Like shells and `podman exec`.
#[rstest]
#[case::not_in_path("no-such-program", 127, "executable file not found in $PATH")]
#[case::no_name("", 127, "executable file not found in $PATH")]
#[case::not_there("/no/such/program", 127, "no such file or directory")]
#[case::no_program("/etc/passwd", 126, "permission denied")]
#[case::a_directory("/etc", 126, "permission denied")]
#[tokio::test]
async fn exec_exits_126_or_127_when_command_cannot_start(
    #[case] program: &str,
    #[case] exit_code: i32,
    #[case] reason: &str,
) {
    let (runtime, ..) = with_main().await;
    let mut reported = Vec::new();
    for how in [&["exec"][..], &["exec", "-r", "websocket"], &["exec", "--sync"]] {
        let args = [how, &["main", program]].concat();
        let (code, out, err) = crib(&runtime, &args, b"").await;
        assert_eq!(code, Some(exit_code), "{args:?} {err}");
        assert!(out.is_empty(), "{args:?}");
        let begins = format!("crib: exec: {program:?}: ");
        assert!(
            err.starts_with(&begins) && err.contains(reason) && err.lines().count() == 1,
            "{args:?} {err}"
        );
        reported.push(err);
    }
    assert!(reported.iter().all(|err| *err == reported[0]), "{reported:?}");
}

#[tokio::test]
async fn exec_runs_in_containers_that_fit_filters() {
    let runtime = Runtime::with().start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut ids = Vec::new();
    for name in ["web-1", "web-2", "db"] {
        ids.push(pod.start(fixture::forever(name)).await.unwrap());
    }
    let [first, second, _] = ids.as_slice() else { unreachable!() };
    let exec = async |args: &[&str]| {
        let (code, out, err) = crib(&runtime, &[&["exec"], args].concat(), b"").await;
        (code, String::from_utf8(out).unwrap(), err)
    };
    // The newest container comes first. Flags after the command belong to the command.
    let (code, out, _) = exec(&["--name", "^web", "ls", "-d", "/"]).await;
    assert_eq!((code, out), (Some(0), format!("{second}:\n/\n{first}:\n/\n")));
    let (code, out, _) = exec(&["-q", "--latest", "echo", "-n", "one"]).await;
    assert_eq!((code, out.as_str()), (Some(0), "one"));
    let (code, out, _) = exec(&["--parallel", "--pod", &pod.id, "--", "echo", "all"]).await;
    assert_eq!((code, out.as_str()), (Some(0), "all\nall\nall\n"));
    let (code, out, _) = exec(&["-qs", "--state", "running", "echo", "sync"]).await;
    assert_eq!((code, out.as_str()), (Some(0), "sync\nsync\nsync\n"));
    // Both run concurrently: each waits for the other's file.
    let meet = "mktemp /dev/shm/XXXXXX; for n in $(seq 600); do set -- /dev/shm/*; [ $# -gt 1 ] && exit 5; sleep 0.1; done";
    let (code, _, err) = exec(&["-x", "--name", "^web", "sh", "-c", meet]).await;
    assert_eq!(code, Some(5), "{err}");
    let (code, out, _) = exec(&["-q", "--name", "^web", "sh", "-c", "echo x; exit 6"]).await;
    assert_eq!((code, out.as_str()), (Some(6), "x\nx\n"));

    let (code, out, err) = exec(&["-qe", "--name", "^web", "/no/such/program"]).await;
    assert_eq!((code, out.as_str()), (Some(0), ""));
    assert_eq!(err.lines().count(), 2, "{err}");
    let (code, _, err) = exec(&["--name", "nothing", "true"]).await;
    assert_eq!((code, err.as_str()), (Some(1), "crib: no container matches the filters\n"));
    let (code, _, err) = exec(&["-c", "main", "--name", "^web", "true"]).await;
    assert!(code == Some(2) && err.contains("cannot be used with"), "{err}");
    let (code, _, err) = exec(&["-i", "--name", "^web", "cat"]).await;
    assert_eq!(code, Some(2));
    assert_eq!(err, "crib: --interactive needs a single container, but 2 match\n");
}

#[tokio::test]
async fn exec_without_tty_detaches_on_ctrl_c() {
    let (runtime, _, id) = with_main().await;
    let (place, socket) = (Place::unchecked(), runtime.socket().display().to_string());
    let script =
        "trap '' PIPE; echo begun; while echo more; do sleep 0.1; done; echo at its end > /tmp/end";
    let mut running =
        place.start(&["exec", "--runtime-endpoint", &socket, "main", "sh", "-c", script]);
    running.line_with("begun").await;
    let ended = running.interrupt().await;
    assert_eq!((ended.code, ended.err.as_str()), (Some(130), ""));
    // Then its output has no reader any more.
    harness::eventually(WAIT_LIMIT, "the end of a program that writes", async || {
        let argv = ["cat", "/tmp/end"].map(str::to_owned).to_vec();
        let cat = runtime.client.exec(&id, argv, 10).await.unwrap();
        match cat.stdout.as_slice() {
            b"at its end\n" => Ok(()),
            _ => Err(String::from_utf8_lossy(&cat.stderr).into_owned()),
        }
    })
    .await;
}

#[tokio::test]
async fn exec_exits_3_when_runtime_exits() {
    let mut runtime = Runtime::with().start().await.unwrap();
    let pod = runtime.pod("web").await.unwrap();
    pod.start(pod.script("main", "echo begun; exec sleep 1000")).await.unwrap();
    let (place, socket) = (Place::unchecked(), runtime.socket().display().to_string());
    let start = |args: &[&str]| {
        let (command, rest) = args.split_first().unwrap();
        place.start(&[&[*command, "--runtime-endpoint", &socket], rest].concat())
    };
    const SCRIPT: &str = "echo begun; exec sleep 1000";
    let commands: [&[&str]; 5] = [
        &["exec", "main", "sh", "-c", SCRIPT],
        &["exec", "-r", "websocket", "main", "sh", "-c", SCRIPT],
        &["logs", "-f", "main"],
        &["port-forward", "web", ":80"],
        &["port-forward", "-r", "websocket", "web", ":80"],
    ];
    let mut all = Vec::new();
    for args in commands {
        let mut running = start(args);
        let first = match args[0] {
            "port-forward" => "Forwarding",
            _ => "begun",
        };
        running.line_with(first).await;
        all.push((args, running));
    }
    let mut events = start(&["events"]);
    // The first pods may be created before the subscription: create pods until an event is printed.
    for n in 0.. {
        let pod = runtime.pod(&format!("p{n}")).await.unwrap();
        let reported = events.line_with(&pod.id[..13]);
        if tokio::time::timeout(Duration::from_secs(1), reported).await.is_ok() {
            break;
        }
    }
    all.push((&["events"], events));
    runtime.kill9().await;
    for (args, running) in all {
        let ended = running.end().await;
        assert_eq!(ended.code, Some(3), "{args:?}: {ended:?}");
        let sentence = match args[0] {
            "logs" => "crib: ContainerStatus: ",
            _ => "crib: the connection to the runtime was lost\n",
        };
        assert!(ended.err.starts_with(sentence), "{args:?}: {}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{args:?}: {}", ended.err);
    }
}

#[tokio::test]
async fn exec_with_tty_forwards_size_and_signals() {
    let (runtime, ..) = with_main().await;
    let line = format!(
        "stty rows 33 cols 101; {} exec --runtime-endpoint {} -it main sh -c \
         'until stty size | grep -q 101; do sleep 0.01; done; stty size; test -t 0 && exit 4'; code=$?; \
         stty -a | tr ';' '\\n' | grep -q -- '-echo ' && echo raw; exit $code",
        env!("CARGO_BIN_EXE_crib"),
        runtime.socket().display()
    );
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]);
    command.stdin(Stdio::piped()).kill_on_drop(true);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    // Kept open until the end: an end of input would be typed into the terminal.
    let stdin = child.stdin.take();
    let output = tokio::time::timeout(WAIT_LIMIT, child.wait_with_output()).await;
    let output = output.expect("it did not end").unwrap();
    drop(stdin);
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(4), "{out}");
    assert!(out.contains("33 101"), "{out:?}");
    assert!(!out.contains("raw"), "the terminal is as it was: {out:?}");
}

#[tokio::test]
async fn attach_connects_streams() {
    let runtime = Runtime::with().start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::container("main", ["cat"]);
    (config.stdin, config.stdin_once) = (true, true);
    pod.start(config).await.unwrap();
    let args = ["attach", "-r", "websocket", "-i", "main"];
    let (code, out, err) = crib(&runtime, &args, b"hello\n").await;
    assert_eq!((code, &out[..], err.as_str()), (Some(0), &b"hello\n"[..], ""));
    let (code, _, err) = crib(&runtime, &["attach", "main"], b"").await;
    assert_eq!(code, Some(1));
    assert!(err.starts_with("crib: Attach: "), "{err}");
}

#[rstest]
#[case("spdy")]
#[case("websocket")]
#[tokio::test]
async fn port_forward_connects_to_pod(#[case] transport: &str) {
    let runtime = Runtime::with().start().await.unwrap();
    let pod = runtime.pod("web").await.unwrap();
    let server = "use IO::Socket::INET; $| = 1; $SIG{CHLD} = 'IGNORE';
        my $l = IO::Socket::INET->new(LocalAddr => '127.0.0.1:8080', Listen => 9) or die $@;
        print \"listening\\n\";
        while (my $c = $l->accept()) {
            next if fork;
            while (sysread($c, my $d, 65536)) { syswrite($c, uc $d); }
            exit;
        }";
    let id = pod.start(fixture::container("main", ["perl", "-e", server])).await.unwrap();
    let log = runtime.client.container(&id).await.unwrap().log_path;
    eventually("the server listens", || {
        match std::fs::read_to_string(&log).unwrap_or_default().contains("listening") {
            true => vec![],
            false => vec!["it does not".to_owned()],
        }
    })
    .await;
    let place = Place::unchecked();
    let socket = runtime.socket().display().to_string();
    let args =
        ["port-forward", "--runtime-endpoint", &socket, "-r", transport, "web", ":8080", ":8081"];
    let mut running = place.start(&args);
    let mut local = Vec::new();
    for port in ["8080", "8081"] {
        let line = running.line_with(&format!(" -> {port}")).await;
        let from = line.strip_prefix("Forwarding from ").unwrap();
        local.push(from.split_once(" -> ").unwrap().0.to_owned());
    }
    // The second port has no listener: its connections are closed, and the others continue.
    let mut refused = TcpStream::connect(&local[1]).await.unwrap();
    let mut nothing = Vec::new();
    let _ = refused.read_to_end(&mut nothing).await;
    assert!(nothing.is_empty());
    let (_, port) = local[1].rsplit_once(':').unwrap();
    running.line_with(&format!("Handling connection for {port}")).await;
    let mut both = Vec::new();
    let mut addresses = vec![local[0].clone(), local[0].clone()];
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        addresses.push(local[0].replace("127.0.0.1", "[::1]"));
    }
    for (address, text) in addresses.iter().zip(["one", "two", "three"]) {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(text.as_bytes()).await.unwrap();
        both.push((socket, text.to_uppercase()));
    }
    for (mut socket, expected) in both {
        let mut back = vec![0; expected.len()];
        socket.read_exact(&mut back).await.unwrap();
        assert_eq!(back, expected.as_bytes());
        // Half-closed: the server receives the end, and its own end comes back.
        socket.shutdown().await.unwrap();
        assert_eq!(socket.read_to_end(&mut back).await.unwrap(), 0);
    }
    let ended = running.interrupt().await.exits(130);
    ended.err_has("crib: port 8081: ");
    let gone = place.crib(&["port-forward", "--runtime-endpoint", &socket, "wbe", "80"]).await;
    assert_eq!(gone.err, "crib: pod \"wbe\" not found\n");
    let named = place.crib(&["port-forward", "--runtime-endpoint", &socket, "web", ":http"]).await;
    named.exits(2).err_has("port name \"http\" is not known");
}
