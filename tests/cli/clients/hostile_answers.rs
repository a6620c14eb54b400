//! A runtime whose responses contain escape sequences in every string, and what of them reaches a terminal.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Map;

use crate::command::*;

/// Appended to each string: a title, an invisible colour, C1 (CSI), overrides and isolates, control characters, DEL.
const HOSTILE: &str = "\x1b]2;owned\x07\x1b[8m\u{9b}2J\u{202e}\u{2066}\u{2069}\x08\x0b\x7fHOSTILE";

/// Appends [`HOSTILE`] to strings and to keys of maps. Enumerations and numbers are unchanged, and so are the fields in `kept`, by
/// which requests find objects.
fn poison(value: &mut Value, key: &str, kept: &[&str]) {
    match value {
        // A text that contains a document, like those in `info`.
        Value::String(text) if text.starts_with(['{', '[']) => {
            let mut inner: Value = serde_json::from_str(text).unwrap();
            poison(&mut inner, key, kept);
            *text = inner.to_string();
        }
        Value::String(text) => {
            let is_number = text.parse::<f64>().is_ok();
            let is_constant = !text.is_empty()
                && text.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit());
            if !is_number && !is_constant && !kept.contains(&key) && key != "runtime_api_version" {
                text.push_str(HOSTILE);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|one| poison(one, key, kept)),
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(key, one)| poison(one, key, kept));
            if matches!(key, "labels" | "annotations") {
                let renamed = std::mem::take(fields).into_iter();
                *fields =
                    renamed.map(|(key, one)| (key + HOSTILE, one)).collect::<Map<String, Value>>();
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Runs a command on a terminal, and returns what the terminal receives.
async fn on_terminal(place: &Place, kind: &str, args: &[&str]) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut command = place.command(args);
    command.env("NO_COLOR", "1").env("TERM", kind);
    command.stdout(Stdio::from(OwnedFd::from(terminal.try_clone().unwrap())));
    command.stderr(Stdio::from(OwnedFd::from(terminal)));
    let mut child = command.spawn().unwrap();
    drop(command);
    let shown = Arc::new(Mutex::new(Vec::new()));
    let (all, mut master) = (shown.clone(), File::from(master));
    let reader = std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        // The end is an error: the other end of the terminal is closed.
        while let Ok(length @ 1..) = master.read(&mut chunk) {
            all.lock().unwrap().extend_from_slice(&chunk[..length]);
        }
    });
    let text = || String::from_utf8_lossy(&shown.lock().unwrap()).into_owned();
    if args.contains(&"events") || matches!(args[0], "agent" | "runtime") {
        // The command runs until a signal.
        let missing = || if text().contains("HOSTILE") { Vec::new() } else { vec![text()] };
        eventually("an event is shown", missing).await;
        let pid = i32::try_from(child.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    }
    tokio::time::timeout(WAIT_LIMIT, child.wait()).await.unwrap().unwrap();
    reader.join().unwrap();
    text()
}

/// A recording with poisoned responses.
fn poisoned(recording: &str, kept: &[&str]) -> String {
    let poisoned = recording.lines().map(|line| {
        let mut call: Value = serde_json::from_str(line).unwrap();
        for field in ["response", "responses"] {
            call.get_mut(field).into_iter().for_each(|answer| poison(answer, "", kept));
        }
        format!("{call}\n")
    });
    poisoned.collect()
}

