//! `crib run` with claims and other volumes, and `crib volume`.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::command::*;

const STATEFUL_SET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/stateful-set.yaml");

/// A claim with these additional fields.
fn claim(name: &str, fields: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\nspec:\n  accessModes: [ReadWriteOnce]\n  \
         resources: {{requests: {{storage: 1Mi}}}}\n{fields}---\n"
    )
}

/// A pod that mounts a volume at `/mnt` and runs a shell script.
fn pod(name: &str, volume: &str, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: Never\n  volumes: [{{name: v, {volume}}}]\n  \
         containers:\n  - name: main\n    image: crib.local/host\n    command: [bash, -c, {script:?}]\n    volumeMounts: \
         [{{name: v, mountPath: /mnt}}]\n---\n"
    )
}

const DATA: &str = "persistentVolumeClaim: {claimName: data}";

async fn run(place: &Place, text: &str) -> Ended {
    let manifest = place.file("m.yaml", text);
    place.crib(&["run", "-q", &manifest]).await
}

#[tokio::test]
async fn example_stateful_set_finds_its_data_again() {
    let place = Place::unchecked();
    for number in 1..=2 {
        let mut running = place.start(&["run", STATEFUL_SET]);
        let ready = format!("database system is ready, start number {number}");
        running.line_with(&ready).await;
        let removal = place.crib(&["volume", "rm", "data-postgres-0"]).await.exits(1);
        removal.err_has("is in use");
        let ended = running.interrupt().await.exits(130);
        ended.out_has("is shut down");
        place.assert_clean();
    }
    let list = place.crib(&["volume", "ls", "-q"]).await;
    assert_eq!(list.out, "default/data-postgres-0\n");
    place.crib(&["volume", "rm", "data-postgres-0"]).await.exits(0);
    let list = place.crib(&["volume", "ls", "-q"]).await;
    assert_eq!(list.out, "");
    assert!(!place.path("volumes/default").exists());
}

/// A claim that is added by a change is locked like the initial ones, so that a running pod's volume cannot be removed.
#[tokio::test]
async fn claim_of_changed_manifests_is_not_removed_while_its_pod_runs() {
    let place = Place::unchecked();
    let script = "trap 'exit 0' TERM; echo ready; while true; do sleep 0.1; done";
    place.file("manifests/a.yaml", &pod("a", "emptyDir: {}", script));
    let manifests = place.path("manifests").display().to_string();
    let mut running = place.start(&["run", "--watch", &manifests]);
    running.line_with("a/main | ready").await;
    let text = claim("data", "") + &pod("b", DATA, script);
    place.file("manifests/b.yaml", &text);
    running.line_with("b/main | ready").await;
    let removal = place.crib(&["volume", "rm", "data"]).await.exits(1);
    removal.err_has("is in use");
    running.interrupt().await.exits(130);
    place.assert_clean();
    place.crib(&["volume", "rm", "data"]).await.exits(0);
}

#[tokio::test]
async fn watch_needs_volumes_directory_for_later_claims() {
    let place = Place::new();
    let manifest = place.file("a.yaml", &pod("a", "emptyDir: {}", "true"));
    for (args, code) in [(&["run", &manifest][..], 0), (&["run", "--watch", &manifest], 2)] {
        let mut command = place.as_ordinary_user(place.command(args));
        for variable in ["HOME", "XDG_DATA_HOME", "CRIB_VOLUMES_DIR"] {
            command.env_remove(variable);
        }
        let ended = place.end(command).await.exits(code);
        let problem = "neither XDG_DATA_HOME nor HOME is set: set a directory for PersistentVolumeClaim volumes with --volumes-dir";
        assert_eq!(ended.err.contains(problem), code == 2, "{}", ended.err);
    }
}

#[tokio::test]
async fn uncreatable_volumes_directory_is_reported_before_pods_start() {
    let place = Place::new();
    let below = place.file("file", "no directory") + "/volumes";
    let manifest = place.file("m.yaml", &(claim("data", "") + &pod("p", DATA, "true")));
    let ended = place.crib(&["run", "--volumes-dir", &below, &manifest]).await.exits(2);
    let expected = format!("failed to create {below}: {} is a file", place.path("file").display());
    ended.err_has(&expected);
    ended.err_has("--volumes-dir");
}

