//! `crib run` from manifest to the end: the output, the exit code, and that nothing is left, however it ends.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::command::*;

pub(crate) const HELLO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/hello.yaml");
pub(crate) const FOREVER: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/forever.yaml");
pub(crate) const CANNOT_PULL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cannot-pull.yaml");
const CRASH_LOOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/crash-loop.yaml");

/// A pod with one container that runs a shell script once.
pub(crate) fn pod(name: &str, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: Never\n  \
         terminationGracePeriodSeconds: 60\n  containers:\n  - name: main\n    image: crib.local/host\n    \
         command: [bash, -c, {script:?}]\n"
    )
}

/// Runs manifests until a timeout, and again with a longer one if something is missing in the output: on a busy machine, pods may
/// need longer.
pub(crate) async fn run_until_timeout(
    place: &Place,
    args: &[&str],
    has_come: impl Fn(&Ended) -> bool,
) -> Ended {
    let run = async |timeout: &str| {
        place.crib(&[&["run", "--timeout", timeout], args].concat()).await.exits(124)
    };
    let ended = run("2s").await;
    if has_come(&ended) { ended } else { run("30s").await }
}

/// A manifest of a container that ignores SIGTERM, and prints a line when it does. Its command line contains the place, so that
/// [`Place::left`] finds it.
pub(crate) fn stubborn(place: &Place) -> String {
    let script = format!(
        ": {}; trap '' TERM; echo ready; while true; do sleep 1; done",
        place.path("").display()
    );
    place.file("stubborn.yaml", &pod("p", &script))
}

/// A process of such a container.
fn is_stubborn(line: &str) -> bool {
    line.contains("trap '' TERM")
}

#[tokio::test]
async fn run_exits_0_when_pods_succeed() {
    let place = Place::new();
    let ended = place.crib(&["run", HELLO]).await.exits(0);
    let line = |line: &str| {
        let found = ended.out.lines().position(|seen| seen == line);
        found.unwrap_or_else(|| panic!("no line {line:?} in:\n{}", ended.out))
    };
    let read = line("hello/read   | the file says: hello from the init container");
    let listening = line("hello/server | listening on 127.0.0.1:8080");
    let requested = line("hello/server | asked: what is in the file?");
    let answered = line("hello/client | the server answered: hello from the init container");
    assert!(read < listening && listening < requested && read < answered, "{}", ended.out);
    assert_eq!(ended.out.lines().count(), 4, "{}", ended.out);
    let table: Vec<&str> = ended.err.lines().rev().take(5).collect();
    let rows = ["  ✓ client ", "  ✓ server ", "  ✓ read ", "  ✓ write ", "✓ default/hello "];
    assert!(
        table.len() == 5 && std::iter::zip(&table, rows).all(|(line, row)| line.starts_with(row)),
        "{}",
        ended.err
    );
}

#[tokio::test]
async fn run_exits_1_and_explains_failed_pod() {
    let place = Place::new();
    let (good, bad) = (
        place.file("good.yaml", &pod("good", "exit 0")),
        place.file("bad.yaml", &pod("bad", "echo no; exit 7")),
    );
    let ended = place.crib(&["run", &good, &bad]).await.exits(1);
    ended.out_has("bad/main  | no\n");
    ended.err_has("pod default/bad failed: container main ended with exit code 7");
    assert!(!ended.err.contains("pod default/good failed"), "{}", ended.err);
}

#[tokio::test]
async fn run_names_missing_command() {
    let place = Place::new();
    let text = pod("p", "x").replace("bash", "/no/such/program");
    let ended = place.crib(&["run", &place.file("p.yaml", &text)]).await.exits(1);
    ended.err_has("/no/such/program");
}

#[tokio::test]
async fn run_prints_last_line_of_ended_container_while_others_run() {
    let place = Place::new();
    let init = "  initContainers:\n  - {name: first, image: crib.local/host, command: [bash, -c, 'printf end']}\n";
    // The container may get SIGTERM before it has set its trap, and then takes its whole grace period.
    let text = pod("p", "trap 'exit 0' TERM; sleep 1000 & wait")
        .replace("PeriodSeconds: 60", "PeriodSeconds: 1")
        .replace("  containers:", &format!("{init}  containers:"));
    let mut running = place.start(&["run", &place.file("p.yaml", &text)]);
    running.line_with("p/first | end").await;
    running.interrupt().await.exits(130);
}

#[tokio::test]
async fn run_prints_last_line_without_newline() {
    let place = Place::new();
    let text = pod("p", "for n in {1..5000}; do echo line $n; done; printf end; printf error >&2");
    let ended = place.crib_with_stdin(&["run", "--quiet", "-"], &text).await.exits(0);
    let numbered: Vec<&str> = ended.out.lines().filter(|line| line.contains("line")).collect();
    assert_eq!(numbered.len(), 5000);
    assert!(
        numbered.iter().enumerate().all(|(at, line)| *line == format!("p/main | line {}", at + 1))
    );
    assert!(ended.out.contains("p/main | end\n") && ended.out.contains("p/main | error\n"));
}

