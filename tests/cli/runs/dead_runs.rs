//! The remains of a `crib run` that is killed together with its runtime, and their removal.

use crate::command::*;
use crate::runs::run::{bridge, daemon, pod, stubborn};

#[tokio::test]
async fn run_removes_what_a_killed_run_and_runtime_left() {
    let place = Place::unchecked();
    let mut killed = place.start(&["run", &stubborn(&place)]);
    killed.line_with("ready").await;
    let link = bridge(&place);
    let left = place.left();
    let runtime = left.iter().find_map(|line| daemon(line)).unwrap();
    // Stopped first, so that it does not notice its runtime's end.
    killed.signal(Signal::SIGSTOP);
    kill(Pid::from_raw(runtime), Signal::SIGKILL).unwrap();
    killed.signal(Signal::SIGKILL);
    killed.end().await;
    place.wait_for_only_a_file().await;
    assert_eq!(link.exists(), nix::unistd::geteuid().is_root());

    let manifest = place.file("p.yaml", &pod("p", "echo done"));
    let ended = place.crib(&["run", "--quiet", &manifest]).await.exits(0);
    assert_eq!(ended.err, "");
    place.assert_clean();
    assert!(!link.exists(), "{}", link.display());
    let entries = place.path("xdg/crib-runs");
    assert!(!entries.exists(), "{}", entries.display());
}

#[tokio::test]
async fn run_keeps_active_and_kept_runs() {
    let place = Place::new();
    let mut living = place.start(&["run", &stubborn(&place)]);
    living.line_with("ready").await;
    let kept = place.file("kept.yaml", &pod("kept", "echo done"));
    place.crib(&["run", "--keep", &kept]).await.exits(0);
    let runs = |place: &Place| {
        let left = place.left();
        left.iter().filter(|line| line.starts_with("file ")).count()
    };
    assert_eq!(runs(&place), 2, "{:#?}", place.left());
    let runtimes: Vec<i32> = place.left().iter().filter_map(|line| daemon(line)).collect();
    assert_eq!(runtimes.len(), 2, "{:#?}", place.left());

    let manifest = place.file("p.yaml", &pod("p", "echo done"));
    place.crib(&["run", &manifest]).await.exits(0);
    assert_eq!(runs(&place), 2, "{:#?}", place.left());
    let still: Vec<i32> = place.left().iter().filter_map(|line| daemon(line)).collect();
    assert_eq!(still, runtimes);
    for runtime in runtimes {
        kill(Pid::from_raw(runtime), Signal::SIGTERM).unwrap();
    }
    living.end().await.exits(3);
    place.wait_until_clean().await;
}
