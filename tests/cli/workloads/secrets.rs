//! Where Secrets and volumes with them are stored: in memory, until the pod ends.

use std::path::{Path, PathBuf};

use crate::command::*;
use crate::runs::run::{daemon, pod};

/// A pod that prints the file systems of its volumes, runs a script from a Secret, and waits.
const SECRETS: &str = r#"apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {run: "echo a script ran"}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  volumes:
  - name: secret
    secret: {secretName: s, defaultMode: 0555}
  - name: several
    projected: {sources: [{secret: {name: s}}]}
  - name: fields
    downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
  containers:
  - name: c
    image: crib.local/host
    command:
    - bash
    - -c
    - |
      for volume in secret several fields; do stat -f -c "$volume is on %T" /in-memory/$volume; done
      /in-memory/secret/run
      while read -r _ _ _ root at _; do [[ $at == /in-memory/secret ]] && echo "from $root"; done </proc/self/mountinfo
      echo ready; END
    volumeMounts:
    - {name: secret, mountPath: /in-memory/secret}
    - {name: several, mountPath: /in-memory/several}
    - {name: fields, mountPath: /in-memory/fields}
"#;

/// The target if the directory of a pod's secrets is a link: the volumes then have paths in that file system.
fn linked_directory(printed: &str) -> Option<PathBuf> {
    let from = printed.split_once("/crib-memory-")?.1;
    Some(Path::new("/dev/shm").join(format!("crib-memory-{}", from.split('/').next()?)))
}

#[tokio::test]
async fn secrets_are_kept_in_memory_and_leave_nothing() {
    harness::needs!(Namespaces);
    let place = Place::new();
    let manifest = place.file("s.yaml", &SECRETS.replace("; END", ""));
    let ended = place.crib(&["run", "-q", &manifest]).await.exits(0);
    for line in ["secret is on tmpfs", "several is on tmpfs", "fields is on tmpfs", "a script ran"]
    {
        ended.out_has(line);
    }
    let is_root = nix::unistd::geteuid().is_root();
    let linked = linked_directory(&ended.out);
    assert_eq!(linked.is_none(), is_root, "{}", ended.out);
    assert!(!linked.is_some_and(|directory| directory.exists()));
}

#[tokio::test]
async fn secrets_of_a_killed_run_are_removed_by_the_next_one() {
    harness::needs!(Namespaces);
    let place = Place::unchecked();
    let manifest = place.file("s.yaml", &SECRETS.replace("; END", "; sleep 1000"));
    let mut killed = place.start(&["run", "-q", &manifest]);
    let from = killed.line_with("from ").await;
    killed.line_with("ready").await;
    let runtime = place.left().iter().find_map(|line| daemon(line)).unwrap();
    // Stopped first, so that it does not notice its runtime's end.
    killed.signal(Signal::SIGSTOP);
    kill(Pid::from_raw(runtime), Signal::SIGKILL).unwrap();
    killed.signal(Signal::SIGKILL);
    killed.end().await;
    let linked = linked_directory(&from);
    let next = place.file("next.yaml", &pod("next", "true"));
    place.crib(&["run", "-q", &next]).await.exits(0);
    until_removed(linked.as_deref()).await;
    place.wait_until_clean().await;
}

/// Waits until a directory in memory is removed. Another test's run may already be removing it.
async fn until_removed(linked: Option<&Path>) {
    eventually("its secrets are removed", || {
        let left = linked.filter(|directory| directory.exists());
        left.map(|directory| directory.display().to_string()).into_iter().collect()
    })
    .await;
}

/// A command of an ordinary user, with the directory `tmp` of a place as TMPDIR.
fn ordinary_command(place: &Place, tmp: &str, args: &[&str]) -> tokio::process::Command {
    std::fs::create_dir_all(place.path(tmp)).unwrap();
    let mut command = place.command(args);
    command.env("TMPDIR", place.path(tmp));
    place.as_ordinary_user(command)
}

#[rstest]
#[tokio::test]
async fn run_with_another_tmpdir_removes_secrets_of_a_killed_run_only(
    #[values(false, true)] is_killed: bool,
) {
    harness::needs!(Namespaces, UserNamespaces);
    let place = Place::unchecked();
    let manifest = place.file("s.yaml", &SECRETS.replace("; END", "; sleep 1000"));
    let next = place.file("next.yaml", &pod("next", "true"));
    let mut first = Running::start(ordinary_command(&place, "tmp", &["run", "-q", &manifest]));
    let from = first.line_with("from ").await;
    first.line_with("ready").await;
    let linked = linked_directory(&from);
    let next = ["run", "-q", &next];
    if is_killed {
        let runtime = place.left().iter().find_map(|line| daemon(line)).unwrap();
        // Stopped first, so that it does not notice its runtime's end.
        first.signal(Signal::SIGSTOP);
        kill(Pid::from_raw(runtime), Signal::SIGKILL).unwrap();
        first.signal(Signal::SIGKILL);
        first.end().await;
        place.end(ordinary_command(&place, "other", &next)).await.exits(0);
        until_removed(linked.as_deref()).await;
        // Without a link, nothing outside TMPDIR refers to the run.
        if linked.is_some() {
            place.wait_until_clean().await;
        }
    } else {
        place.end(ordinary_command(&place, "other", &next)).await.exits(0);
        assert!(linked.is_none_or(|directory| directory.exists()));
        first.interrupt().await.exits(130);
        place.wait_until_clean().await;
    }
    assert_eq!(std::fs::read_dir(place.path("other")).unwrap().count(), 0);
}

