//! A day's work with kubectl, done with `crib`: forty steps, in a terminal and with pipes.

use regex_lite::Regex;

use crate::command::*;
use crate::runs::background::Downs;
use crate::runs::get::table;
use crate::tmux::Terminal;

const SHOP: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: red}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: crib.local/host, command: [sh, -c, "echo up; exec sleep infinity"]}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: migrate}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: crib.local/host, command: [echo, migrated]}]
---
apiVersion: v1
kind: Pod
metadata: {name: pair, labels: {app: pair}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: app, image: crib.local/host, command: [sh, -c, "echo app is up; exec sleep infinity"]}
  - {name: side, image: crib.local/host, command: [sh, -c, "echo side is up; exec sleep infinity"]}
---
apiVersion: v1
kind: Pod
metadata: {name: bad}
spec:
  containers: [{name: main, image: crib.local/host, command: [sh, -c, "echo trying; exit 3"]}]
"#;

/// A step: the words after `crib`, the exit code, and the complete output; `*` matches anything, such as progress.
type Step = (&'static [&'static str], i32, &'static str);

const STEPS: &[Step] = &[
    (
        &["wait", "--for=condition=Ready", "pod", "-l", "app=web", "--timeout=50s"],
        0,
        "pod/web-* condition met\npod/web-* condition met\n",
    ),
    (
        &["wait", "--for=condition=Available", "deploy/web", "--timeout=50s"],
        0,
        "deployment.apps/web condition met\n",
    ),
    (
        &["wait", "--for=jsonpath={.status.readyReplicas}=2", "deploy/web"],
        0,
        "deployment.apps/web condition met\n",
    ),
    (
        &["wait", "--for=condition=Complete", "job/migrate", "--timeout=50s"],
        0,
        "job.batch/migrate condition met\n",
    ),
    (
        &["wait", "--for=condition=Ready", "pod/pair", "--timeout=50s"],
        0,
        "pod/pair condition met\n",
    ),
    (&["rollout", "status", "deploy/web"], 0, "deployment \"web\" successfully rolled out\n"),
    // Just before its state is shown: the state changes for a moment when the container is restarted.
    (
        &[
            "wait",
            "--for=jsonpath={.status.containerStatuses[0].state.waiting.reason}=CrashLoopBackOff",
            "pod/bad",
            "--timeout=50s",
        ],
        0,
        "pod/bad condition met\n",
    ),
    (
        &["get", "pods"],
        0,
        "\
NAME READY STATUS RESTARTS AGE
bad 0/1 CrashLoopBackOff N (AGE ago) AGE
migrate-* 0/1 Completed 0 AGE
pair 2/2 Running 0 AGE
web-* 1/1 Running 0 AGE
web-* 1/1 Running 0 AGE
",
    ),
    (&["get", "deploy"], 0, "NAME READY UP-TO-DATE AVAILABLE AGE\nweb 2/2 2 2 AGE\n"),
    (&["get", "svc", "web", "--no-headers"], 0, "web ClusterIP IP <none> 80/TCP AGE\n"),
    (&["get", "job"], 0, "NAME STATUS COMPLETIONS DURATION AGE\nmigrate Complete 1/1 AGE AGE\n"),
    (&["get", "pods", "-l", "app=web", "-o", "name"], 0, "pod/web-*\npod/web-*\n"),
    (&["get", "cm", "settings", "-o", "jsonpath={.data.color}"], 0, "red"),
    (
        &[
            "get",
            "pods",
            "pair",
            "-o",
            "custom-columns=NAME:.metadata.name,IMAGES:.spec.containers[*].image",
        ],
        0,
        "NAME IMAGES\npair crib.local/host,crib.local/host\n",
    ),
    (
        &["get", "pods", "--field-selector", "status.phase=Succeeded"],
        0,
        "NAME READY STATUS RESTARTS AGE\nmigrate-* 0/1 Completed 0 AGE\n",
    ),
    (&["get", "pods", "-n", "none"], 0, "crib: no resources found in none namespace\n"),
    (&["get", "pods", "none"], 1, "crib: pods \"none\" not found\n"),
    (&["get", "pdos"], 2, "crib: the server doesn't have a resource type \"pdos\"\n"),
    (&["logs", "job/migrate"], 0, "migrated\n"),
    (&["logs", "deploy/web"], 0, "crib: Found 2 pods, using pod/web-*\nup\n"),
    (&["logs", "-l", "app=web", "--prefix"], 0, "[pod/web-*/main] up\n[pod/web-*/main] up\n"),
    (&["logs", "pair"], 0, "crib: Defaulted container \"app\" out of: app, side\napp is up\n"),
    (&["logs", "pair", "-c", "side"], 0, "side is up\n"),
    (&["logs", "pair", "--all-containers"], 0, "app is up\nside is up\n"),
    (&["logs", "-p", "bad"], 0, "trying\n"),
    (&["logs", "bad", "--tail=1", "--since=1h"], 0, "trying\n"),
    (&["exec", "pair", "-c", "side", "--", "echo", "inside"], 0, "inside\n"),
    (
        &["exec", "pair", "--", "cat", "/etc/hostname"],
        0,
        "crib: Defaulted container \"app\" out of: app, side\npair\n",
    ),
    (&["exec", "deploy/web", "--", "sh", "-c", "exit 7"], 7, ""),
    (&["cp", "PLACE/letter", "pair:/dev/shm/letter", "-c", "app"], 0, "*"),
    (&["exec", "pair", "-c", "app", "--", "cat", "/dev/shm/letter"], 0, "dear pod\n"),
    (&["cp", "pair:/dev/shm/letter", "PLACE/answer", "-c", "app"], 0, "*"),
    (
        &[
            "debug",
            "pair",
            "--image",
            "crib.local/host",
            "--target",
            "app",
            "-c",
            "look",
            "--",
            "sh",
            "-c",
            "echo I see $(tr '\\0' ' ' </proc/1/cmdline)",
        ],
        0,
        "*",
    ),
    (
        &[
            "wait",
            "--for=jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.exitCode}=0",
            "pod/pair",
            "--timeout=50s",
        ],
        0,
        "pod/pair condition met\n",
    ),
    (&["logs", "pair", "-c", "look"], 0, "I see sleep infinity\n"),
    (&["top", "pod", "pair"], 0, "NAME CPU(cores) MEMORY(bytes)\npair CPU MEMORY\n"),
    (&["get", "pods", "pair", "-o", "jsonpath={.spec.ephemeralContainers[0].name}"], 0, "look"),
    (&["wait", "--for=delete", "pod/none"], 0, ""),
    (
        &["wait", "--for=condition=Ready", "pod/bad", "--timeout=0"],
        1,
        "crib: condition not met for pods/bad\n",
    ),
];

