//! The node object at the API server: registration, readiness, lease.

use cluster::{Kind, Part};
use jiff::Timestamp;

use super::api_server::ApiServer;
use super::eviction::event;
use super::joined::{Joined, KUBELET_CONFIGURATION, NODE, condition, pod, wait};
use crate::command::*;

#[tokio::test]
async fn agent_registers_a_ready_node_and_renews_its_lease() {
    let joined = Joined::new(ApiServer::start()).await;
    let more = ["--node-labels", "disk=ssd", "--register-with-taints", "dedicated=x:NoSchedule"];
    let agent = joined.agent(&[&more[..], &["--max-pods", "7"]].concat());
    let node = joined.wait_for_ready_node().await;

    let labels = &node["metadata"]["labels"];
    assert_eq!(labels["kubernetes.io/hostname"], NODE);
    assert_eq!(labels["kubernetes.io/os"], "linux");
    assert_eq!(labels["disk"], "ssd");
    let taint = json!([{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]);
    assert_eq!(node["spec"]["taints"], taint);
    let status = &node["status"];
    for kind in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
        assert_eq!(condition(&node, kind)["status"], "False", "{kind}");
    }
    assert_eq!(condition(&node, "Ready")["message"], "kubelet is posting ready status");
    assert_eq!(status["capacity"]["pods"], "7");
    for resource in ["cpu", "memory", "ephemeral-storage", "pods"] {
        assert_ne!(status["allocatable"][resource], Value::Null, "{resource}");
    }
    let addresses = status["addresses"].as_array().unwrap();
    assert_eq!(addresses.last().unwrap(), &json!({"type": "Hostname", "address": NODE}));
    let info = &status["nodeInfo"];
    assert_eq!(info["operatingSystem"], "linux");
    assert!(info["kubeletVersion"].as_str().unwrap().starts_with("v1.36."), "{info}");
    assert!(info["containerRuntimeVersion"].as_str().unwrap().starts_with("crib://"), "{info}");
    assert_ne!(info["kernelVersion"], "");
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let swap = meminfo.lines().find_map(|line| line.strip_prefix("SwapTotal:")).unwrap_or("0 kB");
    let kib: u64 = swap.trim().trim_end_matches(" kB").parse().unwrap();
    let expected = if kib == 0 { Value::Null } else { json!({"capacity": kib * 1024}) };
    assert_eq!(info["swap"], expected);

    let lease =
        || joined.object(Kind::of("coordination.k8s.io/v1", "Lease"), "kube-node-lease", NODE);
    let first = wait("a lease", lease, |lease| !lease.is_null()).await;
    assert_eq!(first["spec"]["holderIdentity"], NODE);
    assert_eq!(first["spec"]["leaseDurationSeconds"], 40);
    assert_eq!(first["metadata"]["ownerReferences"][0]["uid"], node["metadata"]["uid"]);
    let renewed = |lease: &Value| lease["spec"]["renewTime"] != first["spec"]["renewTime"];
    wait("a renewed lease", lease, renewed).await;
    joined.end(agent).await;
}

/// As in a kubelet, the client of heartbeats has no rate limit, and does not wait for other requests.
#[tokio::test]
async fn lease_is_renewed_while_other_requests_wait_for_the_rate_limit() {
    const CONFIG_MAPS: usize = 200;
    let joined = Joined::new(ApiServer::start()).await;
    let config = joined.place.file(
        "slow.yaml",
        &format!(
            "{KUBELET_CONFIGURATION}evictionHard: {{}}\nhealthzPort: 0\nkubeAPIQPS: 5\nkubeAPIBurst: 1\n\
             nodeLeaseDurationSeconds: 4\n"
        ),
    );
    let refs = (0..CONFIG_MAPS).map(|number| format!("{{configMapRef: {{name: c{number}}}}}"));
    let refs: Vec<String> = refs.collect();
    joined.create_pod(&format!("{}    envFrom: [{}]\n", pod("waits", "true"), refs.join(", ")));
    let agent = joined.agent(&["--config", &config]);
    let count_requests = || joined.server.count("GET /api/v1/namespaces/default/configmaps");
    // The other requests wait for the rate limit, which takes 40 s in total.
    wait("the first ConfigMap", || count_requests().into(), |seen| seen.as_u64() > Some(0)).await;
    let lease =
        format!("PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}");
    let renewals = || joined.server.count(&lease);
    let enough = renewals() as u64 + 3;
    wait("renewals", || renewals().into(), |seen| seen.as_u64() >= Some(enough)).await;
    assert!(count_requests() < CONFIG_MAPS, "no request waits any more");
    joined.end(agent).await;
}

