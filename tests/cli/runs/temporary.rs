//! The temporary directory, in which `crib run` creates its own directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;

use crate::command::{Place, Running};
use crate::runs::run::pod;

/// The temporary directory may be shared: only the run's directory in it is private.
#[tokio::test]
async fn run_leaves_temporary_directory_as_it_is() {
    let place = Place::new();
    let shared = place.path("tmp");
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let manifest = place.file("p.yaml", &pod("p", "echo fine"));
    place.crib(&["run", &manifest]).await.exits(0);
    let mode = std::fs::metadata(&shared).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o1777);
}

#[tokio::test]
async fn run_closes_its_directory_to_other_users() {
    let place = Place::new();
    let manifest =
        place.file("p.yaml", &pod("p", "trap 'exit 0' TERM; echo ready; sleep 1000 & wait"));
    let mut running = place.start(&["run", &manifest]);
    running.line_with("ready").await;
    let entries = std::fs::read_dir(place.path("tmp")).unwrap();
    let modes: Vec<u32> = entries
        .map(|entry| entry.unwrap().metadata().unwrap().permissions().mode() & 0o777)
        .collect();
    assert_eq!(modes, [0o700]);
    running.signal(nix::sys::signal::Signal::SIGINT);
    running.end().await.exits(130);
}

/// Like mktemp(1).
#[tokio::test]
async fn run_treats_empty_tmpdir_as_unset() {
    let place = Place::new();
    let manifest =
        place.file("p.yaml", &pod("p", "trap 'exit 0' TERM; echo ready; sleep 1000 & wait"));
    let current = place.path("current");
    std::fs::create_dir(&current).unwrap();
    let mut command = place.command(&["run", &manifest]);
    command.env("TMPDIR", "").current_dir(&current);
    let mut running = Running::start(command);
    running.line_with("ready").await;
    assert_eq!(std::fs::read_dir(&current).unwrap().count(), 0);
    running.signal(nix::sys::signal::Signal::SIGINT);
    running.end().await.exits(130);
}

#[tokio::test]
async fn run_refuses_tmpdir_that_requests_cannot_have() {
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "echo fine"));
    for name in [&b"n\xff"[..], b"a\nb"] {
        let directory = place.path("x").with_file_name(OsStr::from_bytes(name));
        std::fs::create_dir(&directory).unwrap();
        let mut command = place.command(&["run", &manifest]);
        command.env("TMPDIR", &directory);
        let ended = place.end(command).await.exits(3);
        ended.err_has("is not UTF-8 or has a control character; set TMPDIR to another directory");
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    }
}
