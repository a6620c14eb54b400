//! `crib run --name` and `crib down`: runs in the background, from their start to nothing left.

use std::path::PathBuf;

use crate::command::*;
use crate::runs::run::{CANNOT_PULL, daemon, pod, stubborn};

/// The script of a container that runs until SIGTERM.
const FOREVER: &str = "trap 'exit 0' TERM; echo up; while true; do sleep 0.1; done";

/// Stops the runs in the background when a test fails: nothing else would.
pub(crate) struct Downs<'p>(pub(crate) &'p Place);

impl Drop for Downs<'_> {
    fn drop(&mut self) {
        let command = self.0.command(&["down", "--all", "--force"]);
        let _ = command.into_std().output();
    }
}

/// Starts a run in the background; it must succeed.
pub(crate) async fn start(place: &Place, args: &[&str]) -> Ended {
    let mut all = vec!["run", "--name"];
    all.extend(args);
    let ended = place.crib(&all).await.exits(0);
    assert_eq!(ended.out, "", "{ended:?}");
    ended
}

/// The output of a command that must succeed.
pub(crate) async fn out(place: &Place, args: &[&str]) -> String {
    let ended = place.crib(args).await;
    assert_eq!(ended.code, Some(0), "crib {args:?}: {ended:?}");
    ended.out
}

/// Waits until a container prints that it is up. Before, it does not handle SIGTERM, and would take its whole grace period.
async fn is_up(place: &Place, args: &[&str]) {
    let mut all = vec!["logs", "--follow"];
    all.extend(args);
    let mut logs = place.start(&all);
    logs.line_with("up").await;
    // A process that is only dropped may still exist when the place is checked.
    logs.child.kill().await.unwrap();
}

/// Waits until the only run has printed all of these words.
pub(crate) async fn printed(place: &Place, started: &Ended, words: &[&str]) {
    let log = || {
        let mut runs = std::fs::read_dir(place.path("tmp")).unwrap();
        let log = runs.next().unwrap().unwrap().path().join("run.log");
        format!("{}{}", started.err, std::fs::read_to_string(log).unwrap())
    };
    eventually("words of the run", || {
        let log = log();
        match words.iter().all(|word| log.contains(word)) {
            true => vec![],
            false => vec![log],
        }
    })
    .await;
}

/// The directory in which the runs of a place register.
fn registry(place: &Place) -> PathBuf {
    place.path("xdg/crib-runs")
}

/// The processes of runs in the background.
fn commands(place: &Place) -> Vec<Pid> {
    let lines = place.left();
    let commands = lines.iter().filter(|line| line.contains("run --detached"));
    let pids = commands.filter_map(|line| line.split(' ').nth(1)?.parse().ok());
    pids.map(Pid::from_raw).collect()
}

#[tokio::test]
async fn named_run_is_listed_until_down() {
    let place = Place::unchecked();
    let _downs = Downs(&place);
    let manifest = place.file("web.yaml", &pod("web", FOREVER));
    let started = start(&place, &["first", &manifest]).await;
    let hint = "crib: run first is in the background: `crib ps` and `crib logs` show it, `crib down first` ends it";
    assert_eq!(started.err.lines().last(), Some(hint), "{}", started.err);
    started.err_has("crib: isolation: ");

    let listed = out(&place, &["ps"]).await;
    let lines: Vec<Vec<&str>> =
        listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 2, "{listed}");
    assert_eq!(lines[0].last(), Some(&"RUN"), "{listed}");
    assert!(lines[1].ends_with(&["web", "default", "first"]), "{listed}");
    let shown = out(&place, &["ps", "--verbose"]).await;
    assert!(shown.contains("\nRun: first\n"), "{shown}");
    let listed = out(&place, &["pods"]).await;
    let of_lines = |line: &str| line.split_whitespace().last().map(str::to_owned);
    let last: Vec<String> = listed.lines().filter_map(of_lines).collect();
    assert_eq!(last, ["RUN", "first"], "{listed}");
    let shown = out(&place, &["pods", "--verbose"]).await;
    assert!(shown.contains("\nRun: first\n"), "{shown}");
    is_up(&place, &["web"]).await;
    assert_eq!(out(&place, &["exec", "web", "hostname"]).await, "web\n");

    // A second run, whose pod has the same name.
    start(&place, &["second", &manifest]).await;
    for run in ["first", "second"] {
        is_up(&place, &["--run", run, "web"]).await;
        let ids = out(&place, &["ps", "-q", "--run", run]).await;
        assert_eq!(ids.lines().count(), 1, "{ids}");
    }
    let ended = place.crib(&["ps", "--run", "third"]).await.exits(1);
    assert_eq!(ended.err, "crib: no run is named third: the named runs are first, second\n");

    assert_eq!(out(&place, &["down", "first"]).await, "first: 1 Running\n");
    let listed = out(&place, &["ps"]).await;
    assert!(listed.contains("second") && !listed.contains("first"), "{listed}");
    assert_eq!(out(&place, &["down", "--all"]).await, "second: 1 Running\n");
    place.assert_clean();
    assert!(!registry(&place).exists());
}

