//! Tests of described workloads.

use serde_json::json;

use super::super::described;
use super::*;

/// The lines around the pod template.
fn without_template(text: &str) -> String {
    let (head, rest) = text.split_once("Pod Template:\n").unwrap();
    let after = rest.split_once("  Tolerations:").unwrap().1;
    head.to_owned() + after.split_once('\n').unwrap().1
}

/// An object that another one controls.
fn controlled(kind: &str, name: &str, owner: &str, status: &Value) -> Value {
    json!({
        "kind": kind,
        "metadata": {
            "name": name, "uid": name, "namespace": "shop",
            "annotations": {"deployment.kubernetes.io/revision": name.trim_start_matches("web-")},
            "ownerReferences": [{"kind": "Owner", "name": "o", "uid": owner, "controller": true}],
        },
        "spec": {"replicas": 3},
        "status": status,
    })
}

fn object(kind: &str, spec: &Value, status: &Value) -> Value {
    json!({
        "kind": kind,
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u", "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"a": "b"},
        },
        "spec": spec, "status": status,
    })
}

fn pods() -> Vec<Value> {
    let pod = |name: &str, owner: &str, phase: &str| {
        controlled("Pod", name, owner, &json!({"phase": phase}))
    };
    vec![
        pod("a", "u", "Running"),
        pod("b", "u", "Running"),
        pod("c", "u", "Pending"),
        pod("d", "u", "Failed"),
        pod("e", "other", "Succeeded"),
    ]
}

#[test]
fn deployment_has_fields_of_kubectl() {
    let spec = json!({
        "replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "minReadySeconds": 5,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%", "maxSurge": 1}},
    });
    let status = json!({
        "replicas": 3, "updatedReplicas": 1, "availableReplicas": 2, "unavailableReplicas": 1,
        "conditions": [{"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"}],
    });
    let mut object = object("Deployment", &spec, &status);
    let set = |number: &str, replicas: i32| {
        let status = json!({"replicas": replicas});
        controlled("ReplicaSet", &format!("web-{number}"), "u", &status)
    };
    let all = [set("10", 1), set("2", 0), set("9", 2)];
    let expected = "Name:                   web
Namespace:              shop
CreationTimestamp:      Fri, 02 Jan 2026 03:04:05 +0000
Labels:                 a=b
Annotations:            <none>
Selector:               app=web
Replicas:               3 desired | 1 updated | 3 total | 2 available | 1 unavailable
StrategyType:           RollingUpdate
MinReadySeconds:        5
RollingUpdateStrategy:  10% max unavailable, 1 max surge
Conditions:
  Type           Status  Reason
  ----           ------  ------
  Available      True    MinimumReplicasAvailable
OldReplicaSets:  web-2 (0/3 replicas created), web-9 (2/3 replicas created)
NewReplicaSet:   web-10 (1/3 replicas created)
Events:          <none>";
    assert_eq!(without_template(&described(&object, &all)), expected);
    object["spec"]["strategy"] = json!({"type": "Recreate"});
    let text = described(&object, &[]);
    assert!(!text.contains("RollingUpdateStrategy"), "{text}");
    assert!(!text.contains("ReplicaSet"), "{text}");
}

#[test]
fn only_replica_set_is_the_new_one() {
    let object = object("Deployment", &json!({}), &json!({}));
    let all = [controlled("ReplicaSet", "web-1", "u", &json!({"replicas": 3}))];
    let text = described(&object, &all);
    let expected = "OldReplicaSets:    <none>\nNewReplicaSet:     web-1 (3/3 replicas created)\n";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn replica_set_counts_its_pods() {
    let spec = json!({"replicas": 4, "selector": {"matchLabels": {"app": "web"}}});
    let mut object = object("ReplicaSet", &spec, &json!({"replicas": 4}));
    object["metadata"]["ownerReferences"] =
        json!([{"kind": "Deployment", "name": "web", "uid": "x", "controller": true}]);
    let expected = "Name:           web
Namespace:      shop
Selector:       app=web
Labels:         a=b
Annotations:    <none>
Controlled By:  Deployment/web
Replicas:       4 current / 4 desired
Pods Status:    2 Running / 1 Waiting / 0 Succeeded / 1 Failed
Events:            <none>";
    assert_eq!(without_template(&described(&object, &pods())), expected);
    let controller = json!({
        "kind": "ReplicationController", "metadata": {}, "spec": {"selector": {"b": "2", "a": "1"}},
    });
    let text = described(&controller, &[]);
    assert!(text.contains("\nSelector:     a=1,b=2\n"), "{text}");
}

#[test]
fn stateful_set_has_its_claims() {
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "storageClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let spec = json!({
        "replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "volumeClaimTemplates": [claim],
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}},
    });
    let mut object = object("StatefulSet", &spec, &json!({"replicas": 3}));
    let expected = "Name:               web
Namespace:          shop
CreationTimestamp:  Fri, 02 Jan 2026 03:04:05 +0000
Selector:           app=web
Labels:             a=b
Annotations:        <none>
Replicas:           2 desired | 3 total
Update Strategy:    RollingUpdate
  Partition:        1
Pods Status:        2 Running / 1 Waiting / 0 Succeeded / 1 Failed
Volume Claims:
  Name:          data
  StorageClass:  fast
  Labels:        <none>
  Annotations:   <none>
  Capacity:      1Gi
  Access Modes:  [ReadWriteOnce ReadOnlyMany]
Events:          <none>";
    assert_eq!(without_template(&described(&object, &pods())), expected);
    object["spec"]["volumeClaimTemplates"] = json!([]);
    let text = described(&object, &[]);
    assert!(text.ends_with("Volume Claims:     <none>\nEvents:            <none>"), "{text}");
}

#[test]
fn daemon_set_counts_nodes() {
    let spec = json!({
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"spec": {"containers": [], "nodeSelector": {"disk": "ssd"}}},
    });
    let status = json!({
        "desiredNumberScheduled": 1, "currentNumberScheduled": 2, "updatedNumberScheduled": 3,
        "numberAvailable": 4, "numberMisscheduled": 5,
    });
    let expected = "Name:           web
Namespace:      shop
Selector:       app=web
Node-Selector:  disk=ssd
Labels:         a=b
Annotations:    <none>
Desired Number of Nodes Scheduled: 1
Current Number of Nodes Scheduled: 2
Number of Nodes Scheduled with Up-to-date Pods: 3
Number of Nodes Scheduled with Available Pods: 4
Number of Nodes Misscheduled: 5
Pods Status:  2 Running / 1 Waiting / 0 Succeeded / 1 Failed
Events:            <none>";
    let object = object("DaemonSet", &spec, &status);
    assert_eq!(without_template(&described(&object, &pods())), expected);
}