#[tokio::test]
async fn run_timeout_exits_124_after_graceful_stop() {
    // On a busy machine, the container may start later; it sets its trap before it prints.
    for timeout in ["2s", "30s"] {
        let place = Place::unchecked();
        let ended = place.crib(&["run", "--timeout", timeout, FOREVER]).await.exits(124);
        ended.err_has("runs until --timeout or Ctrl-C");
        ended.err_has("timed out");
        place.assert_clean();
        if ended.out.contains("forever/clock | ") {
            ended.out_has("forever/clock | goodbye");
            return;
        }
    }
    panic!("the container printed nothing within 30 s");
}

#[tokio::test]
async fn run_accepts_timeout_beyond_clock_range() {
    let place = Place::new();
    let manifest = place.file("pod.yaml", &pod("p", "echo done"));
    let args = ["run", "--timeout", "5000000000000000h", &manifest];
    place.crib(&args).await.exits(0);
}

#[tokio::test]
async fn run_exits_130_gracefully_on_each_signal() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let place = Place::new();
        let mut running = place.start(&["run", FOREVER]);
        running.line_with("forever/clock | ").await;
        running.signal(signal);
        let ended = running.end().await.exits(130);
        assert!(ended.out.contains("forever/clock | goodbye"), "{signal}: {}", ended.out);
    }
}

