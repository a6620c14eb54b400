//! The features of crictl that scripts rely on: flags before the command, the form of documents, templates, output.

use crate::command::*;

/// Runs `crib -r SOCKET ARGS`, as a script does with crictl.
async fn run(place: &Place, runtime: &Runtime, args: &[&str]) -> Ended {
    let socket = runtime.socket().display().to_string();
    let mut all = vec!["-r", socket.as_str()];
    all.extend(args);
    place.crib(&all).await
}

/// The output of a command that must succeed.
async fn out(place: &Place, runtime: &Runtime, args: &[&str]) -> String {
    let ended = run(place, runtime, args).await;
    assert_eq!(ended.code, Some(0), "crib {args:?}: {ended:?}");
    ended.out
}

async fn json(place: &Place, runtime: &Runtime, args: &[&str]) -> Value {
    let text = out(place, runtime, args).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
}

#[tokio::test]
async fn inspect_has_the_shape_of_crictl() {
    let (place, runtime) = (Place::unchecked(), Runtime::with().start().await.unwrap());
    let pod = runtime.pod("web").await.unwrap();
    let running = pod.start(fixture::forever("server")).await.unwrap();
    let ended = pod.start(pod.script("once", "exit 3")).await.unwrap();
    pod.ended(&ended).await.unwrap();

    let shown = json(&place, &runtime, &["inspect", &running]).await;
    let pid = shown["info"]["pid"].as_u64().expect("`.info.pid`");
    assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
    let status = &shown["status"];
    assert_eq!(status["state"], "CONTAINER_RUNNING");
    assert_eq!(status["finishedAt"], "0001-01-01T00:00:00Z");
    assert_eq!(status["metadata"]["name"], "server");
    for time in ["createdAt", "startedAt"] {
        let text = status[time].as_str().unwrap();
        text.parse::<jiff::Timestamp>().unwrap();
    }
    let shown = json(&place, &runtime, &["inspect", &ended]).await;
    assert_eq!(shown["status"]["exitCode"], 3);
    let finished = shown["status"]["finishedAt"].as_str().unwrap();
    assert!(finished.parse::<jiff::Timestamp>().unwrap().as_second() > 0);

    let quiet = json(&place, &runtime, &["inspect", "-q", &running]).await;
    assert_eq!(quiet.get("info"), None, "{quiet}");
    let both = json(&place, &runtime, &["inspect", &running, &ended]).await;
    assert_eq!(both.as_array().unwrap().len(), 2);
    assert_eq!(both[1]["status"]["id"], *ended);
    let found = json(&place, &runtime, &["inspect", "--name", "^ser"]).await;
    assert_eq!(found["status"]["id"], *running);
    let found = json(&place, &runtime, &["inspect", "-a", "--state", "exited"]).await;
    assert_eq!(found["status"]["id"], *ended);
    let none = run(&place, &runtime, &["inspect", "--name", "nothing"]).await.exits(1);
    assert_eq!(none.err, "crib: no container matches the filters\n");
    let table = out(&place, &runtime, &["inspect", "-o", "table", &ended]).await;
    for line in ["Name: once\n", "State: CONTAINER_EXITED\n", "Exit Code: 3\n"] {
        assert!(table.contains(line), "{table}");
    }

    let shown = json(&place, &runtime, &["inspectp", &pod.id]).await;
    assert_eq!(shown["status"]["state"], "SANDBOX_READY");
    assert!(shown["info"].is_object(), "{shown}");
    let created = shown["status"]["createdAt"].as_str().unwrap();
    created.parse::<jiff::Timestamp>().unwrap();
    let found = json(&place, &runtime, &["inspectp", "-s", "ready", "--name", "web"]).await;
    assert_eq!(found["status"]["id"], *pod.id);
    let shown = json(&place, &runtime, &["inspecti", "crib.local/host"]).await;
    assert_eq!(shown["status"]["repoTags"][0], "crib.local/host:latest");
    assert!(shown["status"]["pinned"].is_boolean(), "{shown}");
}

#[tokio::test]
async fn templates_select_fields() {
    let (place, runtime) = (Place::unchecked(), Runtime::with().start().await.unwrap());
    let pod = runtime.pod("web").await.unwrap();
    let id = pod.start(fixture::forever("server")).await.unwrap();
    let fill = |template: &'static str| {
        let args = ["inspect", "-o", "go-template", "--template", template, &id];
        let args = args.map(str::to_owned);
        let (place, runtime) = (&place, &runtime);
        async move {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            run(place, runtime, &args).await
        }
    };
    let pid = fill("{{.info.pid}}").await.out;
    assert!(pid.trim_end().parse::<u32>().is_ok(), "{pid}");
    let text = "{{range $i, $m := .status.mounts}}x{{end}}{{with .status.metadata}}{{.name | printf \"%-8s|\"}}{{end}}";
    assert_eq!(fill(text).await.out, "server  |\n");
    let missing = fill("{{.status.nothing}}").await.exits(1);
    assert_eq!(
        missing.err,
        "crib: failed to fill in the template: no field \"nothing\"; -o json shows all fields\n"
    );
    let refused = fill("{{define \"x\"}}{{end}}").await.exits(2);
    refused.err_has("invalid template, line 1: `define` is not supported");
    let none = run(&place, &runtime, &["inspect", "-o", "go-template", &id]).await.exits(2);
    none.err_has("--template");
}

