//! Archives that are not valid checkpoints, and containers that cannot be checkpointed.

use std::fs;
use std::path::Path;

use super::{
    checkpoint, checkpoint_pod, counter, restore_pod, wait_for_counter_beyond, with_image,
    with_image_and,
};

use crate::support::*;

/// An archive without one of criu's files is rejected, and the attempt leaves nothing.
#[tokio::test]
async fn restore_rejects_incomplete_archive() {
    harness::needs!(Checkpoints);
    let (runtime, _place) = with_image().await;
    let (whole, part) = (runtime.root().join("whole.tar"), runtime.root().join("part.tar"));
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(counter("c")).await.unwrap();
    wait_for_counter_beyond(&pod, &id, 3).await;
    checkpoint(&runtime, &id, &whole).await.unwrap();
    for (lost, expected) in [
        ("crib.dump", Code::InvalidArgument),
        ("rootfs-diff.tar", Code::InvalidArgument),
        ("checkpoint/core-1.img", Code::FailedPrecondition),
        ("checkpoint/pages-1.img", Code::FailedPrecondition),
    ] {
        let mut from = tar::Archive::new(fs::File::open(&whole).unwrap());
        let mut to = tar::Builder::new(fs::File::create(&part).unwrap());
        for entry in from.entries().unwrap() {
            let mut entry = entry.unwrap();
            if entry.path().unwrap() != Path::new(lost) {
                let header = entry.header().clone();
                to.append(&header, &mut entry).unwrap();
            }
        }
        to.finish().unwrap();
        let sandbox = runtime.sandbox("wrong");
        let answer = restore_pod(&runtime, &part, sandbox, Vec::new()).await;
        assert_eq!(code(answer), expected, "{lost}");
        let pods = runtime.client.pods(v1::PodSandboxFilter::default()).await.unwrap();
        assert_eq!(pods.len(), 1, "{lost}: {pods:?}");
    }
    let all = fs::read(&whole).unwrap();
    fs::write(&part, &all[..all.len() / 2]).unwrap();
    let answer = restore_pod(&runtime, &part, runtime.sandbox("wrong"), Vec::new()).await;
    assert_eq!(code(answer.map(drop)), Code::InvalidArgument);
    runtime.client.remove_pod(&pod.id).await.unwrap();
}

/// criu cannot checkpoint these, or would lose data.
#[tokio::test]
async fn checkpoint_rejects_terminal_host_root_and_host_pid() {
    harness::needs!(Checkpoints);
    let (runtime, _place) = with_image().await;
    let to = runtime.root().join("c.tar");
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(counter("c")).await.unwrap();
    checkpoint(&runtime, &id, &to).await.unwrap();
    fs::remove_file(&to).unwrap();
    let mut terminal = counter("terminal");
    terminal.tty = true;
    let host = fixture::forever("host");
    let mut shared = counter("shared");
    let namespaces = fixture::security(&mut shared).namespace_options.as_mut().unwrap();
    namespaces.pid = v1::NamespaceMode::Node.into();
    for config in [terminal, host, shared] {
        let id = pod.start(config).await.unwrap();
        rejected(
            checkpoint(&runtime, &id, &to).await,
            Code::FailedPrecondition,
            "cannot be checkpointed: ",
        );
        assert!(!to.exists());
        let status = runtime.client.container(&id).await.unwrap();
        assert_eq!(status.state(), v1::ContainerState::ContainerRunning);
    }
    runtime.client.remove_pod(&pod.id).await.unwrap();
}

/// criu hangs or dies: the client gets an error in time, and the container is not affected.
#[rstest]
#[case::silent("sleep 3", 1, Code::DeadlineExceeded)]
#[case::dead("exit 1", 0, Code::FailedPrecondition)]
#[tokio::test]
async fn failing_criu_fails_checkpoint_and_container_continues(
    #[case] does: &str,
    #[case] timeout: i64,
    #[case] expected: Code,
) {
    harness::needs!(HostMounts);
    let programs = tempfile::tempdir().unwrap();
    let path = programs.path().join("criu");
    let script = format!("#!/bin/sh\ncase $1 in check) exit 0;; esac\n{does}\n");
    write_program(&path, &script).unwrap();
    let search = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    let (runtime, _place) =
        with_image_and(|options| options.durable().env("PATH", search.clone())).await;
    let archives = directory(&runtime, "archives");
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(counter("c")).await.unwrap();
    let request = v1::CheckpointContainerRequest {
        container_id: id.clone(),
        location: archives.join("c.tar").display().to_string(),
        timeout,
    };
    let mut client = runtime.client.runtime.clone();
    let answer = client.checkpoint_container(request).await;
    assert_eq!(code(answer), expected);
    let now = wait_for_counter_beyond(&pod, &id, 0).await;
    wait_for_counter_beyond(&pod, &id, now + 5).await;
    assert_eq!(fs::read_dir(&archives).unwrap().count(), 0);
    runtime.client.remove_pod(&pod.id).await.unwrap();
}

