//! Checks that records of every past version can be read. Add new versions; never remove one.
#![allow(clippy::unwrap_used)]

use std::fs;

use rstest::rstest;
use serde_json::Value;

use super::disk::{Directory, container_dir, sandbox_dir};
use crate::{
    container::ContainerState,
    id::{ContainerId, SandboxId},
    sandbox::SandboxState,
};

/// A pod with a running container and an exited one, as a runtime of that version left them.
struct Kept {
    sandbox: &'static str,
    runs: &'static str,
    done: &'static str,
}

macro_rules! kept {
    ($version:literal) => {
        Kept {
            sandbox: include_str!(concat!("versions/", $version, "/sandbox.json")),
            runs: include_str!(concat!("versions/", $version, "/runs.json")),
            done: include_str!(concat!("versions/", $version, "/done.json")),
        }
    };
}

/// The ID in the first document of a record.
fn id(record: &str) -> String {
    let mut documents = serde_json::Deserializer::from_str(record).into_iter::<Value>();
    let first = documents.next().unwrap().unwrap();
    first.get("id").unwrap().as_str().unwrap().to_owned()
}

#[rstest]
#[case::before_there_were_versions(kept!("0"))]
#[case::pretty_and_replaced(kept!("1"))]
#[case::appended_to(kept!("2"))]
fn records_of_earlier_versions_are_read(#[case] kept: Kept) {
    let place = tempfile::tempdir().unwrap();
    let directory = Directory::open(place.path()).unwrap();
    let sandbox = SandboxId::from_record(&id(kept.sandbox));
    let of_sandbox = sandbox_dir(place.path(), &sandbox);
    fs::create_dir_all(&of_sandbox).unwrap();
    fs::write(of_sandbox.join("sandbox.json"), kept.sandbox).unwrap();
    let container = |record: &str| {
        let container = ContainerId::from_record(&id(record));
        let directory = container_dir(place.path(), &sandbox, &container);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("container.json"), record).unwrap();
        container
    };
    let (runs, done) = (container(kept.runs), container(kept.done));
    let state = directory.read().unwrap();
    let sandbox = &state.sandboxes[&sandbox];
    assert_eq!(sandbox.unknown_reason, None);
    assert_eq!((sandbox.state, sandbox.key().0), (SandboxState::Ready, "web"));
    assert_eq!(sandbox.addresses.len(), 2);
    let runs = &state.containers[&runs];
    assert_eq!(runs.unknown_reason, None);
    assert_eq!(runs.state, ContainerState::Running);
    assert!(runs.started_at.is_some());
    assert_eq!(runs.config.envs[0].key, "COLOR");
    assert_eq!(runs.user.as_ref().unwrap().uid, 0);
    let done = &state.containers[&done];
    assert_eq!(done.state, ContainerState::Exited);
    assert_eq!(done.exit.as_ref().unwrap().code, 3);
}