#[tokio::test]
async fn endpoint_comes_from_flag_variable_or_file() {
    let (place, runtime) = (Place::unchecked(), Runtime::with().start().await.unwrap());
    let pod = runtime.pod("web").await.unwrap();
    let endpoint = format!("unix://{}", runtime.socket().display());
    let text =
        format!("runtime-endpoint: {endpoint}\nimage-endpoint: \"\"\ntimeout: 9\ndebug: false\n");
    let file = place.file("crictl.yaml", &text);
    for args in [
        &["-r", &endpoint, "pods", "-q"][..],
        &["--runtime-endpoint", &endpoint, "-i", &endpoint, "-t", "5s", "-D", "pods", "-q"],
        &["--config", &file, "pods", "-q"],
        &["-c", &file, "pods", "-q"],
        &["-r", "/nowhere.sock", "pods", "-q", "--runtime-endpoint", &endpoint],
    ] {
        let ended = place.crib(args).await;
        assert_eq!(ended.out, format!("{}\n", pod.id), "{args:?}: {ended:?}");
    }
    for (name, value) in [("CONTAINER_RUNTIME_ENDPOINT", &endpoint), ("CRI_CONFIG_FILE", &file)] {
        let output = place.command(&["pods", "-q"]).env(name, value).output().await;
        let listed = String::from_utf8(output.unwrap().stdout).unwrap();
        assert_eq!(listed, format!("{}\n", pod.id), "{name}");
    }
    let broken = place.file("broken.yaml", "runtime-endpoint: tcp://1.2.3.4:5\n");
    for (args, sentence) in [
        (&["-c", &broken, "ps"][..], "broken.yaml: tcp:// is not supported"),
        (
            &["-c", "/nowhere.yaml", "ps"],
            "failed to read the configuration /nowhere.yaml: No such file",
        ),
        (
            &["-r", &endpoint, "run", "x.yaml"],
            "--runtime-endpoint has no effect when given before this command",
        ),
    ] {
        let ended = place.crib(args).await;
        assert_eq!(ended.code, Some(2), "{args:?}: {ended:?}");
        assert!(ended.err.contains(sentence), "{args:?}: {}", ended.err);
    }
}

#[tokio::test]
async fn version_includes_runtime() {
    let (place, runtime) = (Place::unchecked(), Runtime::with().start().await.unwrap());
    let text = out(&place, &runtime, &["version"]).await;
    for line in ["RuntimeName:  crib\n", "RuntimeApiVersion:  v1\n"] {
        assert!(text.contains(line), "{text}");
    }
    let shown = json(&place, &runtime, &["version", "--output", "json"]).await;
    assert_eq!(shown["runtime"]["runtimeName"], "crib");
    place.crib(&["-r", "/nowhere.sock", "version"]).await.exits(3);
}

#[tokio::test]
async fn listings_have_flags_of_crictl() {
    let (place, runtime) = (Place::unchecked(), Runtime::with().start().await.unwrap());
    let pod = runtime.pod("web").await.unwrap();
    let id = pod.start(fixture::forever("server")).await.unwrap();
    let ps = out(&place, &runtime, &["ps", "-v"]).await;
    assert!(ps.starts_with(&format!("ID: {id}\nPodID: {}\n", pod.id)), "{ps}");
    for (args, count) in
        [(&["ps", "-q", "--last", "0"][..], 1), (&["-t", "0", "pods", "-q", "-n", "0"], 1)]
    {
        let ids = out(&place, &runtime, args).await;
        assert_eq!(ids.lines().count(), count, "{args:?}");
    }
    let registry = registry::Registry::start().await.unwrap();
    let missing = format!("{}/none:1", registry.host());
    let socket = runtime.socket().display().to_string();
    let args = ["-r", &socket, "pull", "-u", "me", &missing];
    let pulled = place.crib_with_stdin(&args, "secret\n").await.exits(1);
    pulled.err_begins("Enter Password:\ncrib: PullImage: ");
    let resolved = out(&place, &runtime, &["ps", "-r"]).await;
    assert!(resolved.contains("crib.local/host:latest"), "{resolved}");
    let pods = out(&place, &runtime, &["pods", "-v"]).await;
    assert!(pods.contains("Status: Ready\n"), "{pods}");
    let images = out(&place, &runtime, &["images", "-v"]).await;
    assert!(images.contains("RepoTags: crib.local/host:latest\n"), "{images}");
    for (filter, count) in [("dangling=true", 0), ("dangling=false", 1)] {
        let ids = out(&place, &runtime, &["images", "-q", "-f", filter]).await;
        assert_eq!(ids.lines().count(), count, "{filter}");
    }
}

#[tokio::test]
async fn password_without_end_is_refused_or_ends_with_a_signal() {
    let place = Place::new();
    let socket = format!("unix://{}", place.path("s").display());
    let args = ["-r", &socket, "pull", "-u", "me", "example.com/a:1"];
    let mut command = place.command(&args);
    command.stdin(std::fs::File::open("/dev/zero").unwrap());
    let refused = place.end(command).await.exits(1);
    refused.err_has("failed to read the password from standard input: the line has more than");

    // Nothing is ever written to the pipe.
    let mut command = place.command(&args);
    command.stdin(std::process::Stdio::piped());
    let mut running = Running::start(command);
    let mut prompt = [0; 15];
    let stderr = running.child.stderr.as_mut().unwrap();
    tokio::io::AsyncReadExt::read_exact(stderr, &mut prompt).await.unwrap();
    assert_eq!(&prompt, b"Enter Password:");
    running.signal(Signal::SIGTERM);
    running.end().await.exits(130);
}
