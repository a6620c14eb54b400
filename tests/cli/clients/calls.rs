//! The commands that call a runtime, against a real one: what they select, what they print, how they fail.

use std::os::unix::net::UnixListener;

use harness::fixture_image::{ImageBuilder, Layer};

use crate::command::*;

/// Runs a command against a runtime; it must succeed.
async fn crib(place: &Place, runtime: &Runtime, args: &[&str]) -> String {
    let ended = crib_ended(place, runtime, args).await;
    assert_eq!(ended.code, Some(0), "crib {args:?}: {ended:?}");
    ended.out
}

async fn crib_ended(place: &Place, runtime: &Runtime, args: &[&str]) -> Ended {
    let socket = runtime.socket().display().to_string();
    let (command, rest) = args.split_first().unwrap();
    let mut all = vec![*command, "--runtime-endpoint", &socket];
    all.extend(rest);
    place.crib(&all).await
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The words of each line.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .map(|line| line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect()
}

#[tokio::test]
async fn pods_and_ps_list_and_filter() {
    let (place, runtime) = (Place::unchecked(), Runtime::with().start().await.unwrap());
    let mut config = runtime.sandbox("web");
    config.labels.insert("app".to_owned(), "shop".to_owned());
    let pod = harness::Pod::run(&runtime.client, config).await.unwrap();
    let other = runtime.pod("other").await.unwrap();
    let running = pod.start(fixture::forever("server")).await.unwrap();
    let ended = pod.start(pod.script("once", "exit 3")).await.unwrap();
    pod.ended(&ended).await.unwrap();
    runtime.client.stop_pod(&other.id).await.unwrap();

    let listed = crib(&place, &runtime, &["ps"]).await;
    let lines = rows(&listed);
    assert_eq!(
        lines[0],
        ["CONTAINER", "IMAGE", "CREATED", "STATE", "NAME", "ATTEMPT", "POD ID", "POD", "NAMESPACE"]
    );
    assert_eq!(lines.len(), 2, "{listed}");
    assert_eq!(lines[1][0], &running[..13]);
    assert!(lines[1][2].ends_with(" ago"), "{listed}");
    assert_eq!(lines[1][3..6], ["Running", "server", "0"]);
    assert_eq!(lines[1][6..], [&pod.id[..13], "web", "test"]);

    for (args, expected) in [
        (&["ps", "-q"][..], vec![&running]),
        (&["ps", "-aq"], vec![&ended, &running]),
        (&["ps", "-q", "--state", "Exited"], vec![&ended]),
        (&["ps", "-aq", "--name", "^on"], vec![&ended]),
        (&["ps", "-q", "--latest"], vec![&ended]),
        (&["ps", "-aq", "--pod", &other.id], vec![]),
        (&["ps", "-aq", "--id", &running[..20]], vec![&running]),
        (&["ps", "-aq", "--image", "crib.local/host"], vec![&ended, &running]),
        (&["ps", "-aq", "--image", "other"], vec![]),
        (&["ps", "-aq", "--namespace", "kube"], vec![]),
        (&["pods", "-q"], vec![&other.id, &pod.id]),
        (&["pods", "-q", "-n1"], vec![&other.id]),
        (&["pods", "-q", "--label", "app=shop"], vec![&pod.id]),
        (&["pods", "-q", "--state", "notready"], vec![&other.id]),
        (&["pods", "-q", "--name", "^web$"], vec![&pod.id]),
    ] {
        let out = crib(&place, &runtime, args).await;
        let ids: Vec<&str> = out.lines().collect();
        assert_eq!(ids, expected, "{args:?}");
    }
    let pods = crib(&place, &runtime, &["pods"]).await;
    assert_eq!(rows(&pods)[2][2..], ["Ready", "web", "test", "0", "(default)"]);

    let all = json(&crib(&place, &runtime, &["ps", "-a", "-o", "json"]).await);
    assert_eq!(all["containers"][1]["id"], *running);
    assert_eq!(all["containers"][0]["state"], "CONTAINER_EXITED");
    assert!(all["containers"][0]["createdAt"].as_str().unwrap().len() > 18);
    let yaml = crib(&place, &runtime, &["pods", "-o", "yaml", "--state", "ready"]).await;
    assert!(yaml.contains(&format!("id: {}", pod.id)), "{yaml}");

    let shown = json(&crib(&place, &runtime, &["inspect", &ended[..12]]).await);
    assert_eq!(shown["status"]["exitCode"], 3);
    assert!(shown["status"]["finishedAt"].as_str().unwrap().ends_with('Z'));
    let shown = json(&crib(&place, &runtime, &["inspect", &pod.id]).await);
    assert_eq!(shown["status"]["metadata"]["name"], "web");
    let none = crib_ended(&place, &runtime, &["inspect", "nothing", &pod.id]).await.exits(1);
    assert_eq!(none.err, "crib: container, pod or image \"nothing\" not found\n");
    assert_eq!(json(&none.out)["status"]["id"], *pod.id);
}

#[tokio::test]
async fn images_are_listed_inspected_and_removed() {
    let (place, runtime) = (Place::unchecked(), Runtime::with().start().await.unwrap());
    let listed = crib(&place, &runtime, &["images", "--digests", "--pinned"]).await;
    assert_eq!(rows(&listed)[0], ["IMAGE", "TAG", "DIGEST", "IMAGE ID", "SIZE", "PINNED"]);
    assert_eq!(rows(&listed)[1][..2], ["crib.local/host", "latest"]);
    let id = crib(&place, &runtime, &["images", "-q"]).await;
    let shown =
        json(&crib(&place, &runtime, &["inspect", "--kind=image", "crib.local/host"]).await);
    assert_eq!(shown["status"]["id"], id.trim());
    let none = crib_ended(&place, &runtime, &["rmi", "nothing.example/at:all"]).await;
    let seen = (none.code, none.err.as_str());
    assert_eq!(seen, (Some(1), "crib: image \"nothing.example/at:all\" not found\n"));
}

#[tokio::test]
async fn images_are_pulled_loaded_and_pruned() {
    let (place, runtime) = (Place::unchecked(), Runtime::with().start().await.unwrap());
    let image =
        |name: &str| ImageBuilder::new(name).layer(Layer::new().file("etc/name", 0o644, name));
    let registry = registry::Registry::start().await.unwrap();
    registry.add(&image("team/it:1")).unwrap();
    let name = format!("{}/team/it:1", registry.host());
    let id = crib(&place, &runtime, &["pull", &name]).await;
    let listed = crib(&place, &runtime, &["images", "--no-trunc", &name]).await;
    let id = id.trim().strip_prefix("Image is up to date for ").unwrap();
    assert!(listed.contains(id), "{listed}");
    let missing = format!("{}/team/it:2", registry.host());
    let none = crib_ended(&place, &runtime, &["pull", &missing]).await.exits(1);
    none.err_begins("crib: PullImage: ");

    let archive = place.path("archive.tar");
    image("quay.example/team/app:7").write_docker(&archive).unwrap();
    let archive = archive.to_str().unwrap();
    let again = format!("{archive}=other.example/app:8");
    let loaded = crib(&place, &runtime, &["load", archive, &again]).await;
    let names: Vec<&str> = loaded.lines().map(|line| line.split_once(' ').unwrap().0).collect();
    assert_eq!(names, ["quay.example/team/app:7", "other.example/app:8"]);
    let listed = crib(&place, &runtime, &["images"]).await;
    assert!(
        listed.contains("quay.example/team/app") && listed.contains("other.example/app"),
        "{listed}"
    );
    let bad = crib_ended(&place, &runtime, &["load", archive, "/nowhere.tar"]).await;
    assert_eq!((bad.code, bad.out.as_str()), (Some(1), ""));
    bad.err_has("failed to read the image /nowhere.tar");

    let pod = runtime.pod("p").await.unwrap();
    let mut used = fixture::container("main", ["/none"]);
    used.image.as_mut().unwrap().image.clone_from(&name);
    pod.create(used).await.unwrap();
    let pruned = crib(&place, &runtime, &["rmi", "--prune"]).await;
    assert!(pruned.contains("quay.example/team/app:7") && !pruned.contains("team/it"), "{pruned}");
    let listed = crib(&place, &runtime, &["images"]).await;
    assert!(listed.contains("team/it") && !listed.contains("quay.example"), "{listed}");
}

#[rstest]
#[case::pull(&["pull", "x", "--pod-config"])]
#[case::create(&["create", "--with-pull", "p"])]
#[tokio::test]
async fn signal_ends_wait_for_configuration_in_fifo(#[case] args: &[&str]) {
    let place = Place::new();
    let fifo = place.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // `create` blocks on the first of its two configurations.
        let fifo_argument = fifo.to_str().unwrap();
        let more = if args[0] == "create" { 2 } else { 1 };
        let running = place.start(&[args, &vec![fifo_argument; more]].concat());
        // This open returns when crib has opened the other end.
        let path = fifo.clone();
        let open = move || std::fs::File::options().write(true).open(path).unwrap();
        let open = tokio::task::spawn_blocking(open);
        let _writer = tokio::time::timeout(WAIT_LIMIT, open).await.unwrap().unwrap();
        running.signal(signal);
        running.end().await.exits(130);
    }
}