#[tokio::test]
async fn claim_is_shared_by_pods_and_kept_until_it_is_removed() {
    let place = Place::unchecked();
    let script = "mkdir /mnt/d && chmod 0 /mnt/d && echo written >/mnt/f";
    let text = claim("data", "") + &pod("writer", DATA, script);
    run(&place, &text).await.exits(0);
    place.assert_clean();
    let script = "cat /mnt/f; touch /mnt/f 2>/dev/null || echo read-only";
    let readonly = "persistentVolumeClaim: {claimName: data, readOnly: true}";
    let text = claim("data", "") + &pod("reader", readonly, script);
    let ended = run(&place, &text).await.exits(0);
    ended.out_has("written");
    ended.out_has("read-only");

    let list = place.crib(&["volume", "ls", "-o", "json"]).await;
    let list: Value = serde_json::from_str(&list.out).unwrap();
    let path = place.path("volumes/default/data/volume");
    let volume = &list["volumes"][0];
    assert_eq!(volume["path"], path.to_str().unwrap());
    assert_eq!(volume["inUse"], false);
    let table = place.crib(&["volume", "ls"]).await;
    assert!(table.out.starts_with("VOLUME NAME"), "{}", table.out);
    table.out_has("default/data");
    place.crib(&["volume", "rm", "--all"]).await.exits(0);
    assert!(!path.exists());
    let again = place.crib(&["volume", "rm", "data"]).await.exits(1);
    again.err_has("volume \"default/data\" not found");
    place.crib(&["volume", "rm", "-f", "data"]).await.exits(0);
}

/// The script of a pod that responds to what another pod writes into their volume.
const ANSWER: &str = "trap 'exit 0' TERM; echo ready; until [ -e /mnt/question ]; do sleep 0.05; done; mv /mnt/question /mnt/answer; \
                      while true; do sleep 0.05; done";

/// As in Kubernetes, pods of one node can share a ReadWriteOnce claim.
#[tokio::test]
async fn claim_is_shared_by_pods_of_two_runs() {
    let place = Place::new();
    let text = claim("data", "") + &pod("one", DATA, ANSWER);
    let mut first = place.start(&["run", "-q", &place.file("one.yaml", &text)]);
    first.line_with("ready").await;
    let ask = "echo hello >/mnt/new; mv /mnt/new /mnt/question; until [ -e /mnt/answer ]; do sleep 0.05; done; cat /mnt/answer";
    let text = claim("data", "") + &pod("two", DATA, ask);
    let ended = run(&place, &text).await.exits(0);
    ended.out_has("hello");
    let removal = place.crib(&["volume", "rm", "data"]).await;
    removal.err_has("is in use");
    first.interrupt().await.exits(130);
    place.crib(&["volume", "rm", "data"]).await.exits(0);
}

/// Pods that outlive their run keep their volumes until their runtime has exited.
#[tokio::test]
async fn claim_of_kept_pods_is_in_use_until_they_end() {
    let place = Place::new();
    let text = claim("data", "") + &pod("one", DATA, ANSWER);
    let mut running = place.start(&["run", "--keep", &place.file("one.yaml", &text)]);
    running.line_with("ready").await;
    let err = running.interrupt().await.err;
    let removal = place.crib(&["volume", "rm", "data"]).await.exits(1);
    removal.err_has("is in use");
    let all = place.crib(&["volume", "rm", "--all"]).await;
    assert_eq!((all.code, all.out.as_str()), (Some(0), ""));
    let (_, name) = err.trim_end().rsplit_once("crib down ").unwrap();
    place.crib(&["down", name]).await.exits(0);
    place.assert_clean();
    place.crib(&["volume", "rm", "data"]).await.exits(0);
}

#[tokio::test]
async fn claim_is_bound_to_the_persistent_volume_that_fits() {
    let place = Place::unchecked();
    let disk = place.path("disk");
    std::fs::create_dir(&disk).unwrap();
    let volume = format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: disk}}\nspec:\n  accessModes: [ReadWriteOnce]\n  capacity: \
         {{storage: 2Mi}}\n  storageClassName: manual\n  hostPath: {{path: {}}}\n---\n",
        disk.display()
    );
    let text =
        volume + &claim("data", "  storageClassName: manual\n") + &pod("p", DATA, "echo x >/mnt/f");
    run(&place, &text).await.exits(0);
    assert_eq!(std::fs::read_to_string(disk.join("f")).unwrap(), "x\n");
    let list = place.crib(&["volume", "ls", "-q"]).await;
    assert_eq!(list.out, "");
}

