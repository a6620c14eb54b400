//! Manifests in the form that clusters print, and manifests written for clusters: messages name what is missing here.

use harness::fixture_image::{ImageBuilder, Layer};

use crate::command::*;
use crate::runs::run::pod;

/// Fields that an API server adds to a pod, and a provisioner to a claim.
const DUMPED: &str = r#"
    volumeMounts:
    - {name: kube-api-access-2jbdp, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
    - {name: data, mountPath: /data}
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: data}
  - name: kube-api-access-2jbdp
    projected:
      defaultMode: 420
      sources:
      - serviceAccountToken: {expirationSeconds: 3607, path: token}
      - configMap: {items: [{key: ca.crt, path: ca.crt}], name: kube-root-ca.crt}
      - downwardAPI: {items: [{path: namespace, fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: data
  annotations: {pv.kubernetes.io/bind-completed: "yes", pv.kubernetes.io/bound-by-controller: "yes"}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
  volumeName: pvc-05c5a4a5
"#;

#[tokio::test]
async fn pod_and_claim_run_as_kubectl_printed_them() {
    let place = Place::new();
    let script =
        "echo kept >/data/file; cat /data/file; ls /var/run/secrets/kubernetes.io/serviceaccount";
    let manifest = place.file("p.yaml", &format!("{}{DUMPED}", pod("p", script).trim_end()));
    let volumes = place.path("volumes").display().to_string();
    let ended = place.crib(&["run", "--volumes-dir", &volumes, &manifest]).await.exits(0);
    ended.out_has("kept");
    ended.out_has("| namespace\n");
    ended.out_has("| token\n");
    for warning in [
        "pod default/p: volume kube-api-access-2jbdp gets no file from ConfigMap kube-root-ca.crt: it holds the CA of a cluster's API server, and crib run has no API server",
        "persistentvolumeclaim default/data is treated as unbound: a cluster bound it to PersistentVolume pvc-05c5a4a5, which is not in the manifests",
    ] {
        let line = format!("crib: warning: {warning}\n");
        ended.err_has(&line);
    }
}

/// A profile that a pod's init container writes to the node, as operators of seccomp profiles do.
const PROFILE: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  restartPolicy: Never
  initContainers:
  - name: installer
    image: crib.local/host
    command: [sh, -c, 'mkdir /profiles/of; echo "{\"defaultAction\": \"SCMP_ACT_ALLOW\", \"syscalls\": [{\"names\": [\"mkdir\", \"mkdirat\"], \"action\": \"SCMP_ACT_ERRNO\"}]}" >/profiles/of/mine.json']
    volumeMounts: [{name: profiles, mountPath: /profiles}]
  containers:
  - name: main
    image: crib.local/host
    securityContext: {seccompProfile: {type: Localhost, localhostProfile: of/mine.json}}
    command: [sh, -c, 'mkdir /tmp/x 2>&1 | grep -o permitted']
  volumes: [{name: profiles, hostPath: {path: DIRECTORY}}]
"#;

#[tokio::test]
async fn seccomp_profile_of_the_node_is_looked_for_when_its_container_is_created() {
    harness::needs!(Namespaces);
    let place = Place::new();
    let directory = place.path("profiles");
    std::fs::create_dir(&directory).unwrap();
    let directory = directory.display().to_string();
    let manifest = place.file("p.yaml", &PROFILE.replace("DIRECTORY", &directory));
    let arguments = ["run", "--seccomp-profile-root", &directory, &manifest];
    place.crib(&arguments).await.exits(0).out_has("permitted");
    // In the kubelet's directory, or in the user's own.
    let root = nix::unistd::geteuid().is_root();
    let default = match root {
        true => "/var/lib/kubelet/seccomp".to_owned(),
        false => place.path("data/crib/seccomp").display().to_string(),
    };
    let missing = std::fs::read_to_string(&manifest).unwrap().replace(
        "seccompProfile: {type: Localhost, localhostProfile: of/mine.json",
        "seccompProfile: {type: Localhost, localhostProfile: crib-test/missing.json",
    );
    let missing = missing.replace("mkdir /profiles/of", "mkdir -p /profiles/of");
    let mut running = place.start(&["run", &place.file("missing.yaml", &missing)]);
    let line = running.err_line_with("as in Kubernetes, it is retried").await;
    assert!(line.contains(&format!("{default}/crib-test/missing.json")), "{line}");
    running.interrupt().await.exits(130);
}

/// As if a DaemonSet installed the profiles of other pods.
#[rstest]
#[case::missing(None)]
#[case::empty(Some(""))]
#[case::half_written(Some(r#"{"defaultAction":"#))]
#[tokio::test]
async fn seccomp_profile_that_is_not_whole_is_waited_for(#[case] before: Option<&str>) {
    harness::needs!(Namespaces);
    let place = Place::new();
    let directory = place.path("profiles");
    std::fs::create_dir(&directory).unwrap();
    let manifest = pod("p", "grep Seccomp: /proc/self/status")
        + "    securityContext: {seccompProfile: {type: Localhost, localhostProfile: of/mine.json}}\n";
    let manifest = place.file("p.yaml", &manifest);
    let root = directory.display().to_string();
    if let Some(before) = before {
        std::fs::create_dir(directory.join("of")).unwrap();
        std::fs::write(directory.join("of/mine.json"), before).unwrap();
    }
    let mut running = place.start(&["run", "--seccomp-profile-root", &root, &manifest]);
    running.err_line_with("as in Kubernetes, it is retried").await;
    let profile = r#"{"defaultAction": "SCMP_ACT_ALLOW"}"#;
    let (of, new) = (directory.join("of"), directory.join("new.json"));
    std::fs::write(&new, profile).unwrap();
    if before.is_none() {
        std::fs::create_dir(&of).unwrap();
    }
    std::fs::rename(new, of.join("mine.json")).unwrap();
    running.end().await.exits(0).out_has("Seccomp:");
}

#[tokio::test]
async fn objects_of_json_follow_each_other() {
    let place = Place::new();
    let object = |name: &str, more: &str| {
        format!(
            r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}"}}, "spec": {{"restartPolicy": "Never",
            "containers": [{{"name": "c", "image": "crib.local/host", "command": ["echo", "I am }}{{ {name}"]{more}}}]}}}}"#
        )
    };
    let both = format!("{}\n{}", object("a", ""), object("b", ""));
    let ended = place.crib_with_stdin(&["run", "-"], &both).await.exits(0);
    for words in ["I am }{ a", "I am }{ b"] {
        ended.out_has(words);
    }
    // The position is relative to the whole text.
    let wrong = format!("{} {}", object("a", ""), object("b", r#", "tty": 1"#));
    let ended = place.crib_with_stdin(&["run", "-"], &wrong).await.exits(2);
    let refusal =
        "crib: <stdin>:3:111: spec.containers[0].tty: expected true or false, found the number 1\n";
    ended.err_begins(refusal);
}

#[rstest]
#[case::config_map("configMapKeyRef", "key port of configmap default/settings")]
#[case::secret("secretKeyRef", "key port of secret default/settings")]
#[tokio::test]
async fn missing_key_of_an_object_in_the_manifests_is_refused(
    #[case] source: &str,
    #[case] missing: &str,
) {
    let place = Place::new();
    let objects = ["ConfigMap", "Secret"]
        .map(|kind| format!("---\napiVersion: v1\nkind: {kind}\nmetadata: {{name: settings}}\n"));
    let variable = |optional: bool| {
        let key = format!("{{name: settings, key: port, optional: {optional}}}");
        let pod = pod("p", "echo port: $PORT.");
        format!(
            "{pod}    env: [{{name: PORT, valueFrom: {{{source}: {key}}}}}]\n{}",
            objects.concat()
        )
    };
    let manifest = place.file("p.yaml", &variable(false));
    let ended = place.crib(&["run", &manifest]).await.exits(2);
    let refusal =
        format!("crib: {manifest}: pod default/p needs the {missing}: add it to the manifests\n");
    assert_eq!(ended.err, refusal);
    let manifest = place.file("p.yaml", &variable(true));
    let ended = place.crib(&["run", &manifest]).await.exits(0);
    ended.out_has("port: .");
}

#[tokio::test]
async fn image_of_an_archive_is_there_for_a_pod_that_pulls_none() {
    let place = Place::new();
    let layer = Layer::new().host_program("/bin/echo").unwrap();
    let archive = place.path("image.tar");
    let image = ImageBuilder::new("registry.test/echo:1").layer(layer);
    image.write_oci(&archive).unwrap();
    let archive = archive.display().to_string();
    let manifest_text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  restartPolicy: Never\n  containers:\n  \
        - {name: c, image: 'registry.test/echo:1', imagePullPolicy: Never, command: [/bin/echo, it is there]}\n";
    let manifest = place.file("p.yaml", manifest_text);
    let ended = place.crib(&["run", "--image-archive", &archive, &manifest]).await.exits(0);
    ended.out_has("it is there");
    let of_this_machine = manifest_text.replace("registry.test/echo:1", "crib.local/host");
    let file = place.file("h.yaml", &of_this_machine);
    let ended = place.crib(&["run", &file]).await.exits(0);
    ended.out_has("it is there");
    // Without the archive, nothing could be pulled.
    let mut running = place.start(&["run", &manifest]);
    running.err_line_with("ErrImageNeverPull").await;
    running.interrupt().await.exits(130);
}

/// The host of an ordinary user cannot reach the pods' network.
#[tokio::test]
async fn host_network_pod_uses_reachable_name_server() {
    harness::needs!(UserNamespaces);
    let place = Place::new();
    let manifest = pod("p", "cat /etc/resolv.conf")
        .replace("spec:\n", "spec:\n  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet\n");
    let manifest = place.file("p.yaml", &manifest);
    let says = "pod default/p has hostNetwork and, without root, cannot reach Services";
    if nix::unistd::geteuid().is_root() {
        let ended = place.crib(&["run", &manifest]).await.exits(0);
        assert!(!ended.err.contains(says), "{}", ended.err);
        ended.out_has("svc.cluster.local");
    }
    let ended = place.run_isolated("rootless", &[], &manifest).await.exits(0);
    let warning = format!("crib: warning: {says}");
    ended.err_has(&warning);
    assert!(!ended.out.contains("cluster.local"), "{}", ended.out);
    let strict = place.run_isolated("rootless", &["--strict"], &manifest);
    let strict = strict.await.exits(3);
    let refusal = format!("crib: --strict: {says}");
    strict.err_has(&refusal);
}