#[tokio::test]
async fn run_kills_pods_on_second_signal() {
    let place = Place::new();
    let mut running = place.start(&["run", "--output", "json", &stubborn(&place)]);
    running.line_with("ready").await;
    let begun = Instant::now();
    running.signal(Signal::SIGINT);
    running.line_with("Terminating").await;
    // A different signal, because the same one shortly afterwards would count as an echo.
    running.signal(Signal::SIGTERM);
    running.end().await.exits(130);
    assert!(
        begun.elapsed().as_secs() < 30,
        "the grace period is 60 s, this took {:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn run_ends_when_output_is_closed() {
    let place = Place::new();
    let mut running = place.start(&[
        "run",
        "--quiet",
        &place.file("p.yaml", &pod("p", "trap 'exit 0' TERM; echo one; sleep 1000 & wait")),
    ]);
    running.line_with("one").await;
    let child = running.stop_reading();
    let output = tokio::time::timeout(WAIT_LIMIT, child.wait_with_output()).await.unwrap().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert!(err.contains("standard output was closed"), "{err}");
}

#[tokio::test]
async fn run_leaves_nothing_behind_when_killed() {
    let place = Place::new();
    let mut running = place.start(&["run", &stubborn(&place)]);
    running.line_with("ready").await;
    assert!(place.left().iter().any(|line| is_stubborn(line)), "{:#?}", place.left());
    let link = bridge(&place);
    running.signal(Signal::SIGKILL);
    running.end().await;
    place.wait_until_clean().await;
    assert!(!link.exists(), "{}", link.display());
}

#[tokio::test]
async fn run_exits_3_and_cleans_up_when_runtime_is_killed() {
    let place = Place::new();
    let mut running = place.start(&["run", &stubborn(&place)]);
    running.line_with("ready").await;
    let daemons: Vec<i32> = place.left().iter().filter_map(|line| daemon(line)).collect();
    let [pid] = daemons.as_slice() else { panic!("one runtime is expected: {:#?}", place.left()) };
    let link = bridge(&place);
    assert_eq!(
        link.exists(),
        nix::unistd::geteuid().is_root(),
        "only root has the bridge where this test sees it"
    );
    kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap();
    let ended = running.end().await.exits(3);
    assert!(!link.exists(), "{}", link.display());
    ended.err_has("the runtime exited unexpectedly (signal: 9 (SIGKILL))");
    place.wait_until_clean().await;
}

#[tokio::test]
async fn run_exits_3_without_errors_when_runtime_is_terminated() {
    let place = Place::new();
    let mut running = place.start(&["run", "--quiet", &stubborn(&place)]);
    running.line_with("ready").await;
    let left = place.left();
    let daemon = left.iter().find_map(|line| daemon(line)).unwrap();
    kill(Pid::from_raw(daemon), Signal::SIGTERM).unwrap();
    let ended = running.end().await.exits(3);
    let messages: Vec<&str> = ended.err.lines().filter(|line| line.starts_with("crib: ")).collect();
    assert_eq!(messages, ["crib: the runtime exited unexpectedly (exit status: 0)"]);
    place.wait_until_clean().await;
}

#[tokio::test]
async fn run_kills_hanging_runtime_on_repeated_signals() {
    let place = Place::new();
    let mut running = place.start(&["run", &stubborn(&place)]);
    running.line_with("ready").await;
    let left = place.left();
    let daemon = left.iter().find_map(|line| daemon(line)).unwrap();
    kill(Pid::from_raw(daemon), Signal::SIGSTOP).unwrap();
    // Two signals, because the same one within a quarter of a second counts as an echo.
    for signal in [Signal::SIGINT, Signal::SIGTERM].iter().cycle() {
        running.signal(*signal);
        let soon = Duration::from_millis(100);
        if tokio::time::timeout(soon, running.child.wait()).await.is_ok() {
            break;
        }
    }
    let ended = running.end().await.exits(130);
    ended.err_has("the runtime was killed before it had ended the pods");
    place.wait_until_clean().await;
}

/// The kernel's directory for the bridge of the only run in a place.
pub(crate) fn bridge(place: &Place) -> PathBuf {
    let runs: Vec<PathBuf> =
        std::fs::read_dir(place.path("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [run] = runs.as_slice() else { panic!("one run is expected: {runs:?}") };
    Path::new("/sys/class/net").join(runtime_fake::instance_name(&run.join("state")))
}

/// The process id in a line about a runtime.
pub(crate) fn daemon(line: &str) -> Option<i32> {
    let (pid, words) = line.strip_prefix("process ")?.split_once(' ')?;
    words.contains(" runtime --listen ").then(|| pid.parse().unwrap())
}

/// The volume's nested directories form a path longer than PATH_MAX.
#[tokio::test]
async fn run_removes_deep_volume() {
    let place = Place::new();
    let nest = "p=d/; for i in 1 2 3 4 5 6 7 8 9 10; do p=$p$p; done; cd /volume; \
        for i in 1 2 3 4 5 6 7 8; do mkdir -p $p && cd -P $p || exit 9; done 2>/dev/null; echo nested";
    let manifest = pod("p", nest)
        .replace("spec:\n", "spec:\n  volumes: [{name: v, emptyDir: {}}]\n")
        + "    volumeMounts: [{name: v, mountPath: /volume}]\n";
    let ended = place.crib(&["run", &place.file("p.yaml", &manifest)]).await.exits(0);
    ended.out_has("nested");
}

#[tokio::test]
async fn run_keep_leaves_pods_until_runtime_ends() {
    let place = Place::new();
    let mut running = place.start(&["run", "--keep", &stubborn(&place)]);
    running.line_with("ready").await;
    let ended = running.interrupt().await.exits(130);
    for words in ["the pods keep running", "crib pods, crib ps, crib logs POD", "crib down kept-"] {
        assert!(ended.err.contains(words), "{words:?} is not in: {}", ended.err);
    }
    assert!(
        place.left().iter().any(|line| is_stubborn(line)),
        "the container runs: {:#?}",
        place.left()
    );
    let pid = place.left().iter().find_map(|line| daemon(line)).unwrap();
    ended.err_has(&format!("crib down kept-{pid}\n"));
    // For example, a service manager stops the runtime.
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    place.wait_until_clean().await;
}

#[tokio::test]
async fn run_reports_pull_failure_once() {
    let place = Place::new();
    let reports_error = |ended: &Ended| ended.err.contains("ErrImagePull");
    let ended = run_until_timeout(&place, &[CANNOT_PULL], reports_error).await;
    let messages = ended
        .err
        .lines()
        .filter(|line| line.starts_with("crib: ") && line.contains("ErrImagePull"))
        .count();
    assert_eq!(messages, 1, "{}", ended.err);
    ended.err_has("crib.local/no-such-image:1");
}

#[tokio::test]
async fn run_restarts_crashing_container_with_backoff() {
    let place = Place::new();
    let mut running = place.start(&["run", CRASH_LOOP]);
    for _ in 0..2 {
        running.line_with("crash-loop/main | something went wrong").await;
    }
    running.err_line_with("CrashLoopBackOff").await;
    let ended = running.interrupt().await.exits(130);
    assert_eq!(
        ended.out.matches("crash-loop/main | something went wrong").count(),
        2,
        "at 0 s and at once: {}",
        ended.out
    );
}

#[tokio::test]
async fn run_starts_all_manifests_of_directory() {
    let place = Place::new();
    std::fs::create_dir(place.path("pods")).unwrap();
    for name in ["a", "b", "c"] {
        place.file(&format!("pods/{name}.yaml"), &pod(name, &format!("echo I am {name}")));
    }
    place.file("pods/blank.yaml", "# Source: a chart\n---\n");
    let ended = place.crib(&["run", "-q", place.path("pods").to_str().unwrap()]).await.exits(0);
    let mut lines: Vec<&str> = ended.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a/main | I am a", "b/main | I am b", "c/main | I am c"]);
}

#[tokio::test]
async fn run_names_blank_file() {
    let place = Place::new();
    let blank = place.file("blank.yaml", "# Source: a chart\n---\n");
    let ended = place.crib(&["run", &blank]).await.exits(2);
    let error = format!("crib: {blank}:1:1: no pod found: expected apiVersion: v1, kind: Pod\n");
    ended.err_begins(&error);
}