fn is_raw(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\r' | '\t')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[tokio::test]
async fn no_string_of_an_answer_steers_terminal() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let (listen, recording) = (place.path("p"), place.path("r.jsonl"));
    let (listen, recording) = (listen.to_str().unwrap(), recording.to_str().unwrap());
    let record = ["proxy", "record", recording, "--listen", listen, "--upstream", &upstream];
    let mut proxy = place.start(&record);
    proxy.line_with("listening").await;
    let ask = async |args: &[&str]| {
        place.crib(&[&["-r", listen], args].concat()).await.exits(0).out.trim().to_owned()
    };
    let meta = json!({"name": "web", "namespace": "default", "uid": "u", "attempt": 1});
    let pod = json!({"metadata": meta, "labels": {"a": "b"}, "annotations": {"c": "d"}, "linux": {},
        "log_directory": place.path("logs")});
    let pod_file = place.file("pod.json", &pod.to_string());
    let container = json!({"metadata": {"name": "main"}, "image": {"image": "crib.local/host"}, "labels": {"l": "v"},
        "annotations": {"x": "y"}, "command": ["sleep", "1000"], "log_path": "c.log"});
    let container_file = place.file("container.json", &container.to_string());
    let mut events = place.start(&["-r", listen, "events"]);
    // The first pods may be created before the subscription: create pods until an event is printed. These calls bypass the
    // recording.
    let direct = harness::Client::new(&place.path("s"));
    loop {
        let first = direct.run_pod(fixture::sandbox("first")).await.unwrap();
        let reported = events.line_with(&first[..13]);
        let reported = tokio::time::timeout(std::time::Duration::from_secs(1), reported).await;
        direct.stop_pod(&first).await.unwrap();
        direct.remove_pod(&first).await.unwrap();
        if reported.is_ok() {
            break;
        }
    }
    ask(&["pull", "crib.local/host"]).await;
    let pod = ask(&["runp", &pod_file]).await;
    let id = ask(&["create", &pod, &container_file, &pod_file]).await;
    ask(&["start", &id]).await;
    let mut commands: Vec<Vec<&str>> = vec![
        vec!["ps"],
        vec!["ps", "-a", "-v"],
        vec!["ps", "-o", "yaml"],
        vec!["ps", "-o", "json"],
        vec!["pods"],
        vec!["pods", "-v"],
        vec!["pods", "-o", "yaml"],
        vec!["images"],
        vec!["images", "-o", "yaml"],
        vec!["images", "-v"],
        vec!["inspect", &id],
        vec!["inspect", "-o", "table", &id],
        vec![
            "inspect",
            "-o",
            "go-template",
            "--template",
            "{{.status.image.image}}{{.status.labels}}",
            &id,
        ],
        vec!["inspectp", &pod],
        vec!["inspectp", "-o", "table", &pod],
        vec!["inspecti", "crib.local/host"],
        vec!["stats", "-o", "json"],
        vec!["stats"],
        vec!["statsp"],
        vec!["metricsp"],
        vec!["metricdescs"],
        vec!["info"],
        vec!["imagefsinfo"],
        vec!["imagefsinfo", "-o", "table"],
        vec!["version"],
        vec!["describe", "pod/web"],
        vec!["pull", "crib.local/host"],
    ];
    // These commands print only fields by which other requests find objects.
    let of_ids =
        [vec!["ps", "-q"], vec!["ps", "-a", "-q"], vec!["pods", "-q"], vec!["images", "-q"]];
    let of_path = [vec!["logs", &id]];
    for command in commands.iter().chain(&of_ids).chain(&of_path) {
        ask(command).await;
    }
    drop(events.interrupt().await);
    proxy.stop().await;

    commands.push(vec!["events"]);
    let recorded = std::fs::read_to_string(recording).unwrap();
    let ids = ["id", "pod_sandbox_id", "container_id"];
    let found_by = [&ids[..], &["log_path"]].concat();
    for (commands, kept) in [(&commands[..], &found_by[..]), (&of_ids, &[]), (&of_path, &ids)] {
        std::fs::write(recording, poisoned(&recorded, kept)).unwrap();
        shows_nothing_raw(&place, listen, recording, commands).await;
    }

    // Each call fails with a message of the runtime.
    let message = format!("Version answer ABORTED {:?}", "x\u{9b}2J\u{202e}HOSTILE");
    let mut proxy =
        place.start(&["proxy", "--listen", listen, "--upstream", &upstream, "--fault", &message]);
    proxy.line_with("listening").await;
    let shown = on_terminal(&place, "xterm", &["-r", listen, "version"]).await;
    assert!(shown.contains("HOSTILE") && !shown.chars().any(is_raw), "{shown:?}");
    proxy.stop().await;
    runtime.stop().await;
}

/// Replays a recording, and runs these commands on a terminal.
async fn shows_nothing_raw(place: &Place, listen: &str, recording: &str, commands: &[Vec<&str>]) {
    let mut proxy = place.start(&["proxy", "replay", recording, "--listen", listen]);
    proxy.line_with("listening").await;
    for command in commands {
        let name = format!("pod/web{HOSTILE}");
        let command = command.iter().map(|word| if *word == "pod/web" { &name } else { *word });
        let command: Vec<&str> = ["-r", listen].into_iter().chain(command).collect();
        // A progress line erases itself.
        let shown = on_terminal(place, "xterm", &command).await.replace("\r\x1b[2K", "\r");
        let raw: Vec<char> = shown.chars().filter(|c| is_raw(*c)).collect();
        assert_eq!(raw, [], "{command:?}: {shown:?}");
        assert!(shown.contains("HOSTILE"), "nothing of it is shown by {command:?}: {shown:?}");
    }
    drop(proxy.interrupt().await);
}

