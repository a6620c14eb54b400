//! Where Secrets and what volumes show beside them are kept: in memory, until the pod ends.

use std::path::{Path, PathBuf};

use crate::command::*;
use crate::runs::run::{daemon, pod};

/// A pod that shows in what file system its volumes are, runs a script out of a Secret, and waits.
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

/// Where the directory of a pod's secrets is linked to, if it is: its volumes then have a path in that file system.
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
    // Stopped first, so that it does not see the end of its runtime.
    killed.signal(Signal::SIGSTOP);
    kill(Pid::from_raw(runtime), Signal::SIGKILL).unwrap();
    killed.signal(Signal::SIGKILL);
    killed.end().await;
    let linked = linked_directory(&from);
    assert!(linked.as_ref().is_none_or(|directory| directory.exists()));
    let next = place.file("next.yaml", &pod("next", "true"));
    place.crib(&["run", "-q", &next]).await.exits(0);
    assert!(!linked.is_some_and(|directory| directory.exists()));
    place.wait_until_clean().await;
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
        harness::eventually(PATIENCE, "the pod sees the secret", async || {
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
    harness::eventually(PATIENCE, "no pod has secrets", async || {
        (pods() == 0).then_some(()).ok_or(pods())
    })
    .await;
    agent.stop().await;
    assert!(!real.exists() && std::fs::symlink_metadata(&memory).is_err());
    runtime.stop().await;
}
