//! `crib get`: the objects of runs, in the tables and formats of kubectl.

use regex_lite::Regex;

use crate::command::*;
use crate::runs::background::{Downs, out, start};

const OBJECTS: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, labels: {app: web}}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: red}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: crib.local/behave/run}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: migrate}
spec:
  template:
    metadata: {labels: {tier: jobs}}
    spec:
      restartPolicy: Never
      containers: [{name: main, image: crib.local/behave/exit-0}]
---
apiVersion: v1
kind: Pod
metadata: {name: bad, labels: {tier: back}}
spec:
  containers: [{name: main, image: crib.local/behave/exit-1}]
---
apiVersion: v1
kind: Pod
metadata: {name: cart, namespace: shop, labels: {app: cart}}
spec:
  terminationGracePeriodSeconds: 0
  initContainers: [{name: proxy, image: crib.local/behave/run, restartPolicy: Always}]
  containers: [{name: main, image: crib.local/behave/run}]
"#;

/// A pod that runs until it is stopped.
const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: crib.local/behave/run}]
"#;

/// A table with single spaces, without ages, addresses, restart counts and generated names.
pub(crate) fn table(text: &str) -> String {
    let mut text = text.to_owned();
    // Names first: a generated name may end like an age ("mwb9m").
    for (pattern, replacement) in [
        (r"web-[a-z0-9]+-[a-z0-9]{5}\b", "web-*"),
        (r"replicaset.apps/web-[a-z0-9]+", "replicaset.apps/web-*"),
        (r"migrate-[a-z0-9]{5}\b", "migrate-*"),
        (r"\b[0-9]+[smh]([0-9]+[sm])?\b", "AGE"),
        (r"\b[0-9]+ \(AGE ago\)", "N (AGE ago)"),
        (r"\b10\.[0-9]+\.[0-9]+\.[0-9]+", "IP"),
        (r" +", " "),
    ] {
        text = Regex::new(pattern).unwrap().replace_all(&text, replacement).into_owned();
    }
    text
}

/// Runs `crib get` until it prints this table.
async fn shows(place: &Place, args: &[&str], expected: &str) {
    let mut all = vec!["get"];
    all.extend(args);
    harness::eventually(WAIT_LIMIT, &format!("{all:?} is {expected}"), async || {
        let shown = table(&out(place, &all).await);
        if shown == expected { Ok(()) } else { Err(shown) }
    })
    .await;
}