/// Valid and invalid strings of a manifest, and the termination message of a container.
#[tokio::test]
async fn no_string_of_a_manifest_steers_terminal() {
    let place = Place::new();
    let text = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"restartPolicy": "Never", "containers": [{
        "name": "main", "image": "crib.local/host", "env": [{"name": "TEXT", "value": HOSTILE}],
        "command": ["bash", "-c", "printf %s \"$TEXT\" >/dev/termination-log; exit 3", HOSTILE],
    }]}, "metadata": {"name": "p", "annotations": {"a/b": HOSTILE}}});
    let good = place.file("good.json", &text.to_string());
    let mut bad = text.clone();
    bad["spec"]["containers"][0]["image"] = HOSTILE.into();
    bad["metadata"]["name"] = HOSTILE.into();
    bad["metadata"]["labels"] = json!({HOSTILE: HOSTILE});
    bad[HOSTILE] = HOSTILE.into();
    let bad = place.file("bad.json", &bad.to_string());
    for args in [
        &["run", &good][..],
        &["run", "--events", &good],
        &["run", "--output", "json", &good],
        &["explain-run", "--output", "json", &good],
        &["explain-run", &good],
        &["run", &bad],
        &["explain-run", &bad],
        &["run", &format!("/{HOSTILE}")],
    ] {
        let shown = on_terminal(&place, "dumb", args).await;
        let raw: Vec<char> = shown.chars().filter(|c| is_raw(*c)).collect();
        assert_eq!(raw, [], "{args:?}: {shown:?}");
        assert!(shown.contains("HOSTILE"), "nothing of it is shown by {args:?}: {shown:?}");
        // The live view itself moves the cursor.
        let shown = on_terminal(&place, "xterm", args).await;
        let others = |c: char| is_raw(c) && c != '\x1b';
        let steers = shown.contains(others) || shown.contains("\x1b]") || shown.contains("\x1b[8m");
        assert!(!steers && shown.contains("HOSTILE"), "{args:?}: {shown:?}");
    }
}

/// The text without sequences for colours and styles (ECMA-48, SGR).
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !matches!(c, '0'..='9' | ';' | ':'));
        match end.filter(|end| part[*end..].starts_with('m')) {
            Some(end) => plain += &part[end + 1..],
            None => plain += &format!("\x1b[{part}"),
        }
    }
    plain
}

/// A container's output, on both streams: `crib run` keeps only its colours.
#[rstest]
#[tokio::test]
async fn run_keeps_colours_only_of_container_output(#[values("dumb", "xterm")] terminal: &str) {
    let place = Place::new();
    let script = "for to in 1 2; do printf '%s\n' \"$TEXT\" \"$ORDER\" $'\\e[31mred' >&$to; done";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"restartPolicy": "Never",
        "containers": [{"name": "main", "image": "crib.local/host", "command": ["bash", "-c", script],
        "env": [{"name": "TEXT", "value": HOSTILE}, {"name": "ORDER", "value": "\u{202e}\u{2066}order"}]}]}});
    let manifest = place.file("p.json", &pod.to_string());
    let shown = on_terminal(&place, terminal, &["run", &manifest]).await;
    for (words, times) in [("HOSTILE", 2), ("order", 2), ("\x1b[31mred\x1b[0m", 2)] {
        assert_eq!(shown.matches(words).count(), times, "{words:?}: {shown:?}");
    }
    // The live view itself moves the cursor.
    let plain = without_colours(&shown);
    let others = |c: char| is_raw(c) && !(c == '\x1b' && terminal == "xterm");
    assert!(!plain.contains(others) && !plain.contains("\x1b]"), "{shown:?}");
}

/// The logs of servers contain strings of their runtimes, and paths.
#[tokio::test]
async fn no_string_of_a_log_steers_terminal() {
    let place = Place::new();
    let (runtime, upstream) = place.runtime().await;
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let (listen, root, socket) = (path("p"), path("root"), path("s2"));
    let fault = format!("RunPodSandbox answer INTERNAL \"{HOSTILE}\"");
    let mut proxy =
        place.start(&["proxy", "--listen", &listen, "--upstream", &upstream, "--fault", &fault]);
    proxy.line_with("listening").await;
    place.file("m/p.yaml", &crate::runs::run::pod("p", "true"));
    let agent =
        ["agent", "--runtime-endpoint", &listen, "--manifests", &path("m"), "--root-dir", &root];
    let of_agent = on_terminal(&place, "xterm", &agent).await;
    proxy.stop().await;
    runtime.stop().await;

    let state = path(&format!("state{HOSTILE}"));
    let args = ["runtime", "--listen", &socket, "--state-dir", &state];
    let of_runtime = on_terminal(&place, "xterm", &args).await;
    for shown in [of_agent, of_runtime] {
        let raw: Vec<char> = shown.chars().filter(|c| is_raw(*c)).collect();
        assert_eq!(raw, [], "{shown:?}");
        assert!(shown.contains("HOSTILE"), "{shown:?}");
    }
}