#[tokio::test]
async fn node_declares_the_features_whose_gates_are_on() {
    let joined = Joined::new(ApiServer::start()).await;
    let features = [
        "ExtendWebSocketsToKubelet",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "RestartAllContainersOnContainerExits",
    ];
    let agent = joined.agent(&[]);
    let node = joined.wait_for_ready_node().await;
    assert_eq!(node["status"]["declaredFeatures"], json!(features));
    agent.stop().await;
    let gates = "featureGates: {InPlacePodLevelResourcesVerticalScaling: false}";
    let text = format!("{KUBELET_CONFIGURATION}evictionHard: {{}}\nhealthzPort: 0\n{gates}\n");
    let config = joined.place.file("gates.yaml", &text);
    let agent = joined.agent(&["--config", &config]);
    let fewer = json!([features[0], features[2], features[3]]);
    let are_fewer = |node: &Value| node["status"]["declaredFeatures"] == fewer;
    wait("fewer features", || joined.node(), are_fewer).await;
    joined.end(agent).await;
}

#[tokio::test]
async fn agent_adopts_its_node_and_keeps_fields_of_others() {
    let joined = Joined::new(ApiServer::start()).await;
    let existing = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {"theirs": "1", "kubernetes.io/os": "plan9"}},
        "spec": {"taints": [{"key": "theirs", "effect": "NoSchedule"}], "podCIDR": "10.0.0.0/24"},
    });
    let store = joined.server.store();
    let created = store.create(existing.clone(), Timestamp::now()).unwrap();
    store
        .change(&created.key, cluster::Part::Status, |node| {
            node["status"] =
                json!({"conditions": [{"type": "Mine", "status": "True"}], "future": 1});
            Ok(())
        })
        .unwrap();
    let agent = joined.agent(&["--register-with-taints", "own=x:NoSchedule"]);
    let node = joined.wait_for_ready_node().await;
    assert_eq!(node["metadata"]["labels"]["theirs"], "1");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/os"], "linux");
    assert_eq!(node["spec"], existing["spec"]);
    assert_eq!(condition(&node, "Mine")["status"], "True");
    assert_eq!(node["status"]["future"], 1);
    joined.end(agent).await;
}

/// Changes the node, like an administrator.
fn change_node(joined: &Joined, part: Part, change: impl Fn(&mut Value)) {
    let key = cluster::Key::new(Kind::of("v1", "Node"), "", NODE);
    let changed = joined.server.store().change(&key, part, |node| {
        change(node);
        Ok(())
    });
    changed.unwrap();
}

/// Runs a pod with these fields in its spec to its end.
async fn ends(joined: &Joined, name: &str, fields: &str) -> (Value, Value) {
    joined.create_pod(&pod(name, "exit 0").replace("spec:\n", &format!("spec:\n  {fields}\n")));
    let has_ended =
        |pod: &Value| pod["status"]["phase"] == "Failed" || pod["status"]["phase"] == "Succeeded";
    let pod = joined.wait_for_pod(name, "ended", has_ended).await;
    (pod["status"]["phase"].clone(), pod["status"]["reason"].clone())
}

#[tokio::test]
async fn labels_and_taints_of_the_node_decide_which_pods_it_takes() {
    let (joined, agent) = Joined::start().await;
    joined.wait_for_ready_node().await;
    let taken = (json!("Succeeded"), Value::Null);
    let selects = "nodeSelector: {disk: ssd}";
    assert_eq!(ends(&joined, "before", selects).await, (json!("Failed"), json!("NodeAffinity")));
    // The agent may see the pod before the label.
    change_node(&joined, Part::Main, |node| node["metadata"]["labels"]["disk"] = json!("ssd"));
    assert_eq!(ends(&joined, "labelled", selects).await, taken);

    let taint = |effect: &'static str| {
        move |node: &mut Value| node["spec"]["taints"] = json!([{"key": "k", "effect": effect}])
    };
    let follows = async |name: &str, expected: (Value, Value)| {
        for number in 0.. {
            let seen = ends(&joined, &format!("{name}{number}"), "enableServiceLinks: true").await;
            if seen == expected {
                return;
            }
            assert!(number < 50, "{seen:?}");
        }
    };
    change_node(&joined, Part::Main, taint("NoExecute"));
    follows("evicted", (json!("Failed"), json!("TaintToleration"))).await;
    let tolerates = "tolerations: [{key: k, operator: Exists}]";
    assert_eq!(ends(&joined, "tolerant", tolerates).await, taken);
    // Conditions that prevent scheduling do not prevent a scheduled pod from running.
    change_node(&joined, Part::Main, |node| {
        node["spec"]["unschedulable"] = json!(true);
        taint("NoSchedule")(node);
    });
    follows("cordoned", taken).await;
    joined.end(agent).await;
}