#[tokio::test]
async fn objects_of_run_are_shown_as_kubectl_shows_them() {
    let place = Place::new();
    let _downs = Downs(&place);
    let file = place.file("all.yaml", OBJECTS);
    start(&place, &["first", &file]).await;
    let all = "\
NAME READY STATUS RESTARTS AGE
pod/bad 0/1 CrashLoopBackOff N (AGE ago) AGE
pod/migrate-* 0/1 Completed 0 AGE
pod/web-* 1/1 Running 0 AGE
pod/web-* 1/1 Running 0 AGE

NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE
service/web ClusterIP IP <none> 80/TCP AGE

NAME READY UP-TO-DATE AVAILABLE AGE
deployment.apps/web 2/2 2 2 AGE

NAME DESIRED CURRENT READY AGE
replicaset.apps/web-* 2 2 2 AGE
";
    let job = "
NAME STATUS COMPLETIONS DURATION AGE
job.batch/migrate Complete 1/1 AGE AGE
";
    shows(&place, &["all"], &format!("{all}{job}")).await;
    let namespaced = "\
NAMESPACE NAME READY STATUS RESTARTS AGE
shop cart 2/2 Running 0 AGE
";
    shows(&place, &["pods", "-A", "-l", "app in (cart, api)"], namespaced).await;
    shows(&place, &["pods", "-n", "shop", "--no-headers"], "cart 2/2 Running 0 AGE\n").await;
    let started = "reason=Started,involvedObject.fieldPath=spec.containers{main}";
    let events =
        "LAST SEEN TYPE REASON OBJECT MESSAGE\nAGE Normal Started pod/cart Container started\n";
    shows(&place, &["events", "-n", "shop", "--field-selector", started], events).await;
    let wide = table(&out(&place, &["get", "deploy", "web", "-o", "wide", "--show-labels"]).await);
    assert_eq!(
        wide,
        "NAME READY UP-TO-DATE AVAILABLE AGE CONTAINERS IMAGES SELECTOR LABELS\n\
         web 2/2 2 2 AGE main crib.local/behave/run app=web app=web\n"
    );
    for (args, expected) in [
        (&["pods", "-l", "app=web", "-o", "name"][..], "pod/web-*\npod/web-*\n"),
        (&["pods", "-l", "app!=web,tier!=jobs", "-o", "name"], "pod/bad\n"),
        (&["pods", "--field-selector", "status.phase=Succeeded", "-o", "name"], "pod/migrate-*\n"),
        (&["jobs", "--field-selector", "status.successful=1", "-o", "name"], "job.batch/migrate\n"),
        (&["svc", "--field-selector", "spec.type!=ClusterIP", "-o", "name"], ""),
        (&["svc/web", "deploy/web", "-o", "name"], "service/web\ndeployment.apps/web\n"),
        (&["pods", "-L", "tier", "-l", "tier=back", "--no-headers", "-o", "name"], "pod/bad\n"),
        (&["deploy/web", "-o", "jsonpath={.status.readyReplicas}"], "2"),
        (&["deploy/web", "-o", "jsonpath-as-json={.status.readyReplicas}"], "[\n 2\n]\n"),
        (&["cm", "settings", "--show-kind", "--no-headers"], "configmap/settings 1 AGE\n"),
        (&["cm", "settings", "-o", "go-template={{.data.color}} {{.data.none}}"], "red <no value>"),
        (
            &["deploy/web", "--template={{if not .spec.paused}}{{.status.readyReplicas}}{{end}}"],
            "2",
        ),
        (&["cm", "settings", "--no-headers=true", "--show-labels=false"], "settings 1 AGE\n"),
        (
            &[
                "cm,svc",
                "-o",
                r#"jsonpath={range .items[*]}{.kind}{"\t"}{.metadata.name}{"\n"}{end}"#,
            ],
            "ConfigMap\tsettings\nService\tweb\n",
        ),
        (
            &[
                "pods",
                "--sort-by",
                "{.status.phase}",
                "-l",
                "tier",
                "-o",
                "custom-columns=P:.status.phase,X:.x",
            ],
            "P X\nRunning <none>\nSucceeded <none>\n",
        ),
    ] {
        let mut all = vec!["get"];
        all.extend(args);
        assert_eq!(table(&out(&place, &all).await), expected, "{args:?}");
    }
    let template = place.file("template", "{.data.color}\n");
    let format = format!("jsonpath-file={template}");
    assert_eq!(out(&place, &["get", "cm", "settings", "-o", &format]).await, "red\n");
    let columns = place.file("columns", "NAME COLOR\n.metadata.name .data.color\n");
    let format = format!("custom-columns-file={columns}");
    let shown = out(&place, &["get", "cm", "settings", "-o", &format]).await;
    assert_eq!(table(&shown), "NAME COLOR\nsettings red\n");
    let of_file = out(&place, &["get", "-f", &file, "-o", "name"]).await;
    let names = "pod/bad\npod/cart\ndeployment.apps/web\njob.batch/migrate\nservice/web\nconfigmap/settings\n";
    assert_eq!(of_file, names);
    let one =
        place.file("one.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n");
    let color = ["get", "-f", &one, "-o", "jsonpath={.data.color}"];
    assert_eq!(out(&place, &color).await, "red");
    let object: Value =
        serde_json::from_str(&out(&place, &["get", "cm", "settings", "-o", "json"]).await).unwrap();
    assert_eq!((&object["kind"], &object["data"]["color"]), (&json!("ConfigMap"), &json!("red")));
    let list: Value =
        serde_json::from_str(&out(&place, &["get", "pods", "-A", "-o", "json"]).await).unwrap();
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("List"), 5));
    let yaml = out(&place, &["get", "deploy", "web", "-o", "yaml"]).await;
    assert!(
        yaml.contains("\nkind: Deployment\n") && yaml.contains("  readyReplicas: 2\n"),
        "{yaml}"
    );
    refused(&place).await;
    out(&place, &["down", "first"]).await;
}