/// Replaces what differs between runs: names, ages, addresses, amounts, and the spaces between columns.
fn normal(text: &str) -> String {
    let usage = Regex::new(r"(?m)^pair +[0-9]+m? +[0-9]+Mi$").unwrap();
    table(&usage.replace_all(text, "pair CPU MEMORY"))
}

/// Runs the command, with pipes or in its own terminal. Returns its complete output, including errors.
async fn step(place: &Place, args: &[&str], code: i32, in_terminal: bool) -> String {
    let crib = place.command(args);
    let crib = crib.as_std();
    let quoted =
        |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap().replace('\'', "'\\''"));
    let mut words = vec!["env".to_owned()];
    for (name, value) in crib.get_envs() {
        words.push(format!("{}={}", name.display(), quoted(value.unwrap())));
    }
    words.extend(std::iter::once(crib.get_program()).chain(crib.get_args()).map(quoted));
    let line = words.join(" ");
    if in_terminal {
        // Marks the end of a last line without a newline.
        let line = format!("{line}; code=$?; echo; (exit $code)");
        let terminal = Terminal::shell(place, 200, 50, &line).await;
        let mut printed = terminal.end(code).await;
        printed.pop();
        return printed.join("\n");
    }
    let mut command = tokio::process::Command::new("sh");
    command.args(["-c", &format!("{line} 2>&1")]);
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped()).kill_on_drop(true);
    let ended = place.end(command).await;
    assert_eq!(ended.code, Some(code), "{args:?}: {}", ended.out);
    ended.out
}

#[rstest]
#[tokio::test]
async fn kubectl_workflow_works_with_crib(#[values(false, true)] in_terminal: bool) {
    harness::needs!(Namespaces);
    if in_terminal {
        harness::needs!(Tmux);
    }
    let place = Place::new();
    let _downs = Downs(&place);
    let manifest = place.file("shop.yaml", SHOP);
    place.file("letter", "dear pod\n");
    place.crib(&["run", "--name", "shop", &manifest]).await.exits(0);
    let at = place.path("").to_str().unwrap().trim_end_matches('/').to_owned();
    for (args, code, expected) in STEPS {
        let args: Vec<String> = args.iter().map(|word| word.replace("PLACE", &at)).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let printed = normal(&step(&place, &args, *code, in_terminal).await);
        if *expected != "*" {
            assert_eq!(printed.trim_end(), expected.trim_end(), "{args:?}");
        }
    }
    assert_eq!(std::fs::read_to_string(place.path("answer")).unwrap(), "dear pod\n");
    place.crib(&["down", "shop"]).await.exits(0);
    let none = place.crib(&["get", "pods"]).await;
    assert_eq!(none.out, "", "{none:?}");
}