#[tokio::test]
async fn ephemeral_volume_ends_with_its_pod() {
    let place = Place::unchecked();
    let volume = "ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}}";
    let script = "ls -A /mnt; echo x >/mnt/f; echo files: $(ls -A /mnt)";
    for _ in 0..2 {
        let ended = run(&place, &pod("p", volume, script)).await.exits(0);
        assert!(ended.out.trim_end().ends_with("files: f"), "{}", ended.out);
        place.assert_clean();
    }
    assert!(!place.path("volumes").exists());
}

/// A PersistentVolume that is not supported.
const NFS: &str = "apiVersion: v1
kind: PersistentVolume
metadata: {name: v}
spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, nfs: {server: s, path: /p}}
---
";

#[tokio::test]
async fn claims_that_cannot_be_bound_are_refused_with_the_reason() {
    let place = Place::unchecked();
    let cases = [
        (
            pod("p", DATA, "true"),
            "pod default/p needs the persistentvolumeclaim default/data: add it to the manifests",
        ),
        (
            claim("data", "  storageClassName: ''\n") + &pod("p", DATA, "true"),
            "persistentvolumeclaim default/data has no volume: no PersistentVolume matches, and crib creates no volume for a claim whose storageClassName is empty",
        ),
        (
            claim("data", "  volumeName: gone\n") + &pod("p", DATA, "true"),
            "its volumeName \"gone\" refers to no existing PersistentVolume",
        ),
        (
            claim("data", "") + NFS + &pod("p", DATA, "true"),
            "spec.nfs: this kind of PersistentVolume is not supported",
        ),
        (
            claim("data", "  volumeMode: Block\n") + &pod("p", DATA, "true"),
            "spec.volumeMode: block devices are not supported: use volumeMode Filesystem",
        ),
    ];
    for (text, reason) in cases {
        let ended = run(&place, &text).await.exits(2);
        assert!(ended.err.contains(reason), "{reason}: {}", ended.err);
    }
}