#[tokio::test]
async fn agent_finds_its_secrets_again_and_removes_their_directory_when_no_pod_has_any() {
    harness::needs!(Namespaces);
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let (secret, pod) = SECRETS.split_once("---\n").unwrap();
    place.file("objects/s.yaml", secret);
    let pod = pod.replace("; END", "; sleep 1000");
    let manifest = place.file("manifests/p.yaml", &pod);
    let directories = [path("root"), path("manifests"), path("objects")];
    let flags = ["--root-dir", "--manifests", "--objects"];
    let mut args = vec!["agent", "--runtime-endpoint", &endpoint];
    args.extend(flags.iter().zip(&directories).flat_map(|(flag, path)| [flag, path.as_str()]));
    let memory = place.path("root/memory");
    let pods = || std::fs::read_dir(&memory).map_or(0, Iterator::count);
    for number in 0..2 {
        let value = format!("echo {number}");
        place.file("objects/s.yaml", &secret.replace("echo a script ran", &value));
        let agent = place.start(&args);
        harness::eventually(WAIT_LIMIT, "the pod sees the secret", async || {
            let pod = std::fs::read_dir(&memory).into_iter().flatten().flatten().next();
            let file = pod.map(|pod| pod.path().join("volumes/kubernetes.io~secret/secret/run"));
            let seen = file.and_then(|file| std::fs::read_to_string(file).ok());
            if seen.as_ref() == Some(&value) { Ok(()) } else { Err(seen) }
        })
        .await;
        agent.stop().await;
        assert_eq!(pods(), 1);
    }
    let real = memory.canonicalize().unwrap();
    std::fs::remove_file(manifest).unwrap();
    let agent = place.start(&args);
    harness::eventually(WAIT_LIMIT, "no pod has secrets", async || {
        (pods() == 0).then_some(()).ok_or(pods())
    })
    .await;
    agent.stop().await;
    assert!(!real.exists() && std::fs::symlink_metadata(&memory).is_err());
    runtime.stop().await;
}

/// The directory for volumes in memory of the only run in a place. Its parents are private, too.
fn directory_in_memory(place: &Place) -> PathBuf {
    let runs = std::fs::read_dir(place.path("tmp")).unwrap().flatten();
    let mut found = runs.filter_map(|run| run.path().join("agent/memory").canonicalize().ok());
    found.next().expect("a directory for volumes in memory")
}

/// Whether tmpfs supports noswap: since Linux 6.4.
fn kernel_has_noswap() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().unwrap().parse::<u32>().unwrap();
    (number(), number()) >= (6, 4)
}

#[rstest]
#[tokio::test]
async fn directory_of_secrets_is_private_and_not_swapped_out(
    #[values(false, true)] ordinary: bool,
) {
    use std::os::unix::fs::MetadataExt as _;
    harness::needs!(Namespaces);
    if ordinary {
        harness::needs!(Root, UserNamespaces);
    }
    let place = Place::new();
    let manifest = place.file("s.yaml", &SECRETS.replace("; END", "; sleep 1000"));
    let command = place.command(&["run", "-q", &manifest]);
    let command = if ordinary { place.as_ordinary_user(command) } else { command };
    let mut running = Running::start(command);
    let linked = linked_directory(&running.line_with("from ").await);
    running.line_with("ready").await;
    let directory = directory_in_memory(&place);
    assert!(linked.is_none_or(|linked| linked == directory), "{directory:?}");
    let found = std::fs::metadata(&directory).unwrap();
    let own = if ordinary { 65534 } else { nix::unistd::geteuid().as_raw() };
    assert_eq!((found.uid(), found.mode() & 0o7777), (own, 0o700), "{directory:?}");
    if Need::HostMounts.missing().is_none() && !ordinary {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let at = directory.to_str().unwrap();
        // There is no such mount if temporary files are in memory anyway.
        for mount in file_tree::mountinfo::mounts(&table).filter(|mount| mount.at == at) {
            assert_eq!(mount.kind, "tmpfs");
            let has = |options: &str, option| options.split(',').any(|one| one == option);
            assert!(has(mount.options, "nosuid") && has(mount.options, "nodev"), "{mount:?}");
            assert_eq!(has(mount.super_options, "noswap"), kernel_has_noswap(), "{mount:?}");
        }
    }
    running.interrupt().await.exits(130);
}

#[tokio::test]
async fn secrets_of_ended_pod_are_removed_while_run_continues() {
    harness::needs!(Namespaces);
    let place = Place::new();
    let (secret, pod) = SECRETS.split_once("---\n").unwrap();
    let goes_on = pod.replace("{name: p}", "{name: q}").replace("; END", "; sleep 1000");
    let ends = pod.replace("; END", "; read -r _ <>/dev/shm/fifo");
    let ends = ends.replace("echo ready", "mkfifo /dev/shm/fifo; echo ready");
    let manifest = place.file("s.yaml", &format!("{secret}---\n{ends}---\n{goes_on}"));
    let mut running = place.start(&["run", "-q", &manifest]);
    for _ in 0..2 {
        running.line_with(" ready").await;
    }
    let memory = directory_in_memory(&place);
    let pods = || std::fs::read_dir(&memory).unwrap().count();
    assert_eq!(pods(), 2);
    // The pod may end before the exec.
    place.crib(&["exec", "pod/p", "--", "sh", "-c", "echo >/dev/shm/fifo"]).await;
    eventually("only the other pod has secrets", || match pods() {
        1 => vec![],
        number => vec![format!("{number} pods")],
    })
    .await;
    running.interrupt().await.exits(130);
}
