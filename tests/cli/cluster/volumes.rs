//! Claims of the cluster: pods get the volumes that their claims are bound to, or an event with the reason.

use cluster::{Key, Kind, Part};
use jiff::Timestamp;

use super::api_server::ApiServer;
use super::joined::{Joined, pod, wait};
use crate::command::*;

fn create(joined: &Joined, object: Value) {
    joined.server.store().create(object, Timestamp::now()).unwrap();
}

fn change(joined: &Joined, key: &Key, part: Part, change: impl Fn(&mut Value)) -> Value {
    let changed = joined.server.store().change(key, part, |object| {
        change(object);
        Ok(())
    });
    changed.unwrap().value.clone()
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    })
}

fn claim_key(name: &str) -> Key {
    Key::new(Kind::of("v1", "PersistentVolumeClaim"), "default", name)
}

/// A volume with this source, bound to a claim with this uid.
fn volume(name: &str, source: Value, claim: &Value) -> Value {
    let mut spec = json!({
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "claimRef": {"namespace": "default", "name": "data", "uid": claim},
    });
    spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
}

/// Waits for an event that contains this text.
pub(crate) async fn wait_for_event(joined: &Joined, text: &str) {
    let reported = || {
        let events = cluster::Selection::of(Kind::of("v1", "Event"));
        let events = joined.server.store().list(&events).items;
        events.iter().map(|event| event.value["message"].clone()).collect()
    };
    let has = |messages: &Value| {
        let mut messages = messages.as_array().unwrap().iter();
        messages.any(|message| message.as_str().unwrap().contains(text))
    };
    wait(&format!("an event: {text}"), reported, has).await;
}

#[tokio::test]
async fn pod_waits_until_its_claim_is_bound_and_has_the_volume() {
    let (joined, agent) = Joined::start().await;
    joined.place.file("disk/color", "blue");
    let disk = joined.place.path("disk");
    let manifest = pod("reads", "test $(cat /v/color) = blue && echo seen > /v/seen")
        + "    volumeMounts: [{name: v, mountPath: /v}]\n"
        + "  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]\n";
    joined.create_pod(&manifest);
    let error = "error processing PVC default/data:";
    wait_for_event(&joined, &format!("{error} failed to fetch PVC from API server: ")).await;
    create(&joined, claim("data"));
    wait_for_event(&joined, &format!("{error} PVC is not bound")).await;
    let key = claim_key("data");
    change(&joined, &key, Part::Main, |claim| claim["spec"]["volumeName"] = json!("pv"));
    let claim = change(&joined, &key, Part::Status, |it| it["status"] = json!({"phase": "Bound"}));
    wait_for_event(&joined, &format!("{error} failed to fetch PV pv from API server: ")).await;
    create(&joined, volume("pv", json!({"hostPath": {"path": disk}}), &json!("another")));
    let does_not =
        format!("{error} found PV object pv but its pv.Spec.ClaimRef.UID another does not");
    wait_for_event(&joined, &does_not).await;
    let volume = Key::new(Kind::of("v1", "PersistentVolume"), "", "pv");
    let uid = claim["metadata"]["uid"].clone();
    change(&joined, &volume, Part::Main, |volume| {
        volume["spec"]["claimRef"]["uid"] = uid.clone();
        let terms =
            json!([{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]);
        volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
    });
    wait_for_event(&joined, "check failed for volume \"pv\" : no matching NodeSelectorTerms").await;
    let node = Key::new(Kind::of("v1", "Node"), "", super::joined::NODE);
    change(&joined, &node, Part::Main, |node| node["metadata"]["labels"]["disk"] = json!("ssd"));
    joined.wait_for_phase("reads", "Succeeded").await;
    assert_eq!(std::fs::read_to_string(disk.join("seen")).unwrap(), "seen\n");
    joined.end(agent).await;
}

#[tokio::test]
async fn classes_of_the_cluster_choose_the_handler() {
    let joined =
        Joined::with(ApiServer::start(), "handlers: {strict: {no_new_privs: true}}\n").await;
    let class = |name: &str, handler: &str| json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": handler});
    create(&joined, class("careful", "strict"));
    let agent = joined.agent(&[]);
    let with = |name: &str, class: &str| {
        pod(name, "grep -q 'NoNewPrivs:.1' /proc/self/status")
            .replace("spec:\n", &format!("spec:\n  runtimeClassName: {class}\n"))
    };
    joined.create_pod(&with("runs", "careful"));
    joined.wait_for_phase("runs", "Succeeded").await;
    // A runtime handler is not a RuntimeClass.
    joined.create_pod(&with("waits", "strict"));
    wait_for_event(&joined, "runtimeclass.node.k8s.io \"strict\" not found").await;
    create(&joined, class("strict", "strict"));
    joined.wait_for_phase("waits", "Succeeded").await;
    joined.end(agent).await;
}