#[tokio::test]
async fn name_in_use_is_refused_and_free_again_after_down() {
    let place = Place::new();
    let _downs = Downs(&place);
    let manifest = place.file("web.yaml", &pod("web", FOREVER));
    start(&place, &["web", &manifest]).await;
    let ended = place.crib(&["run", "--name", "web", &manifest]).await.exits(2);
    assert_eq!(
        ended.err,
        "crib: a run named web exists: end it with `crib down web`, or choose another name\n"
    );
    assert_eq!(commands(&place).len(), 1, "{:#?}", place.left());
    is_up(&place, &["web"]).await;
    out(&place, &["down", "web"]).await;
    let quiet = start(&place, &["web", "--quiet", &manifest]).await;
    assert_eq!(quiet.err, "");
    is_up(&place, &["web"]).await;
    out(&place, &["down", "web"]).await;
}

#[tokio::test]
async fn result_of_ended_pods_stays_until_down() {
    let place = Place::new();
    let _downs = Downs(&place);
    let good = place.file("good.yaml", &pod("good", "echo fine"));
    let bad = place.file("bad.yaml", &pod("bad", "exit 3"));
    let started = start(&place, &["results", &good, &bad]).await;
    let words = ["→ Succeeded (main exited)", "→ Failed (main exited)"];
    printed(&place, &started, &words).await;
    let listed = out(&place, &["ps", "-a"]).await;
    for name in ["good", "bad"] {
        let line = listed.lines().find(|line| line.contains(name));
        assert!(
            line.is_some_and(|line| line.contains("Exited") && line.ends_with("results")),
            "{listed}"
        );
    }
    assert_eq!(out(&place, &["logs", "good"]).await, "fine\n");
    let ended = out(&place, &["down", "results"]).await;
    assert_eq!(ended, "results: 1 Failed, 1 Succeeded\n");
}

#[tokio::test]
async fn command_ends_when_all_containers_have_started() {
    let place = Place::new();
    let _downs = Downs(&place);
    let init = "  initContainers:\n  - {name: first, image: crib.local/behave/exit-0-after-1s}\n  containers:";
    let manifest = pod("web", FOREVER).replace("  containers:", init);
    let manifest = place.file("web.yaml", &manifest);
    start(&place, &["web", &manifest]).await;
    let exec = ["exec", "web", "-c", "main", "echo", "in it"];
    assert_eq!(out(&place, &exec).await, "in it\n");
    is_up(&place, &["web"]).await;
    out(&place, &["down", "web"]).await;
}

#[tokio::test]
async fn command_fails_if_a_pod_can_never_run() {
    let place = Place::new();
    let _downs = Downs(&place);
    let manifest = pod("web", FOREVER).replace("crib.local/host", "Foo:Bar:Baz");
    let manifest = place.file("web.yaml", &manifest);
    let ended = place.crib(&["run", "--name", "web", &manifest]).await.exits(1);
    let last = ended.err.lines().last().unwrap_or_default();
    assert!(last.contains("a pod can never run"), "{ended:?}");
    out(&place, &["down", "web"]).await;
}

