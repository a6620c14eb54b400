//! Rotation and links, with real files and the scripted runtime.
#![allow(clippy::unwrap_used)]
use std::fs;
use std::io::Read;
use std::time::Duration;

use compact::Set;
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::clock::TokioClock;
use crate::cri::Code;
use crate::cri::fake::FakeCri;
use crate::fixtures;
use crate::reporting::report::{ContainerReport, PodReport};

const ROTATION: LogRotation =
    LogRotation { max_size: 100, max_files: 4, period: Duration::from_secs(10) };

fn manager() -> (ContainerLogManager, FakeCri) {
    let clock: Arc<dyn Clock> =
        Arc::new(TokioClock::starting_at("2026-01-02T03:04:05Z".parse().unwrap()));
    let fake = FakeCri::new(Arc::clone(&clock));
    let manager = ContainerLogManager { cri: Arc::new(fake.clone()), clock, rotation: ROTATION };
    (manager, fake)
}

fn files(directory: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(directory.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test(start_paused = true)]
async fn log_is_rotated_when_it_is_large_and_older_ones_are_compressed() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("0.log");
    let (manager, _fake) = manager();
    let id = ContainerId::new("c1");
    fs::write(&log, [b'x'; 99]).unwrap();
    manager.rotate(&id, &log).await.unwrap();
    assert_eq!(files(&directory), ["0.log"], "it is not large enough");

    for turn in 0..4 {
        fs::write(&log, vec![b'0' + turn; 100]).unwrap();
        manager.rotate(&id, &log).await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let kept = ["0.log.20260102-030406.gz", "0.log.20260102-030407.gz", "0.log.20260102-030408"];
    assert_eq!(files(&directory), kept, "the runtime has not made a new log, and the oldest went");
    let mut text = String::new();
    let packed = fs::File::open(directory.path().join(kept[0])).unwrap();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    assert_eq!(text, "1".repeat(100));
}

#[tokio::test(start_paused = true)]
async fn log_keeps_its_name_when_the_runtime_does_not_reopen_it() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("0.log");
    let (manager, fake) = manager();
    fake.fail("ReopenContainerLog", 1, Code::NotFound, "no such container");
    fs::write(&log, [b'x'; 100]).unwrap();
    let error = manager.rotate(&ContainerId::new("c1"), &log).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("no such container"), "{cause}");
    assert_eq!(files(&directory), ["0.log"]);
}

#[test]
fn log_links_are_created_and_removed_with_logs() {
    let directory = tempfile::tempdir().unwrap();
    let (links, log) = (directory.path().join("containers"), directory.path().join("0.log"));
    let pod = fixtures::pod_of("u", "web", json!({"containers": []}));
    let name = links::name(&pod, "main", &ContainerId::new("abc"));
    assert_eq!(name, "web_default_main-abc.log");

    links::make(&links, &name, &log).unwrap();
    assert!(!links.exists(), "a container without a log has no link");
    fs::write(&log, "text").unwrap();
    links::make(&links, &name, &log).unwrap();
    links::make(&links, &name, &log).unwrap();
    assert_eq!(fs::read_to_string(links.join(&name)).unwrap(), "text");
    fs::write(links.join("mine.log"), "").unwrap();
    let (ended, runs) = (Set::default(), Set::from(["abc".to_owned()]));
    links::remove_dangling(&links, &ended);
    assert!(links.join(&name).is_symlink());
    fs::remove_file(&log).unwrap();
    links::remove_dangling(&links, &runs);
    assert!(links.join(&name).is_symlink(), "the runtime reopens the log of a running container");
    links::remove_dangling(&links, &ended);
    let left: Vec<_> =
        fs::read_dir(&links).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mine.log"], "what is no link stays");
}

#[test]
fn long_name_is_cut_before_its_suffix() {
    let pod = fixtures::pod_of("u", &"p".repeat(250), json!({"containers": []}));
    let name = links::name(&pod, "main", &ContainerId::new("abc")).into_string().unwrap();
    assert_eq!((name.len(), &name[251..]), (255, ".log"));
}

#[tokio::test(start_paused = true)]
async fn logs_of_running_containers_are_rotated() {
    let directory = tempfile::tempdir().unwrap();
    let container = |name: &str, state, size| {
        let log = directory.path().join(name);
        fs::write(&log, vec![b'x'; size]).unwrap();
        ContainerReport { log_path: Some(log), ..fixtures::container_report(name, state) }
    };
    let report = |name: &str, removed, containers| PodReport {
        finished: removed,
        removed,
        containers,
        ..fixtures::pod_report(name, PodStatus::default())
    };
    // The log of the previous attempt, which ended, stays.
    let hooked = container("previous", ContainerPhase::Waiting, 100);
    let new = directory.path().join("hooked");
    fs::write(&new, vec![b'x'; 100]).unwrap();
    let hooked = ContainerReport { in_hook: Some(("c2".to_owned(), new)), ..hooked };
    let web = vec![
        hooked,
        container("large", ContainerPhase::Running, 100),
        container("small", ContainerPhase::Running, 99),
        container("ended", ContainerPhase::Terminated, 100),
    ];
    let gone = vec![container("gone", ContainerPhase::Running, 100)];
    let mut reports = Reports::default();
    for report in [report("web", false, web), report("removed", true, gone)] {
        reports.insert_mut(report.uid.clone(), report);
    }
    let (manager, _fake) = manager();
    manager.rotate_all(running(&reports)).await;
    let kept =
        ["ended", "gone", "hooked.20260102-030405", "large.20260102-030405", "previous", "small"];
    assert_eq!(files(&directory), kept);
}