#[tokio::test]
async fn error_of_configuration_repeats_no_long_value() {
    let place = Place::new();
    let socket = format!("unix://{}", place.path("s").display());
    let long = "a".repeat(1000);
    let text = place.file("text", &long);
    let field = place.file("field", &json!({long.as_str(): 1}).to_string());
    for (file, problem) in [(&text, "invalid type"), (&field, "ignored: unrecognized field name")] {
        let ended = place.crib(&["-r", &socket, "runp", file]).await.exits(2);
        ended.err_has(problem);
        assert!(!ended.err.contains(&long), "{}", ended.err);
    }
}

#[tokio::test]
async fn logs_supports_follow_tail_and_limits() {
    let (place, runtime) = (Place::unchecked(), Runtime::with().start().await.unwrap());
    let pod = runtime.pod("talker").await.unwrap();
    let id = pod
        .start(pod.script(
            "main",
            "for i in 1 2 3; do echo out $i; echo err $i >&2; done; printf 'no end'",
        ))
        .await
        .unwrap();
    pod.ended(&id).await.unwrap();
    let ended = crib_ended(&place, &runtime, &["logs", &id[..12]]).await;
    let seen = (ended.out.as_str(), ended.err.as_str());
    assert_eq!(seen, ("out 1\nout 2\nout 3\nno end", "err 1\nerr 2\nerr 3\n"));
    for (stream, out) in [("stdout", "out 1\nout 2\nout 3\nno end"), ("stderr", "")] {
        let args = ["logs", "--stream", stream, "--limit-bytes=-1", "main"];
        assert_eq!(crib(&place, &runtime, &args).await, out, "{stream}");
    }
    for since in ["2999-01-01T00:00:00", "32503680000"] {
        let args = ["logs", "--tail=-1", "--since", since, "main"];
        assert_eq!(crib(&place, &runtime, &args).await, "", "{since}");
    }
    // The order in which the two outputs were read is undefined.
    let last = crib_ended(&place, &runtime, &["logs", "--tail", "1", "main"]).await;
    assert_eq!((last.out + &last.err).lines().count(), 1);
    assert_eq!(
        crib(
            &place,
            &runtime,
            &["logs", "--since", "2000-01-01T00:00:00Z", "--limit-bytes=3", "main"]
        )
        .await,
        "out"
    );
    let seen = crib(&place, &runtime, &["logs", "--since", "2999-01-01T00:00:00Z", "main"]).await;
    assert_eq!(seen, "");
    let timed = crib(&place, &runtime, &["logs", "-t", "main"]).await;
    let (time, text) = timed.lines().next().unwrap().split_once(' ').unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok() && text == "out 1", "{timed}");
    let none = crib_ended(&place, &runtime, &["logs", "--previous", "main"]).await;
    let seen = (none.code, none.err.as_str());
    assert_eq!(seen, (Some(1), "crib: previous attempt of container \"main\" not found\n"));

    // Follows the log over a rotation until the container's end.
    let script =
        "trap 'echo last; exit' TERM; n=0; while :; do n=$((n+1)); echo line $n; sleep 0.05; done";
    let id = pod.start(pod.script("long", script)).await.unwrap();
    let socket = runtime.socket().display().to_string();
    let mut following = place.start(&["logs", "--runtime-endpoint", &socket, "-f", &id]);
    following.line_with("line 2").await;
    let log = runtime.client.container(&id).await.unwrap().log_path;
    std::fs::rename(&log, format!("{log}.1")).unwrap();
    crib(&place, &runtime, &["logs", "--reopen", "--tail=0", &id]).await;
    eventually("lines in the new file", || {
        match std::fs::read_to_string(&log).unwrap_or_default().lines().count() {
            0 => vec!["it is empty".to_owned()],
            _ => vec![],
        }
    })
    .await;
    runtime.client.stop(&id, 30).await.unwrap();
    let ended = following.end().await.exits(0);
    let mut lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(lines.pop(), Some("last"));
    let numbers: Vec<String> = (1..=lines.len()).map(|n| format!("line {n}")).collect();
    assert_eq!(lines, numbers, "nothing is lost or told twice");
}

