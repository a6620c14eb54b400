//! `crib explain-run`: shows the plan of a run without executing it.

use crate::command::*;
use crate::runs::run::pod;

const MANIFEST: &str = "apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  schedulerName: other
  readinessGates: [{conditionType: a/b}]
  volumes: [{name: settings, configMap: {name: settings}}, {name: data, emptyDir: {}}]
  initContainers:
  - {name: prepare, image: tools:1, command: [sh, -c, 'echo it''s done']}
  - {name: logs, image: tools:1, restartPolicy: Always}
  containers:
  - name: app
    image: registry.example/app
    args: [--fast]
    env: [{name: COLOUR, value: red}]
    envFrom: [{configMapRef: {name: settings}}]
    ports: [{containerPort: 80, hostPort: 8080}]
    resources: {limits: {memory: 64Mi}}
    readinessProbe: {httpGet: {port: 80, path: /ready}}
    volumeMounts: [{name: settings, mountPath: /etc/app, readOnly: true}, {name: data, mountPath: /data, subPath: app}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: workers, namespace: jobs}
spec:
  replicas: 3
  selector: {matchLabels: {app: w}}
  template:
    metadata: {labels: {app: w}}
    spec: {hostNetwork: true, containers: [{name: w, image: 'w:2', imagePullPolicy: Never}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
";

#[tokio::test]
async fn explain_run_shows_planned_pods() {
    let place = Place::new();
    let manifest = place.file("m.yaml", MANIFEST);
    let ended = place.crib(&["explain-run", &manifest]).await.exits(0);
    assert_eq!(
        ended.out,
        format!(
            "pod default/web from {manifest}
  restart policy Always, grace period 30 s, QoS class Burstable, its own network
  volume settings: ConfigMap settings
  volume data: an empty directory
  init container prepare
    image     tools:1, pulled if not present
    command   sh -c 'echo it'\\''s done'
  sidecar logs
    image     tools:1, pulled if not present
  container app
    image     registry.example/app, always pulled
    arguments --fast
    ports     80/TCP as host port 8080
    env       all of ConfigMap settings, COLOUR
    mount     /etc/app from settings, read-only
    mount     /data from data/app
    requests  memory 64Mi
    limits    memory 64Mi
    readiness GET http://:80/ready every 10 s

deployment jobs/workers: 3 pods from {manifest}
  restart policy Always, grace period 30 s, QoS class BestEffort, the host's network
  container w
    image     w:2, never pulled

objects
  configmap default/settings

no effect
  {manifest}:5:18: spec.schedulerName: there is no scheduler

warnings
  {manifest}:6:3: spec.readinessGates: cannot be met without an API server: the pod will never be Ready
    6 |   readinessGates: [{{conditionType: a/b}}]
      |   ^
"
        )
    );
}

#[tokio::test]
async fn explain_run_prints_json_for_programs() {
    let place = Place::new();
    let manifest = place.file("m.yaml", MANIFEST);
    let ended = place.crib(&["explain-run", "--output", "json", "-f", &manifest]).await.exits(0);
    let all: Value = serde_json::from_str(&ended.out).unwrap();
    let pods = &all["pods"];
    assert_eq!(
        pods[0]["containers"][2]["mounts"],
        json!([
            {"path": "/etc/app", "volume": "settings", "subPath": null, "readOnly": true},
            {"path": "/data", "volume": "data", "subPath": "app", "readOnly": false},
        ])
    );
    assert_eq!(
        (&pods[1]["controller"], &pods[1]["count"]),
        (&json!("deployment jobs/workers"), &json!(3))
    );
    assert_eq!(all["noEffect"][0]["path"], "spec.schedulerName");
}

/// Two claims, one of them with a PersistentVolume, and the Services of a pod that mounts both.
const CLAIMS_AND_SERVICES: &str = "apiVersion: v1
kind: Pod
metadata: {name: db, labels: {app: db}}
spec:
  volumes:
  - {name: fixed, persistentVolumeClaim: {claimName: fixed}}
  - {name: own, persistentVolumeClaim: {claimName: own}}
  containers:
  - name: main
    image: db:1
    ports: [{name: sql, containerPort: 5432, hostPort: 5432, hostIP: 127.0.0.1}]
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /srv/db}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: fixed}
spec: {volumeName: disk, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: own}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec:
  type: NodePort
  selector: {app: db}
  ports: [{name: sql, port: 80, targetPort: sql, nodePort: 30080}, {name: other, port: 81}]
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: example.com}
";

