//! Shell completions from `crib completions`: commands, flags, and the names of running objects.

use crate::command::*;
use crate::runs::background::{Downs, out, start};

const OBJECTS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web-alone}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: crib.local/behave/run}
  - {name: side, image: crib.local/behave/run}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: crib.local/behave/run}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
"#;

/// The candidates for the last word of a line in a shell.
async fn offered(place: &Place, shell: &str, line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let mut command = place.command(&[&["--"], &words[..]].concat());
    command.env("CRIB_COMPLETE", shell).env("_CLAP_IFS", "\n");
    command.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
    let ended = place.end(command).await.exits(0);
    // A description may follow the candidate.
    let word = |line: &str| line.split(['\t', ' ']).next().unwrap_or_default().to_owned();
    ended.out.lines().map(word).filter(|word| !word.starts_with('-')).collect()
}

#[rstest]
#[case("bash")]
#[case("fish")]
#[tokio::test]
async fn shells_are_offered_names_of_runs(#[case] shell: &str) {
    let place = Place::new();
    let _downs = Downs(&place);
    start(&place, &["first", &place.file("all.yaml", OBJECTS)]).await;
    for (line, expected) in [
        ("crib rollo", &["rollout"][..]),
        ("crib logs web", &["web-alone"]),
        ("crib logs s", &["side", "sts/db"]),
        ("crib exec sts", &["sts/db"]),
        ("crib exec web-alone -c s", &["side"]),
        ("crib port-forward d", &["db-0"]),
        ("crib describe w", &["web-alone"]),
        ("crib get confi", &["configmaps"]),
        ("crib get cm/", &["cm/settings"]),
        ("crib wait --for=delete pod/w", &["pod/web-alone"]),
        ("crib rollout status sts/", &["sts/db"]),
        ("crib down ", &["first"]),
        ("crib ps --run f", &["first"]),
        ("crib logs none", &[]),
    ] {
        assert_eq!(offered(&place, shell, line).await, expected, "{line}");
    }
    out(&place, &["down", "first"]).await;
    assert_eq!(offered(&place, shell, "crib logs web").await, [""; 0]);
}

/// As at a prompt.
#[tokio::test]
async fn bash_completes_a_word() {
    let place = Place::new();
    let _downs = Downs(&place);
    start(&place, &["first", &place.file("all.yaml", OBJECTS)]).await;
    let script = "source <(crib completions bash)
        COMP_WORDS=(crib logs web) COMP_CWORD=2
        $(complete -p crib | sed 's/.*-F \\([^ ]*\\) .*/\\1/') crib web logs
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_crib"));
    let path =
        format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let crib = place.command(&[]);
    let mut bash = tokio::process::Command::new("bash");
    for (name, value) in crib.as_std().get_envs() {
        bash.env(name, value.unwrap());
    }
    bash.args(["--norc", "-c", script]).env("PATH", path).kill_on_drop(true);
    let ended = place.end(bash).await.exits(0);
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("web-alone\n", ""));
    out(&place, &["down", "first"]).await;
}