#[tokio::test]
async fn logs_follows_truncated_file() {
    let config = "logs: {max_size: 1048576}\n";
    let (place, runtime) =
        (Place::unchecked(), Runtime::with().config(config).start().await.unwrap());
    let pod = runtime.pod("p").await.unwrap();
    // Slightly more than the log's size limit, once the first line has been read.
    let script = "echo first; until [ -e /tmp/go ]; do sleep 0.05; done
        i=0; while [ $i -lt 14000 ]; do echo $i 0123456789012345678901234567890; i=$((i+1)); done; echo last; sleep 1000";
    let id = pod.start(pod.script("main", script)).await.unwrap();
    let socket = runtime.socket().display().to_string();
    let mut following = place.start(&["logs", "--runtime-endpoint", &socket, "-f", &id]);
    following.line_with("first").await;
    runtime.client.sh(&id, "touch /tmp/go").await.unwrap();
    following.line_with("last").await;
    runtime.client.stop(&id, 0).await.unwrap();
    assert_eq!(following.end().await.code, Some(0));
}

#[tokio::test]
async fn exec_sync_returns_output_and_exit_code() {
    let (place, runtime) = (Place::unchecked(), Runtime::with().start().await.unwrap());
    let pod = runtime.pod("p").await.unwrap();
    pod.start(fixture::forever("main")).await.unwrap();
    let args = ["exec", "--sync", "main", "sh", "-c", "echo out; echo err >&2; exit 9"];
    let ended = crib_ended(&place, &runtime, &args).await.exits(9);
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("out\n", "err\n"));
    let args = ["exec", "--sync", "--timeout", "0.5", "main", "sleep", "1000"];
    let ended = crib_ended(&place, &runtime, &args).await.exits(1);
    ended.err_begins("crib: ExecSync: ");
    ended.err_has("(DeadlineExceeded)");
    let ended = crib_ended(&place, &runtime, &["exec", "--sync", "mian", "true"]).await;
    assert_eq!(ended.err, "crib: container \"mian\" not found\n");
    let ended = crib_ended(&place, &runtime, &["exec", "", "true"]).await;
    assert_eq!(ended.err, "crib: container \"\" not found\n");
}