/// Missing objects and invalid arguments are reported, with the exit codes of other commands.
async fn refused(place: &Place) {
    let other =
        "apiVersion: v1\nkind: Service\nmetadata: {name: other}\nspec: {ports: [{port: 80}]}\n";
    let other = place.file("other.yaml", other);
    for (args, code, expected) in [
        (&["pods", "web", "-o", "name"][..], 1, "crib: pods \"web\" not found\n"),
        (&["deploy/none"], 1, "crib: deployments.apps \"none\" not found\n"),
        (&["pods", "bad", "-n", "shop"], 1, "crib: pods \"bad\" not found\n"),
        (&["pod/none", "--ignore-not-found"], 0, ""),
        (&["pod/none", "svc/none", "--ignore-not-found", "-o", "yaml"], 0, ""),
        (&["pods", "-n", "none", "--ignore-not-found", "-o", "json"], 0, ""),
        (&["pods", "-n", "none"], 0, "crib: no resources found in none namespace\n"),
        (&["pods", "-A", "-l", "app=none"], 0, "crib: no resources found\n"),
        (&["ing,sc"], 0, "crib: no resources found in default namespace\n"),
        (
            &["pods", "--output-watch-events"],
            2,
            "crib: --output-watch-events option can only be used with --watch or --watch-only\n",
        ),
        (&["ev", "-w"], 2, "crib: events cannot be watched: leave out --watch\n"),
        (
            &["pods", "--sort-by", ".metadata.none"],
            1,
            "crib: no object has the field of --sort-by: check its path\n",
        ),
        (&["-f", &other], 1, "crib: services \"other\" not found\n"),
        (&["pdo"], 2, "crib: the server doesn't have a resource type \"pdo\"\n"),
        (
            &["pods", "bad", "-l", "app"],
            2,
            "crib: name cannot be provided when a selector is specified\n",
        ),
        (
            &["pods", "bad", "-A"],
            2,
            "crib: a resource cannot be retrieved by name across all namespaces\n",
        ),
        (
            &["svc", "--field-selector", "status.phase=x"],
            2,
            "crib: field label not supported for kind Service: status.phase\n",
        ),
        (
            &["pods", "-o", "jsonpath={.items[99]}"],
            1,
            "crib: failed to fill in the template: array index out of bounds: index 99, length 4\n",
        ),
    ] {
        let mut all = vec!["get"];
        all.extend(args);
        let ended = place.crib(&all).await.exits(code);
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("", expected), "{args:?}");
    }
    // Existing objects are still shown.
    let ended = place.crib(&["get", "cm", "none", "settings", "-o", "name"]).await.exits(1);
    assert_eq!(ended.out, "configmap/settings\n");
    assert_eq!(ended.err, "crib: configmaps \"none\" not found\n");
    for (flag, value, words) in [
        ("-o", "jsonpath={.a.length()}", "is not supported"),
        ("-o", "table", "expected wide, name, json, yaml"),
        ("-o", "go-template", "--template <TEMPLATE>"),
        ("-o", "jsonpath-file=/none", "failed to read the template /none: No such file"),
        ("-l", "a=b=c", "expected ',' or the end"),
        ("--field-selector", "a", "is not FIELD=VALUE"),
    ] {
        place.crib(&["get", "pods", flag, value]).await.exits(2).err_has(words);
    }
}