#[tokio::test]
async fn cordon_and_uncordon_are_events() {
    let joined = Joined::new(ApiServer::start()).await;
    let fields = "evictionHard: {}\nhealthzPort: 0\nnodeStatusUpdateFrequency: 3s\n";
    let config = joined.place.file("kubelet.yaml", &format!("{KUBELET_CONFIGURATION}{fields}"));
    let agent = joined.agent(&["--config", &config]);
    joined.wait_for_ready_node().await;
    for (unschedulable, reason) in [(true, "NodeNotSchedulable"), (false, "NodeSchedulable")] {
        change_node(&joined, Part::Main, |node| {
            node["spec"]["unschedulable"] = json!(unschedulable);
        });
        let event = event(&joined, "Node", reason).await;
        let message = format!("Node {NODE} status is now: {reason}");
        assert_eq!((&event["type"], &event["message"]), (&json!("Normal"), &json!(message)));
    }
    // A repetition is counted.
    change_node(&joined, Part::Main, |node| node["spec"]["unschedulable"] = json!(true));
    let cordoned = event(&joined, "Node", "NodeNotSchedulable").await;
    let name = cordoned["metadata"]["name"].as_str().unwrap();
    let current = || joined.object(Kind::of("v1", "Event"), "default", name);
    wait("the second cordon", current, |event| event["count"] == 2).await;
    joined.end(agent).await;
}

#[tokio::test]
async fn resources_that_others_advertise_are_kept_and_granted() {
    let joined = Joined::new(ApiServer::start()).await;
    let agent = joined.agent(&["--max-pods", "7"]);
    joined.wait_for_ready_node().await;
    change_node(&joined, Part::Status, |node| {
        node["status"]["capacity"]["example.com/dongle"] = json!("2");
        node["status"]["capacity"]["pods"] = json!("1000");
    });
    let allocates = |node: &Value| {
        node["status"]["allocatable"]["example.com/dongle"] == "2"
            && node["status"]["capacity"]["pods"] == "7"
    };
    wait("both resources", || joined.node(), allocates).await;
    let wants = |count: &str| {
        pod("wants", "exit 0")
            + &format!(
                "    resources: {{requests: {{example.com/dongle: {count}}}, limits: {{example.com/dongle: {count}}}}}\n"
            )
    };
    for (count, phase, reason) in
        [("2", "Succeeded", Value::Null), ("3", "Failed", json!("OutOfexample.com/dongle"))]
    {
        joined.create_pod(&wants(count));
        let ended = joined.wait_for_phase("wants", phase).await;
        assert_eq!(ended["status"]["reason"], reason);
        joined.delete_pod("wants", None);
        joined.wait_until_gone("wants").await;
    }
    joined.end(agent).await;
}

#[tokio::test]
async fn extended_resources_of_an_earlier_machine_are_zero_until_they_are_advertised_again() {
    let joined = Joined::new(ApiServer::start()).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
    joined.server.store().create(node, Timestamp::now()).unwrap();
    let advertise = |count: &'static str| {
        move |node: &mut Value| {
            for field in ["capacity", "allocatable"] {
                node["status"][field]["example.com/dongle"] = json!(count);
            }
        }
    };
    change_node(&joined, Part::Status, advertise("2"));
    let has = |count: &'static str| {
        move |node: &Value| {
            let amounts = ["capacity", "allocatable"].map(|field| &node["status"][field]);
            amounts.iter().all(|amounts| amounts["example.com/dongle"] == count)
        }
    };
    let agent = joined.agent(&[]);
    let node = joined.wait_for_ready_node().await;
    assert!(has("0")(&node), "{node}");
    change_node(&joined, Part::Status, advertise("3"));
    agent.stop().await;
    // The next agent on the machine resets only the label.
    let label = "kubernetes.io/os";
    change_node(&joined, Part::Main, |node| node["metadata"]["labels"][label] = json!("plan9"));
    let agent = joined.agent(&[]);
    let is_adopted = |node: &Value| node["metadata"]["labels"][label] == "linux";
    let node = wait("the label", || joined.node(), is_adopted).await;
    assert!(has("3")(&node), "{node}");
    joined.end(agent).await;
}

#[tokio::test]
async fn labels_of_the_system_are_set_again() {
    let (joined, agent) = Joined::start().await;
    joined.wait_for_ready_node().await;
    change_node(&joined, Part::Main, |node| {
        node["metadata"]["labels"] = json!({"kubernetes.io/os": "plan9", "theirs": "1"});
    });
    let is_right = |node: &Value| node["metadata"]["labels"]["kubernetes.io/os"] == "linux";
    let node = wait("the label", || joined.node(), is_right).await;
    assert_eq!(node["metadata"]["labels"]["theirs"], "1");
    assert_ne!(node["metadata"]["labels"]["kubernetes.io/arch"], Value::Null);
    joined.end(agent).await;
}

#[tokio::test]
async fn unusable_kubeconfigs_are_refused_before_anything_starts() {
    let place = Place::new();
    let bad = place.file("bad", "current-context: none\n");
    let missing = place.path("missing").to_str().unwrap().to_owned();
    for (file, problem) in [(&bad, "no context \"none\""), (&missing, "failed to read")] {
        let args = ["agent", "--runtime-endpoint", "unix:///nowhere.sock", "--kubeconfig", file];
        let ended = place.crib(&args).await.exits(2);
        ended.err_has("--kubeconfig: ");
        ended.err_has(problem);
    }
}