#[tokio::test]
async fn explain_run_shows_bindings_of_claims_and_ports_of_services() {
    let place = Place::new();
    let manifest = place.file("m.yaml", CLAIMS_AND_SERVICES);
    let ended = place.crib(&["explain-run", &manifest]).await.exits(0);
    let directory = place.path("volumes").join("default/own/volume");
    let directory = directory.display().to_string();
    for lines in [
        "  volume fixed: PersistentVolumeClaim fixed, bound to PersistentVolume disk, /srv/db of the host\n",
        &format!("  volume own: PersistentVolumeClaim own, bound to the directory {directory}\n"),
        "    ports     5432/TCP as host port 127.0.0.1:5432\n",
        "service default/db (NodePort)\n  address   an address of the pod network, assigned at the start\n  \
         port      sql 80/TCP to sql, at port 30080 of this machine\n  \
         port      other 81/TCP to 81, at a free port of this machine, chosen at the start\n  backends  pod default/db\n",
        "service default/alias (ExternalName)\n  address   an alias of example.com\n",
    ] {
        assert!(ended.out.contains(lines), "{lines}{}", ended.out);
    }
    let ended = place.crib(&["explain-run", "--output", "json", &manifest]).await.exits(0);
    let all: Value = serde_json::from_str(&ended.out).unwrap();
    let bound = &all["pods"][0]["volumes"][1]["boundTo"];
    assert_eq!(*bound, format!("the directory {directory}"));
    assert_eq!(all["services"][1]["ports"][0]["nodePort"], 30080);
    assert_eq!(all["services"][1]["backends"], json!(["pod default/db"]));
}

/// Like `crib run`: every error, and nothing else.
#[tokio::test]
async fn explain_run_rejects_same_manifests_as_run() {
    let place = Place::new();
    let text = MANIFEST.replace("emptyDir: {}", "nfs: {server: s, path: /p}");
    let manifest = place.file("m.yaml", &text);
    let ended = place.crib(&["explain-run", &manifest]).await.exits(2);
    assert_eq!(ended.out, "");
    ended.err_has("spec.volumes[1].nfs");
}

#[tokio::test]
async fn explain_run_warns_of_services_as_run_does() {
    let place = Place::new();
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  type: LoadBalancer\n  clusterIP: 10.0.0.7\n  \
                   loadBalancerSourceRanges: [10.0.0.0/8]\n  ipFamilies: [IPv6]\n  selector: {a: b}\n  \
                   ports: [{port: 80, protocol: SCTP}]\n";
    let manifest = place.file("m.yaml", &format!("{}{service}", pod("p", "true")));
    let ended = place.crib(&["explain-run", "--output", "json", &manifest]).await.exits(0);
    let explained: Value = serde_json::from_str(&ended.out).unwrap();
    let warnings = explained["warnings"].as_array().unwrap();
    let warnings: Vec<&str> = warnings.iter().map(|warning| warning.as_str().unwrap()).collect();
    let expected = [
        "the port is open to every client that reaches this machine",
        "service default/web: type LoadBalancer is treated as NodePort",
        "service default/web: clusterIP 10.0.0.7 is replaced by an address of the pod network",
        "service default/web: IPv6 is not supported: the Service gets an IPv4 address only",
        "service default/web: port 80 is not served: SCTP",
    ];
    assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
    for (warning, expected) in warnings.iter().zip(expected) {
        assert!(warning.contains(expected), "{warning}");
    }

    let run = place.crib(&["run", &manifest]).await.exits(0);
    for warning in warnings {
        let line = format!("crib: warning: {warning}\n");
        assert_eq!(run.err.matches(&line).count(), 1, "{line}{}", run.err);
    }
    for command in ["explain-run", "run"] {
        let strict = place.crib(&[command, "--strict", &manifest]).await.exits(2);
        strict.err_has("crib: --strict: service default/web: type LoadBalancer");
    }
}

/// Each list repeats the previous one ten times, which makes 10^20 values.
pub(crate) fn bomb() -> String {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..20 {
        let before = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb += &format!("a{level}: &a{level} [{before}]\n");
    }
    bomb
}

/// Every kind of YAML file that commands read.
#[tokio::test]
async fn nested_aliases_end_with_an_error() {
    let place = Place::new();
    let bomb = bomb();
    let plain = place.file("bomb.yaml", &bomb);
    let manifest = place.file(
        "pod.yaml",
        &format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers: []\n{bomb}"
        ),
    );
    let good = place.file("good.yaml", &pod("p", "echo done"));
    let directory = place.path("d");
    let directory = directory.to_str().unwrap();
    for args in [
        &["run", &manifest][..],
        &["explain-run", &manifest],
        &["run", &good, "--pull-secrets", &plain],
        &["runtime", "--listen", "/nowhere/s", "--config", &plain],
        &["-c", &plain, "ps"],
        &["runp", "-r", "/nowhere/s", &plain],
        &[
            "agent",
            "--runtime-endpoint",
            "/nowhere/s",
            "--manifests",
            directory,
            "--config",
            &plain,
        ],
    ] {
        let ended = place.crib(args).await;
        assert!(matches!(ended.code, Some(1..=3)), "{args:?}: {ended:?}");
        assert!(ended.err.contains("bomb.yaml") || ended.err.contains("pod.yaml"), "{}", ended.err);
        assert!(ended.err.len() < 4000, "{args:?}: {}", ended.err);
    }
}