#[tokio::test]
async fn missing_runtime_exits_3_with_message() {
    let place = Place::unchecked();
    let nowhere = place.path("no.sock").display().to_string();
    let stale = place.path("stale.sock");
    drop(UnixListener::bind(&stale).unwrap());
    let silent = place.path("silent.sock");
    let _listener = UnixListener::bind(&silent).unwrap();
    for (socket, code, sentence) in [
        (nowhere.as_str(), 3, "check that the runtime is running and that this is its socket"),
        (stale.to_str().unwrap(), 3, "the socket is stale"),
        (silent.to_str().unwrap(), 124, "no answer within 0.2 s; wait longer with --timeout"),
    ] {
        for command in [&["ps"][..], &["images"], &["inspect", "x"], &["logs", "x"]] {
            let mut args = command.to_vec();
            args.extend(["--timeout", "0.2", "--runtime-endpoint", socket]);
            let ended = place.crib(&args).await;
            assert_eq!(ended.code, Some(code), "{args:?} {ended:?}");
            assert!(ended.err.contains(sentence), "{args:?} {}", ended.err);
            assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
        }
    }
    let mut command = place.command(&["ps"]);
    let by_variable = command.env("CONTAINER_RUNTIME_ENDPOINT", format!("unix://{nowhere}"));
    let err = String::from_utf8(by_variable.output().await.unwrap().stderr).unwrap();
    assert!(err.contains(&nowhere), "{err}");
}

#[tokio::test]
async fn bad_arguments_exit_2_with_message() {
    let place = Place::unchecked();
    for (args, sentence) in [
        (&["ps", "--state", "happy"][..], "possible values: created, running, exited, unknown"),
        (&["ps", "--name", "("], "invalid regular expression"),
        (&["pods", "--label", "x"], "expected KEY=VALUE"),
        (&["logs"], "<CONTAINER>"),
        (&["logs", "x", "--since", "soon"], "is neither a time"),
        (&["logs", "x", "y", "-c", "z"], "cannot be used with"),
        (&["rmi"], "required arguments"),
        (&["pull", "x", "--creds", "me"], "expected credentials as USER:PASSWORD"),
        (&["pull", "x", "--auth", "%"], "is not base64 of USER:PASSWORD"),
        (&["ps", "--runtime-endpoint", "tcp://1.2.3.4:5"], "give a unix socket"),
        (&["stats", "--seconds", "0"], "must be greater than zero"),
        (&["exec", "x"], "<COMMAND>"),
        (&["exec", "-r", "http", "x", "y"], "possible values: spdy, websocket"),
        (&["exec", "--sync", "-t", "x", "y"], "cannot be used with"),
        (&["port-forward", "x", "0"], "expected [LOCAL:]REMOTE"),
        (&["load"], "<PATH[=NAME:TAG]>"),
    ] {
        let ended = place.crib(args).await;
        assert_eq!(ended.code, Some(2), "{args:?}: {ended:?}");
        assert!(ended.err.contains(sentence), "{args:?}: {}", ended.err);
    }
}