#[tokio::test]
async fn manifest_is_read_from_stdin_before_command_detaches() {
    let place = Place::new();
    let _downs = Downs(&place);
    let manifest = pod("web", FOREVER);
    place.crib_with_stdin(&["run", "--name", "web", "-"], &manifest).await.exits(0);
    is_up(&place, &["web"]).await;
    out(&place, &["down", "web"]).await;
}

#[tokio::test]
async fn watched_manifests_are_applied_in_background() {
    let place = Place::new();
    let _downs = Downs(&place);
    std::fs::create_dir(place.path("manifests")).unwrap();
    let manifests = place.path("manifests").display().to_string();
    place.file("manifests/a.yaml", &pod("a", FOREVER));
    let started = start(&place, &["web", "--watch", &manifests]).await;
    place.file("manifests/b.yaml", &pod("b", FOREVER));
    let words = ["crib: pod default/b is new", "default/b: Pending → Running"];
    printed(&place, &started, &words).await;
    for pod in ["a", "b"] {
        is_up(&place, &[pod]).await;
    }
    assert_eq!(out(&place, &["down", "web"]).await, "web: 2 Running\n");
}

#[tokio::test]
async fn wrong_manifest_leaves_nothing_in_background() {
    let place = Place::unchecked();
    let manifest = place.file(
        "one.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: one}\nspec:\n  containers:\n  - nam: x\n",
    );
    let ended = place.crib(&["run", "--name", "web", &manifest]).await.exits(2);
    ended.err_has("one.yaml:6:");
    assert!(!ended.err.contains("background"), "{}", ended.err);
    place.assert_clean();
    assert!(!registry(&place).exists());
}

#[tokio::test]
async fn failure_of_pod_is_reported_before_command_ends() {
    let place = Place::new();
    let _downs = Downs(&place);
    let started = start(&place, &["broken", CANNOT_PULL]).await;
    started.err_has("ErrImagePull");
    let ended = out(&place, &["down", "broken"]).await;
    assert_eq!(ended, "broken: 1 Pending\n");
}

/// A pod that does not start: its registry never responds.
fn waiting(place: &Place) -> (std::net::TcpListener, String) {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let image = format!("{}/x:1", silent.local_addr().unwrap());
    let manifest = pod("p", "true").replace("crib.local/host", &image);
    (silent, place.file("waiting.yaml", &manifest))
}

#[rstest]
#[case::interrupted(Signal::SIGINT, Some(130))]
#[case::terminated(Signal::SIGTERM, Some(130))]
#[case::killed(Signal::SIGKILL, None)]
#[tokio::test]
async fn run_ends_with_command_that_waits_for_its_start(
    #[case] signal: Signal,
    #[case] code: Option<i32>,
) {
    let place = Place::new();
    let _downs = Downs(&place);
    let (silent, manifest) = waiting(&place);
    let starting = Running::start(place.command(&["run", "--name", "p", &manifest]));
    // Now the pod's image is being pulled.
    let accepted = tokio::task::spawn_blocking(move || silent.accept().unwrap());
    let _connection = accepted.await.unwrap();
    starting.signal(signal);
    let ended = starting.end().await;
    assert_eq!(ended.code, code, "{ended:?}");
    place.wait_until_clean().await;
    assert!(!registry(&place).exists());
}

#[tokio::test]
async fn down_kills_stubborn_pods_with_force() {
    let place = Place::new();
    let _downs = Downs(&place);
    start(&place, &["p", &stubborn(&place)]).await;
    // The grace period is as long as the test's time limit.
    let ended = place.crib(&["down", "--force", "p"]).await.exits(0);
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("p: 1 Running\n", ""));
}