#[tokio::test]
async fn objects_of_several_runs_are_merged() {
    let place = Place::new();
    let _downs = Downs(&place);
    let file = place.file("web.yaml", POD);
    for run in ["first", "second"] {
        start(&place, &[run, &file]).await;
    }
    let both = "\
NAME READY STATUS RESTARTS AGE RUN
web 1/1 Running 0 AGE first
web 1/1 Running 0 AGE second
";
    shows(&place, &["pods", "--sort-by", ".metadata.creationTimestamp"], both).await;
    let one = "NAME READY STATUS RESTARTS AGE\nweb 1/1 Running 0 AGE\n";
    shows(&place, &["pod", "web", "--run", "second"], one).await;
    let ended = place.crib(&["get", "pod/web"]).await.exits(1);
    assert_eq!(
        ended.err,
        "crib: \"pod/web\" matches more than one object: choose one of --run first, --run second\n"
    );
    out(&place, &["down", "--all"]).await;
}

#[tokio::test]
async fn get_without_run_exits_3_with_hint() {
    let place = Place::new();
    let (runtime, endpoint) = place.runtime().await;
    let hint = "crib: no run found: start one with `crib run`; `crib pods` and `crib ps` list pods and containers of other runtimes\n";
    let ended = place.crib(&["get", "pods", "--runtime-endpoint", &endpoint]).await.exits(3);
    assert_eq!(ended.err, hint);
    runtime.stop().await;
}

/// The results of a cluster's controllers: bound claims, their volumes, and the endpoints of Services.
#[tokio::test]
async fn claims_volumes_and_endpoints_are_shown_when_bound() {
    let place = Place::new();
    let _downs = Downs(&place);
    let manifest = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec: {capacity: {storage: 2Gi}, accessModes: [ReadWriteOnce], storageClassName: fast, hostPath: {path: DISK, type: DirectoryOrCreate}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: fast}
spec: {accessModes: [ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: web
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: crib.local/behave/run
        volumeMounts: [{name: own, mountPath: /own}, {name: data, mountPath: /data}, {name: fast, mountPath: /fast}]
      volumes:
      - {name: data, persistentVolumeClaim: {claimName: data}}
      - {name: fast, persistentVolumeClaim: {claimName: fast}}
  volumeClaimTemplates:
  - metadata: {name: own}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 3Gi}}}
"#;
    let manifest = manifest.replace("DISK", place.path("disk").to_str().unwrap());
    start(&place, &["first", "--wait", &place.file("all.yaml", &manifest)]).await;
    for claim in ["data", "fast", "own-web-0"] {
        let bound = ["wait", "--for=jsonpath={.status.phase}=Bound", "pvc", claim];
        out(&place, &bound).await;
    }
    let claims = out(&place, &["get", "pvc", "--no-headers"]).await;
    let claims = Regex::new(r"pvc-default-([a-z0-9-]+)-[a-z0-9]{5}\b")
        .unwrap()
        .replace_all(&claims, "made-$1")
        .into_owned();
    assert_eq!(
        table(&claims),
        "data Bound made-data 1Gi RWO <unset> AGE\n\
         fast Bound disk 2Gi RWO fast <unset> AGE\n\
         own-web-0 Bound made-own-web-0 3Gi RWO <unset> AGE\n"
    );
    shows(
        &place,
        &["pv", "disk", "--no-headers"],
        "disk 2Gi RWO Retain Bound default/fast fast <unset> AGE\n",
    )
    .await;
    let made = out(&place, &["get", "pvc", "own-web-0", "-o", "jsonpath={.spec.volumeName}"]).await;
    let directory =
        out(&place, &["get", "pv", &made, "-o", "jsonpath={.spec.hostPath.path}"]).await;
    assert!(std::fs::metadata(&directory).unwrap().is_dir(), "{directory}");
    let address = out(&place, &["get", "pod", "web-0", "-o", "jsonpath={.status.podIP}"]).await;
    let slices = ["get", "endpointslices", "-o"];
    let addresses =
        "jsonpath={.items[*].endpoints[*].addresses[0]} {.items[*].endpoints[*].conditions.ready}";
    let behind = out(&place, &[&slices[..], &[addresses]].concat()).await;
    assert_eq!(behind, format!("{address} true"));
}
