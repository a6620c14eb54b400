//! `crib scale`: sets the number of an object's pods until its manifest changes.

use crate::command::*;
use crate::runs::background::{Downs, out, start};

const MANIFEST: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: crib.local/behave/run}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: crib.local/behave/run, volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: each}
spec:
  selector: {matchLabels: {app: each}}
  template:
    metadata: {labels: {app: each}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: crib.local/behave/run}]
"#;

/// Waits until an object has this many ready pods.
async fn wait_for(place: &Place, object: &str, pods: u32) {
    let ready = format!("--for=jsonpath={{.status.readyReplicas}}={pods}");
    let all = format!("--for=jsonpath={{.status.replicas}}={pods}");
    out(place, &["wait", &ready, &all, object, "--timeout=50s"]).await;
}

#[tokio::test]
async fn object_has_as_many_pods_as_it_is_scaled_to() {
    let place = Place::new();
    let _downs = Downs(&place);
    std::fs::create_dir(place.path("manifests")).unwrap();
    let file = place.file("manifests/all.yaml", MANIFEST);
    let manifests = place.path("manifests").display().to_string();
    let volumes = format!("--volumes-dir={}", place.path("volumes").display());
    start(&place, &["first", "--watch", &volumes, &manifests]).await;
    let scaled = out(&place, &["scale", "deploy/web", "sts/db", "--replicas=2"]).await;
    assert_eq!(scaled, "deployment.apps/web scaled\nstatefulset.apps/db scaled\n");
    wait_for(&place, "deploy/web", 2).await;
    wait_for(&place, "sts/db", 2).await;

    // As in a cluster, the claims of a StatefulSet remain when its pods are removed.
    out(&place, &["scale", "statefulset", "db", "--current-replicas=2", "--replicas=1"]).await;
    out(&place, &["wait", "--for=delete", "pod/db-1", "--timeout=50s"]).await;
    for (path, expected) in
        [("metadata.name", "data-db-0 data-db-1"), ("status.phase", "Bound Bound")]
    {
        let path = format!("jsonpath={{.items[*].{path}}}");
        assert_eq!(out(&place, &["get", "pvc", "-o", &path]).await, expected);
    }

    let of_file = place.crib(&["scale", "-f", &file, "--replicas=1"]).await.exits(1);
    assert_eq!(of_file.out, "deployment.apps/web scaled\nstatefulset.apps/db scaled\n");
    let problem = "daemonset.apps/each was not scaled: daemonsets.apps have no subresource scale";
    assert_eq!(of_file.err, format!("crib: {problem}\n"));
    let every = out(&place, &["scale", "deploy", "--all", "--replicas=2"]).await;
    assert_eq!(every, "deployment.apps/web scaled\n");
    let some = place.crib(&["scale", "deploy/none", "deploy/web", "--replicas=2"]).await.exits(1);
    assert_eq!(some.out, "deployment.apps/web scaled\n");
    assert_eq!(some.err, "crib: deployments.apps \"none\" not found\n");

    let refused = [
        (
            &["deploy/web", "--current-replicas=5"][..],
            1,
            "crib: deployment.apps/web was not scaled: expected replicas to be 5, was 2\n",
        ),
        (
            &["ds/each"],
            1,
            "crib: daemonset.apps/each was not scaled: daemonsets.apps have no subresource scale\n",
        ),
        (&["deploy/none"], 1, "crib: deployments.apps \"none\" not found\n"),
        (&["deploy,sts", "-l", "app=none"], 1, "crib: no objects passed to scale\n"),
        (
            &["deploy/web", "--all"],
            2,
            "crib: name cannot be provided when a selector is specified\n",
        ),
        (
            &["deploy"],
            2,
            "crib: resource(s) were provided, but no name was specified: name one, such as deploy/web\n",
        ),
    ];
    for (args, code, expected) in refused {
        let args = [&["scale", "--replicas=1"], args].concat();
        assert_eq!(place.crib(&args).await.exits(code).err, expected, "{args:?}");
    }
    assert!(place.crib(&["scale", "deploy/web", "--replicas=-1"]).await.exits(2).out.is_empty());

    // A change of another object keeps the number; a change of the object sets the manifest's number.
    std::fs::write(&file, MANIFEST.replace("name: each}", "name: each, labels: {a: b}}")).unwrap();
    let changed = ["wait", "--for=jsonpath={.metadata.labels.a}=b", "ds/each", "--timeout=50s"];
    out(&place, &changed).await;
    wait_for(&place, "deploy/web", 2).await;
    let changed = MANIFEST.replace(
        "spec:\n  selector: {matchLabels: {app: web}}",
        "spec:\n  minReadySeconds: 1\n  selector: {matchLabels: {app: web}}",
    );
    std::fs::write(&file, changed).unwrap();
    wait_for(&place, "deploy/web", 1).await;
    out(&place, &["down", "first"]).await;
}