/// A tar header followed by a body.
fn member(name: &str, kind: tar::EntryType, size: u64, body: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.as_ustar_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// Untrusted archives are validated before anything is created, with or without criu.
#[tokio::test]
async fn restore_and_create_reject_malformed_archives() {
    use tar::EntryType::{Fifo, Link, Regular, Symlink};
    let runtime = Runtime::start().await.unwrap();
    let place = directory(&runtime, "archives");
    let crib = br#"{"version":1,"config":{},"image":"x","user":{},"mounts":[],"streams":[]}"#;
    let wrong = [
        ("empty", Vec::new()),
        ("text", b"this is no archive".repeat(100)),
        ("zeros", vec![0; 1 << 20]),
        ("compressed", b"\x1f\x8b\x08\0\0\0\0\0\0\x03".repeat(100)),
        ("outside", member("../escaped", Regular, 1, b"x")),
        ("from the root", member("/escaped", Regular, 1, b"x")),
        ("a link", member("checkpoint", Symlink, 0, b"")),
        ("another name", member("crib.dump", Link, 0, b"")),
        ("a pipe", member("crib.dump", Fifo, 0, b"")),
        ("huge", member("crib.dump", Regular, 1 << 32, b"x")),
        ("cut", member("crib.dump", Regular, 4096, b"{")),
        ("not JSON", member("crib.dump", Regular, 5, b"nope!")),
        ("twice", [member("a", Regular, 0, b""), member("./a", Regular, 0, b"")].concat()),
        ("something else", member("crib.dump", Regular, crib.len() as u64, crib)),
        ("a pod of nothing", member("pod.options", Regular, 2, b"{}")),
    ];
    for (what, bytes) in wrong {
        let path = place.join("nonsense.tar");
        fs::write(&path, bytes).unwrap();
        let seen = code(restore_pod(&runtime, &path, runtime.sandbox("p"), Vec::new()).await);
        assert_eq!(seen, Code::InvalidArgument);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "{what}");
    }
    let pipe = place.join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [
        Path::new("relative"),
        Path::new("/no/such/checkpoint"),
        Path::new("/dev/zero"),
        &place.join("not there"),
        &place,
        &pipe,
    ] {
        let answer = restore_pod(&runtime, path, runtime.sandbox("p"), Vec::new()).await;
        assert_eq!(code(answer.map(drop)), Code::InvalidArgument, "{path:?}");
        let pod = runtime.pod("p").await.unwrap();
        let config = of_image(fixture::forever("c"), &path.display().to_string());
        assert_eq!(code(pod.create(config).await), Code::InvalidArgument, "{path:?}");
        runtime.client.remove_pod(&pod.id).await.unwrap();
    }
    assert!(!runtime.root().join("escaped").exists());
    assert!(runtime.client.pods(v1::PodSandboxFilter::default()).await.unwrap().is_empty());
}

/// Errors that the client can fix are reported before the missing root or criu.
#[tokio::test]
async fn checkpoint_reports_client_error_before_missing_root() {
    let runtime = Runtime::with().isolation("process").start().await.unwrap();
    let place = directory(&runtime, "archives");
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let to = place.join("c.tar");
    for (id, to, expected) in [
        ("nope", to.as_path(), Code::NotFound),
        (&id, Path::new("x"), Code::InvalidArgument),
        (&id, &place, Code::InvalidArgument),
        (&id, &place.join("not/there"), Code::InvalidArgument),
        (&id, &to, Code::FailedPrecondition),
    ] {
        assert_eq!(code(checkpoint(&runtime, id, to).await), expected, "{to:?}");
    }
    let error = checkpoint(&runtime, &id, &to).await.unwrap_err();
    assert!(error.message().contains("criu needs root"), "{error}");
    assert_eq!(code(checkpoint_pod(&runtime, &pod, &to).await), Code::FailedPrecondition);
    let mut client = runtime.client.runtime.clone();
    let request = v1::CheckpointPodRequest {
        pod_sandbox_id: pod.id.clone(),
        output_path: to.display().to_string(),
        options: [("x".to_owned(), "y".to_owned())].into(),
        ..Default::default()
    };
    assert_eq!(code(client.checkpoint_pod(request).await), Code::InvalidArgument);
    let created = pod.create(fixture::forever("created")).await.unwrap();
    assert_eq!(code(checkpoint(&runtime, &created, &to).await), Code::FailedPrecondition);
    let request = v1::CheckpointContainerRequest {
        container_id: id.clone(),
        location: to.display().to_string(),
        timeout: -1,
    };
    assert_eq!(code(client.checkpoint_container(request).await), Code::InvalidArgument);
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    assert!(runtime.client.sh(&id, "true").await.is_ok());
}