#[tokio::test]
async fn down_names_stopped_process_of_run() {
    let place = Place::new();
    let _downs = Downs(&place);
    start(&place, &["p", &stubborn(&place)]).await;
    let commands = commands(&place);
    let [command] = commands.as_slice() else {
        panic!("{commands:?}");
    };
    let command = *command;
    kill(command, Signal::SIGSTOP).unwrap();
    let silent = place.crib(&["down", "--force", "p"]).await;
    kill(command, Signal::SIGCONT).unwrap();
    let reported = format!("run kill -CONT {command} to continue a stopped process");
    silent.exits(124).err_has(&reported);
    place.crib(&["down", "--force", "p"]).await.exits(0);
}

#[tokio::test]
async fn down_ends_run_that_another_down_waits_for() {
    let place = Place::new();
    let _downs = Downs(&place);
    start(&place, &["p", &stubborn(&place)]).await;
    let mut waiting = place.command(&["down", "p"]).spawn().unwrap();
    let stderr = waiting.stderr.as_mut().unwrap();
    let mut first = [0; 25];
    tokio::io::AsyncReadExt::read_exact(stderr, &mut first).await.unwrap();
    assert_eq!(&first, b"crib: ending the pods, wh");
    place.crib(&["down", "--force", "p"]).await.exits(0);
    let status = tokio::time::timeout(WAIT_LIMIT, waiting.wait()).await;
    assert_eq!(status.unwrap().unwrap().code(), Some(0));
}

#[tokio::test]
async fn down_removes_what_killed_run_and_runtime_left() {
    let place = Place::unchecked();
    let _downs = Downs(&place);
    start(&place, &["p", &stubborn(&place)]).await;
    let commands = commands(&place);
    let [command] = commands.as_slice() else {
        panic!("one run, one command: {:#?}", place.left())
    };
    let runtime = place.left().iter().find_map(|line| daemon(line)).unwrap();
    // Stopped first, so that it does not notice its runtime's end.
    kill(*command, Signal::SIGSTOP).unwrap();
    kill(Pid::from_raw(runtime), Signal::SIGKILL).unwrap();
    kill(*command, Signal::SIGKILL).unwrap();
    place.wait_for_only_a_file().await;
    let ended = out(&place, &["down", "p"]).await;
    assert!(
        ended.starts_with("removed ") && ended.ends_with(", which a killed run left\n"),
        "{ended}"
    );
    place.assert_clean();
    place.crib(&["down", "p"]).await.exits(1);
}

#[tokio::test]
async fn down_waits_for_runtime_of_killed_run() {
    let place = Place::new();
    let _downs = Downs(&place);
    start(&place, &["p", &stubborn(&place)]).await;
    for command in commands(&place) {
        kill(command, Signal::SIGKILL).unwrap();
    }
    // The runtime notices the end of its command and removes everything, perhaps before the next command runs.
    let ended = place.crib(&["down", "p"]).await;
    assert!(matches!(ended.code, Some(0 | 1)), "{ended:?}");
    place.wait_until_clean().await;
}

#[tokio::test]
async fn timeout_ends_run_in_background() {
    let place = Place::new();
    let _downs = Downs(&place);
    // The time may be over when the container has started, before it handles SIGTERM.
    let manifest = pod("web", FOREVER).replace("PeriodSeconds: 60", "PeriodSeconds: 10");
    let manifest = place.file("web.yaml", &manifest);
    let ended = place.crib(&["run", "--name", "web", "--timeout", "3s", &manifest]).await;
    // On a slow machine the time is over before the pod has started.
    assert!(matches!(ended.code, Some(0 | 124)), "{ended:?}");
    place.wait_until_clean().await;
    assert!(!registry(&place).exists());
}

#[tokio::test]
async fn down_without_runs_prints_message() {
    let place = Place::unchecked();
    let ended = place.crib(&["down", "web"]).await.exits(1);
    assert_eq!(ended.err, "crib: no run is named web: no run has a name\n");
    place.crib(&["down", "--all"]).await.exits(0);
}