/// A pod whose emptyDir is in memory: one container fills it, the other sees it, and a part of it.
const IN_MEMORY: &str = "apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  restartPolicy: Never
  volumes: [{name: v, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]
  containers:
  - name: writer
    image: crib.local/host
    volumeMounts: [{name: v, mountPath: /mnt}]
    command: [bash, -c]
    args:
    - |
      echo file system: $(stat -f -c %T /mnt), mode $(stat -c %a /mnt)
      echo shared >/mnt/f
      until [ -e /mnt/part/x ]; do sleep 0.05; done
      cat /mnt/part/x
      dd if=/dev/zero of=/mnt/big bs=64K count=64 2>&1 | grep -o 'No space left on device'
      touch /mnt/part/over
  - name: reader
    image: crib.local/host
    volumeMounts: [{name: v, mountPath: /mnt, readOnly: true}, {name: v, mountPath: /opt, subPath: part}]
    command: [bash, -c]
    args:
    - |
      until [ -s /mnt/f ]; do sleep 0.05; done
      cat /mnt/f
      touch /mnt/g 2>/dev/null || echo read-only
      echo from the part >/opt/x
      until [ -e /opt/over ]; do sleep 0.05; done
";

#[tokio::test]
async fn empty_dir_in_memory_is_shared_limited_and_ends_with_its_pod() {
    let place = Place::new();
    let ended = run(&place, IN_MEMORY).await.exits(0);
    for words in [
        "file system: tmpfs, mode 1777",
        "shared",
        "read-only",
        "from the part",
        "No space left on device",
    ] {
        assert!(ended.out.contains(words), "{words}: {}", ended.out);
    }
}

#[tokio::test]
async fn empty_dir_in_memory_is_refused_without_namespaces() {
    let place = Place::new();
    let manifest = place.file("m.yaml", IN_MEMORY);
    let ended = place.crib(&["run", "--isolation", "process", &manifest]).await.exits(1);
    ended.err_has("need a mount namespace, which isolation process lacks: leave medium out");
}

/// Two concurrent pods would find each other's file.
#[tokio::test]
async fn claim_for_one_pod_is_used_by_one_after_the_other() {
    let place = Place::unchecked();
    let script = "test ! -e /mnt/used && touch /mnt/used && sleep 0.3 && rm /mnt/used";
    let claim = claim("data", "").replace("ReadWriteOnce", "ReadWriteOncePod");
    let text = claim + &pod("a", DATA, script) + &pod("b", DATA, script);
    let manifest = place.file("m.yaml", &text);
    let ended = place.crib(&["run", "--timeout", "60s", "--events", &manifest]).await.exits(0);
    let waited =
        "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    ended.err_has(waited);
    place.assert_clean();
    place.crib(&["volume", "rm", "data"]).await.exits(0);
}

/// A pod whose volume has a group that is not mapped for a user with a single id.
#[rstest]
#[case::on_disk("emptyDir: {}")]
#[case::in_memory("emptyDir: {medium: Memory}")]
#[case::with_files("downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}")]
#[tokio::test]
async fn fs_group_that_is_not_mapped_ends_the_run(#[case] volume: &str) {
    harness::needs!(SingleId);
    let place = Place::new();
    let security = "  securityContext: {fsGroup: 2000}\n  restartPolicy";
    let manifest = pod("p", volume, "echo done").replace("  restartPolicy", security);
    let manifest = place.file("p.yaml", &manifest);
    let command = place.as_ordinary_user(place.command(&["run", &manifest]));
    let ended = place.end(command).await.exits(1);
    ended.err_has("is not mapped into the user namespace");
    ended.err_has("2000");
    ended.err_has("/etc/subgid");
    assert!(!ended.err.contains("os error"), "{}", ended.err);
}

/// Volumes nested in volumes of every kind whose files the agent writes, as in manifests of Istio, Grafana and others. Containers
/// share them, nest them twice, and mount parts of them.
const BELOW: &str = r#"apiVersion: v1
kind: ConfigMap
metadata: {name: outer}
data: {a: "1"}
---
apiVersion: v1
kind: Secret
metadata: {name: outer}
stringData: {a: "2"}
---
apiVersion: v1
kind: Pod
metadata: {name: nested}
spec:
  restartPolicy: Never
  initContainers:
  - name: first
    image: crib.local/host
    command: [sh, -c, 'echo below >/c/inner/x; mkdir /c/inner/part; echo part >/c/inner/part/y']
    volumeMounts: [{name: config, mountPath: /c}, {name: inner, mountPath: /c/inner}]
  containers:
  - name: main
    image: crib.local/host
    command: [sh, -c, 'cat /run/outer/config/a /run/outer/secret/a /run/outer/down/name /run/outer/all/a /run/outer/*/inner/x /run/outer/config/inner/deep/er/y']
    volumeMounts:
    - {name: inner, mountPath: /run/outer/config/inner/deep/er, subPath: part}
    - {name: inner, mountPath: /run/outer/config/inner}
    - {name: inner, mountPath: /run/outer/secret/inner, readOnly: true}
    - {name: inner, mountPath: /run/outer/down/inner}
    - {name: inner, mountPath: /run/outer/all/inner}
    - {name: config, mountPath: /run/outer/config, readOnly: true}
    - {name: secret, mountPath: /run/outer/secret}
    - {name: down, mountPath: /run/outer/down}
    - {name: all, mountPath: /run/outer/all}
  volumes:
  - {name: config, configMap: {name: outer}}
  - {name: secret, secret: {secretName: outer}}
  - {name: down, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
  - {name: all, projected: {sources: [{configMap: {name: outer}}]}}
  - {name: inner, emptyDir: {}}
"#;

#[tokio::test]
async fn volumes_are_mounted_below_volumes_with_files() {
    harness::needs!(Namespaces);
    let place = Place::new();
    let ended = run(&place, BELOW).await.exits(0);
    let lines: Vec<&str> =
        ended.out.lines().filter_map(|line| line.strip_prefix("nested/main  | ")).collect();
    assert_eq!(lines, ["12nested1below", "below", "below", "below", "part"]);
}

/// A volume below a part of a volume with files, while another container mounts the whole volume.
#[tokio::test]
async fn volume_below_a_part_of_a_volume_leaves_its_files() {
    harness::needs!(Namespaces);
    let place = Place::new();
    let manifest = r#"apiVersion: v1
kind: ConfigMap
metadata: {name: m}
data: {a: "of the map"}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  restartPolicy: Never
  containers:
  - name: part
    image: crib.local/host
    command: [sh, -c, 'cat /c/a /c/in/name']
    volumeMounts: [{name: c, mountPath: /c, subPath: dir}, {name: d, mountPath: /c/in}]
  - name: whole
    image: crib.local/host
    command: [cat, /d/dir/a]
    volumeMounts: [{name: c, mountPath: /d}]
  volumes:
  - {name: c, configMap: {name: m, items: [{key: a, path: dir/a}]}}
  - {name: d, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
"#;
    let ended = run(&place, manifest).await.exits(0);
    ended.out_has("of the mapp");
    assert_eq!(ended.out.matches("of the map").count(), 2, "{}", ended.out);
}

/// As on a node: the run prints the reason, and ends.
#[tokio::test]
async fn volume_below_read_only_volume_of_a_pod_ends_the_run() {
    harness::needs!(Namespaces);
    let place = Place::new();
    let mounts = "[{name: v, mountPath: /mnt, readOnly: true}, {name: v, mountPath: /mnt/below}]";
    let text = pod("p", "emptyDir: {}", "true");
    let text = text.replace("[{name: v, mountPath: /mnt}]", mounts);
    let ended = run(&place, &text).await.exits(1);
    ended.err_has("the mount point /mnt/below does not exist, and cannot be made");
    let explained = place.crib(&["explain-run", &place.file("m.yaml", &text)]).await.exits(0);
    let warning = "pod default/p: container main cannot be created: its mount /mnt/below is below /mnt, which";
    assert!(explained.out.contains(warning), "{}", explained.out);
    // A container that can write to the volume may create the mount point.
    let text = text.replace(", readOnly: true", "");
    let explained = place.crib(&["explain-run", &place.file("m.yaml", &text)]).await.exits(0);
    assert!(!explained.out.contains("warnings"), "{}", explained.out);
}

/// An init container starts before the one that writes to the volume. The agent creates a mount point for a subPath.
#[tokio::test]
async fn explain_run_foresees_mounts_without_mount_point() {
    let place = Place::new();
    let pod = |name: &str, mounts: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: Never\n  volumes: \
             [{{name: e, emptyDir: {{}}}}, {{name: f, emptyDir: {{}}}}]\n{mounts}---\n"
        )
    };
    let container = |name: &str, mounts: &str| {
        format!("  - {{name: {name}, image: crib.local/host, volumeMounts: [{mounts}]}}\n")
    };
    let below = "{name: e, mountPath: /e, readOnly: true}, {name: f, mountPath: /e/x}";
    let init = format!(
        "  initContainers:\n{}  containers:\n{}",
        container("i", below),
        container("b", "{name: e, mountPath: /e}")
    );
    let part = "{name: e, mountPath: /e, readOnly: true}, {name: e, mountPath: /e/x, subPath: x}";
    let part = format!("  containers:\n{}", container("c", part));
    let manifest = place.file("m.yaml", &(pod("init", &init) + &pod("part", &part)));
    let explained = place.crib(&["explain-run", &manifest]).await.exits(0);
    explained
        .out_has("pod default/init: container i cannot be created: its mount /e/x is below /e");
    assert_eq!(explained.out.matches("cannot be created").count(), 1, "{}", explained.out);
}

/// crib creates a directory for each mount below a volume with files.
#[tokio::test]
async fn explain_run_foresees_files_below_volumes_with_files() {
    let place = Place::new();
    let manifest = r#"apiVersion: v1
kind: ConfigMap
metadata: {name: m}
data: {a: "1", b: "2"}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: crib.local/host
    volumeMounts:
    - {name: v, mountPath: /c}
    - {name: w, mountPath: /c/new, subPath: b}
    - {name: w, mountPath: /c/all}
    - {name: w, mountPath: /alone, subPath: b}
  volumes:
  - {name: v, configMap: {name: m}}
  - {name: w, configMap: {name: m}}
"#;
    let explained = place.crib(&["explain-run", &place.file("m.yaml", manifest)]).await.exits(0);
    explained.out_has("pod default/p: container c cannot be created: its mount /c/new is below /c");
    assert_eq!(explained.out.matches("cannot be created").count(), 1, "{}", explained.out);
}

/// The other container creates or replaces the mount point only after it has seen the error.
#[rstest]
#[case::missing("mkdir /e/x", "true", "readOnly: true", "below a read-only mount")]
#[case::a_file("rm /e/x; mkdir /e/x", "touch /e/x", "readOnly: false", "the other a file")]
#[tokio::test]
async fn mount_point_that_another_container_makes_is_waited_for(
    #[case] make: &str,
    #[case] before: &str,
    #[case] outer: &str,
    #[case] missed: &str,
) {
    harness::needs!(Namespaces);
    let place = Place::new();
    let go = place.path("go");
    fs::create_dir(&go).unwrap();
    let manifest = format!(
        r#"apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  restartPolicy: Never
  initContainers:
  - name: first
    image: crib.local/host
    command: [sh, -c, '{before}']
    volumeMounts: [{{name: e, mountPath: /e}}]
  containers:
  - name: maker
    image: crib.local/host
    command: [sh, -c, 'until [ -e /go/now ]; do sleep 0.1; done; {make}']
    volumeMounts: [{{name: e, mountPath: /e}}, {{name: go, mountPath: /go}}]
  - name: user
    image: crib.local/host
    command: [sh, -c, 'ls -d /e/x']
    volumeMounts: [{{name: e, mountPath: /e, {outer}}}, {{name: f, mountPath: /e/x}}]
  volumes:
  - {{name: e, emptyDir: {{}}}}
  - {{name: f, emptyDir: {{}}}}
  - {{name: go, hostPath: {{path: {}}}}}
"#,
        go.display()
    );
    let mut running = place.start(&["run", &place.file("m.yaml", &manifest)]);
    running.err_line_with(&format!("{missed}; as in Kubernetes, it is retried")).await;
    fs::write(go.join("now"), "").unwrap();
    running.end().await.exits(0).out_has("/e/x");
}

/// A program with access to a volume repeatedly replaces a directory by a link to a directory of the host, while containers that
/// mount the directory start. A container may be refused, but none may see the host's directory.
#[tokio::test]
async fn sub_path_that_is_exchanged_for_a_link_does_not_leave_its_volume() {
    let place = Place::new();
    let volume = place.path("volume");
    let (directory, link) = (volume.join("d"), volume.join("l"));
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("inside"), "").unwrap();
    place.file("host/outside", "");
    symlink(place.path("host"), &link).unwrap();
    let mut text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  restartPolicy: Never\n  volumes: [{{name: v, hostPath: {{path: \
         {}}}}}]\n  containers:\n",
        volume.display()
    );
    for number in 0..40 {
        text += &format!(
            "  - {{name: c{number}, image: crib.local/host, command: [ls, /mnt], volumeMounts: [{{name: v, mountPath: /mnt, subPath: \
             d}}]}}\n"
        );
    }
    let manifest = place.file("m.yaml", &text);
    let ends = Arc::new(AtomicBool::new(false));
    let swapping = {
        let ends = Arc::clone(&ends);
        std::thread::spawn(move || {
            let exchange =
                || renameat_with(CWD, &directory, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            while !ends.load(Ordering::Relaxed) {
                exchange();
            }
            if directory.is_symlink() {
                exchange();
            }
        })
    };
    let mut running = place.start(&["run", &manifest]);
    for _ in 0..10 {
        running.line_with("inside").await;
    }
    // The other containers notice it now.
    ends.store(true, Ordering::Relaxed);
    swapping.join().unwrap();
    let ended = running.end().await.exits(0);
    let count = |name: &str| ended.out.matches(name).count();
    assert_eq!((count("outside"), count("inside")), (0, 40), "{}{}", ended.out, ended.err);
}

/// A volume outlives its pod and crib. Its directories used to be accessible.
#[rstest]
#[tokio::test]
async fn other_users_run_no_program_that_a_container_left_in_a_volume(
    #[values(false, true)] ordinary: bool,
) {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::os::unix::process::CommandExt as _;
    harness::needs!(Root);
    let place = Place::new();
    let open = || fs::Permissions::from_mode(0o755);
    let base = place.path("volumes");
    fs::create_dir(&base).unwrap();
    fs::set_permissions(&base, open()).unwrap();
    let script = "cp /bin/bash /mnt/bash && chmod 4755 /mnt/bash";
    let manifest = place.file("m.yaml", &(claim("data", "") + &pod("p", DATA, script)));
    let command = place.command(&["run", "-q", &manifest]);
    let command = if ordinary { place.as_ordinary_user(command) } else { command };
    place.end(command).await.exits(0);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let left = base.join("default/data/volume/bash");
    assert_eq!((mode(&base), mode(&left)), (0o700, 0o4755));
    fs::set_permissions(place.path(""), open()).unwrap();
    let mut other = std::process::Command::new(&left);
    other.args(["-c", "true"]).current_dir("/").uid(65533).gid(65533);
    assert_eq!(other.output().unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
}
