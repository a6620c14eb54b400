//! Usage of the node and its pods from the agent's HTTPS server: statistics, metrics and configuration.

use agent::local_node::kubelet_config;
use cluster::{Key, Kind, Part};
use http::Method;
use http::header::CONTENT_TYPE;

use super::api_server::{ApiServer, VISITOR};
use super::joined::{Joined, KUBELET_CONFIGURATION, pod};
use super::server_client::{Served, answered};
use crate::command::*;

/// A script that uses CPU for a moment, writes, and keeps running.
const BUSY: &str = "head -c 1000000 /dev/zero > $D/f; i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; echo done; sleep 3600";

/// A pod that runs [`BUSY`], and writes to a volume.
fn busy() -> String {
    let mounts = "    env: [{name: D, value: /data}]\n    volumeMounts: [{name: data, mountPath: /data}]\n    command:";
    pod("busy", BUSY).replace("    command:", mounts) + "  volumes: [{name: data, emptyDir: {}}]\n"
}

async fn served() -> Served {
    Served::new(Joined::new(ApiServer::start()).await).await
}

/// The summary, once all usage is measured.
async fn summary(served: &Served, query: &str) -> Value {
    let (status, body) = served.get(&format!("/stats/summary{query}")).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// The value and the timestamp of a metric, in milliseconds since 1970.
fn metric(text: &str, name: &str) -> Option<(f64, Option<i64>)> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    let (value, at) = line.split_once(' ').map_or((line, None), |(value, at)| (value, Some(at)));
    Some((value.parse().unwrap(), at.map(|at| at.parse().unwrap())))
}

async fn metrics(served: &Served, path: &str) -> String {
    let (status, body) = served.get(path).await;
    assert_eq!(status, 200, "{path}: {body}");
    body
}

#[tokio::test]
async fn summary_has_what_the_node_and_its_pods_use() {
    let served = served().await;
    let uid = served.joined.create_pod(&busy());
    served.joined.wait_for_phase("busy", "Running").await;
    // Volumes are measured at the first request, and then once a minute.
    harness::eventually(WAIT_LIMIT, "the end of the script", async || {
        let seen = served.get("/containerLogs/default/busy/app").await;
        if seen == (200, "done\n".to_owned()) { Ok(()) } else { Err(seen) }
    })
    .await;
    let first = summary(&served, "").await;
    assert_eq!(first["pods"][0]["volume"][0]["name"], "data", "{first}");
    let used = |summary: &Value| {
        let pod = &summary["pods"][0];
        let cpu = pod["containers"][0]["cpu"]["usageCoreNanoSeconds"].as_u64();
        let volume = pod["volume"][0]["usedBytes"].as_u64();
        cpu > Some(0) && volume >= Some(1_000_000)
    };
    let whole = harness::eventually(WAIT_LIMIT, "the use of a pod", async || {
        let seen = summary(&served, "").await;
        if used(&seen) { Ok(seen) } else { Err(seen) }
    })
    .await;

    let node = &whole["node"];
    assert_eq!(node["nodeName"], "n1");
    for pointer in [
        "/cpu/usageCoreNanoSeconds",
        "/memory/workingSetBytes",
        "/memory/availableBytes",
        "/memory/usageBytes",
        "/memory/pageFaults",
        "/fs/capacityBytes",
        "/fs/usedBytes",
        "/runtime/imageFs/capacityBytes",
        "/rlimit/maxpid",
        "/rlimit/curproc",
    ] {
        let value = node.pointer(pointer).and_then(Value::as_u64);
        assert!(value > Some(0), "{pointer}: {value:?} in {node}");
    }
    let pod = &whole["pods"][0];
    let reference = json!({"name": "busy", "namespace": "default", "uid": uid});
    assert_eq!(pod["podRef"], reference, "{whole}");
    assert_eq!(pod["volume"][0]["name"], "data", "{pod}");
    assert!(pod["ephemeral-storage"]["usedBytes"].as_u64() >= Some(1_000_000), "{pod}");
    let app = &pod["containers"][0];
    assert_eq!(app["name"], "app");
    for pointer in ["/memory/workingSetBytes", "/logs/usedBytes", "/logs/capacityBytes"] {
        let value = app.pointer(pointer).and_then(Value::as_u64);
        assert!(value > Some(0), "{pointer}: {value:?} in {app}");
    }
    for pointer in [
        "/cpu/usageCoreNanoSeconds",
        "/memory/workingSetBytes",
        "/process_stats/process_count",
        "/ephemeral-storage/capacityBytes",
    ] {
        let value = pod.pointer(pointer).and_then(Value::as_u64);
        assert!(value > Some(0), "{pointer}: {value:?} in {pod}");
    }
    for time in [&pod["startTime"], &app["startTime"], &app["cpu"]["time"], &node["startTime"]] {
        let text = time.as_str().unwrap();
        assert!(text.ends_with('Z') && text.parse::<jiff::Timestamp>().is_ok(), "{time}");
    }

    let less = summary(&served, "?only_cpu_and_memory=true").await;
    assert_eq!(less["pods"][0]["podRef"], reference);
    for (object, fields) in [
        (&less["node"], &["fs", "network", "rlimit", "runtime", "io"][..]),
        (&less["pods"][0], &["network", "ephemeral-storage", "process_stats", "volume"]),
        (&less["pods"][0]["containers"][0], &["rootfs", "logs"]),
    ] {
        assert_ne!(object["memory"]["workingSetBytes"], Value::Null, "{object}");
        for field in fields {
            assert_eq!(object.get(field), None, "{object}");
        }
    }
    served.joined.delete_pod("busy", Some(1));
    harness::eventually(WAIT_LIMIT, "no pods", async || {
        let pods = summary(&served, "").await["pods"].clone();
        if pods == json!([]) { Ok(()) } else { Err(pods) }
    })
    .await;
    served.end().await;
}

#[tokio::test]
async fn metrics_have_the_names_and_times_of_a_kubelet() {
    let served = served().await;
    let before = jiff::Timestamp::now().as_millisecond();
    served.joined.create_pod(&busy());
    served.joined.wait_for_phase("busy", "Running").await;

    let labels = r#"{container="app",namespace="default",pod="busy"}"#;
    let cpu = format!("container_cpu_usage_seconds_total{labels}");
    let first = harness::eventually(WAIT_LIMIT, "a metric", async || {
        let text = metrics(&served, "/metrics/resource").await;
        let found = metric(&text, &cpu).filter(|(value, _)| *value > 0.0);
        found.map(|found| (text.clone(), found)).ok_or(text)
    })
    .await;
    let (text, (_, at)) = first;
    assert!(at >= Some(before), "{at:?} {before}");
    let memory = format!("container_memory_working_set_bytes{labels}");
    for name in [
        &memory,
        r#"pod_cpu_usage_seconds_total{namespace="default",pod="busy"}"#,
        r#"pod_memory_working_set_bytes{namespace="default",pod="busy"}"#,
        "node_cpu_usage_seconds_total",
        "node_memory_working_set_bytes",
    ] {
        let found = metric(&text, name);
        assert!(
            found.is_some_and(|(value, at)| value > 0.0 && at >= Some(before)),
            "{name} {found:?}"
        );
    }
    let started = metric(&text, &format!("container_start_time_seconds{labels}")).unwrap();
    assert!(started.0 * 1000.0 >= before as f64 - 1000.0 && started.1.is_none(), "{started:?}");
    assert_eq!(metric(&text, "resource_scrape_error"), Some((0.0, None)));
    let help = "# HELP container_memory_working_set_bytes [STABLE] Current working set of the container in bytes\n\
                # TYPE container_memory_working_set_bytes gauge\n";
    assert!(text.contains(help), "{text}");
    // metrics-server ignores values that are not newer than the last one.
    let (_, later) = metric(&metrics(&served, "/metrics/resource").await, &cpu).unwrap();
    assert!(later > at, "{later:?} {at:?}");

    let text = metrics(&served, "/metrics/cadvisor").await;
    let of_app = text.lines().find(|line| {
        let is_memory = line.starts_with("container_memory_working_set_bytes{container=\"app\",");
        is_memory && line.contains("namespace=\"default\",pod=\"busy\"")
    });
    assert!(of_app.is_some(), "{text}");
    let node = r#"container_cpu_usage_seconds_total{container="",cpu="total",id="/",image="",name="",namespace="",pod=""}"#;
    assert!(metric(&text, node).is_some_and(|(value, _)| value > 0.0), "{text}");
    let disk = text.lines().find(|line| {
        line.starts_with("container_fs_limit_bytes{container=\"\",device=")
            && line.contains("id=\"/\"")
    });
    assert!(disk.is_some(), "{text}");
    assert!(metric(&text, "machine_cpu_cores").is_some_and(|(value, _)| value >= 1.0));

    let text = metrics(&served, "/metrics").await;
    let logs = text.lines().find(|line| {
        line.starts_with("kubelet_container_log_filesystem_used_bytes{container=\"app\",namespace=\"default\",pod=\"busy\",uid=")
    });
    assert!(logs.is_some(), "{text}");
    // The pod may run before the node is ready.
    let text = harness::eventually(WAIT_LIMIT, "the start of the node", async || {
        let text = metrics(&served, "/metrics").await;
        let whole = metric(&text, "kubelet_node_startup_duration_seconds");
        if whole.is_some_and(|(seconds, _)| seconds > 0.0) { Ok(text) } else { Err(text) }
    })
    .await;
    for (name, value) in [
        (r#"kubelet_node_name{node="n1"}"#, 1.0),
        ("kubelet_running_pods", 1.0),
        (r#"kubelet_running_containers{container_state="running"}"#, 1.0),
        (r#"kubelet_desired_pods{static=""}"#, 1.0),
        ("kubelet_pod_start_duration_seconds_count", 1.0),
        (r#"kubernetes_feature_enabled{name="ContainerCheckpoint",stage="BETA"}"#, 1.0),
        (r#"kubernetes_feature_enabled{name="MemoryQoS",stage="ALPHA"}"#, 0.0),
    ] {
        assert_eq!(metric(&text, name).map(|(value, _)| value), Some(value), "{name} in {text}");
    }
    for name in [
        r#"kubelet_runtime_operations_total{operation_type="run_podsandbox"}"#,
        r#"kubelet_run_podsandbox_duration_seconds_count{runtime_handler=""}"#,
        r#"kubelet_runtime_operations_duration_seconds_count{operation_type="start_container"}"#,
        r#"kubelet_pod_worker_duration_seconds_count{operation_type="create"}"#,
        "kubelet_started_pods_total",
        "kubelet_pleg_relist_duration_seconds_count",
        "kubelet_pleg_last_seen_seconds",
        "kubelet_evented_pleg_connection_success_count",
        "kubelet_evented_pleg_connection_latency_seconds_count",
        "kubelet_node_startup_pre_registration_duration_seconds",
        "kubelet_node_startup_registration_duration_seconds",
        "kubelet_node_startup_post_registration_duration_seconds",
        // The test uses a token, not a certificate.
        "kubelet_certificate_manager_client_ttl_seconds",
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_resident_memory_bytes",
    ] {
        assert!(metric(&text, name).is_some_and(|(value, _)| value > 0.0), "{name} in {text}");
    }
    assert!(
        text.contains("kubernetes_build_info{") && text.contains("git_version=\"v1.36."),
        "{text}"
    );
    let host = "host=\"127.0.0.1:";
    let posted = |line: &str| {
        line.starts_with("rest_client_requests_total{code=\"201\",")
            && line.contains(host)
            && line.contains("method=\"POST\"")
    };
    assert!(text.lines().any(posted), "{text}");
    served.end().await;
}

#[tokio::test]
async fn local_volume_of_a_claim_is_measured() {
    let served = served().await;
    let joined = &served.joined;
    let disk = joined.place.path("disk");
    std::fs::create_dir(&disk).unwrap();
    let create = |object: Value| {
        let created = joined.server.store().create(object, jiff::Timestamp::now()).unwrap();
        created.value.clone()
    };
    let claim = create(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "pv", "resources": {"requests": {"storage": "1Gi"}}},
    }));
    let key = Key::new(Kind::of("v1", "PersistentVolumeClaim"), "default", "data");
    let bound = joined.server.store().change(&key, Part::Status, |claim| {
        claim["status"] = json!({"phase": "Bound"});
        Ok(())
    });
    bound.unwrap();
    create(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "pv"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "default", "name": "data", "uid": claim["metadata"]["uid"]},
            "local": {"path": disk},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
            ]}]}},
        },
    }));
    let manifest = pod("claims", "sleep 3600")
        + "    volumeMounts: [{name: v, mountPath: /v}]\n"
        + "  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]\n";
    joined.create_pod(&manifest);
    joined.wait_for_phase("claims", "Running").await;
    let seen = summary(&served, "").await;
    let volume = &seen["pods"][0]["volume"][0];
    assert_eq!(volume["name"], "v");
    assert_eq!(volume["pvcRef"], json!({"name": "data", "namespace": "default"}));
    let labels = r#"{namespace="default",persistentvolumeclaim="data"}"#;
    let text = metrics(&served, "/metrics").await;
    for name in ["capacity_bytes", "available_bytes", "used_bytes"] {
        let found = metric(&text, &format!("kubelet_volume_stats_{name}{labels}"));
        assert!(found.is_some_and(|(value, _)| value > 0.0), "{name} in {text}");
    }
    let plugin = "kubernetes.io/local-volume";
    let mounts = format!(
        r#"storage_operation_duration_seconds_count{{migrated="false",operation_name="volume_mount",status="success",volume_plugin="{plugin}"}}"#
    );
    let mounted = format!(
        r#"volume_manager_total_volumes{{plugin_name="{plugin}",state="actual_state_of_world"}}"#
    );
    for name in [&mounts, &mounted] {
        assert_eq!(metric(&text, name).map(|(value, _)| value), Some(1.0), "{name} in {text}");
    }
    // The next agent mounts nothing, and counts the existing mounts.
    let served = served.restarted().await;
    harness::eventually(WAIT_LIMIT, "the mounted volume", async || {
        let text = metrics(&served, "/metrics").await;
        let seen = metric(&text, &mounted).map(|(value, _)| value);
        if seen == Some(1.0) { Ok(()) } else { Err(text) }
    })
    .await;
    served.end().await;
}

#[tokio::test]
async fn probes_are_counted_while_they_are_in_use() {
    let served = served().await;
    let probes = "    readinessProbe: {exec: {command: ['true']}, periodSeconds: 1, timeoutSeconds: 30}\n    \
                  livenessProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 1000}\n    command:";
    let uid =
        served.joined.create_pod(&pod("probed", "sleep 3600").replace("    command:", probes));
    let name = |kind: &str, result: &str| {
        format!(
            "prober_probe_total{{container=\"app\",namespace=\"default\",pod=\"probed\",pod_uid=\"{uid}\",\
             probe_type=\"{kind}\",result=\"{result}\"}}"
        )
    };
    let text = harness::eventually(WAIT_LIMIT, "counted probes", async || {
        let text = metrics(&served, "/metrics/probes").await;
        let both = [name("Readiness", "successful"), name("Liveness", "failed")];
        let seen =
            both.iter().all(|name| metric(&text, name).is_some_and(|(count, _)| count >= 2.0));
        if seen { Ok(text) } else { Err(text) }
    })
    .await;
    assert_eq!(metric(&text, &name("Readiness", "failed")), None);
    let took = r#"prober_probe_duration_seconds_count{container="app",namespace="default",pod="probed",probe_type="Readiness"}"#;
    assert!(metric(&text, took).is_some_and(|(count, _)| count >= 2.0), "{text}");
    assert!(metric(&text, "process_start_time_seconds").is_some(), "{text}");

    served.joined.delete_pod("probed", Some(1));
    harness::eventually(WAIT_LIMIT, "no probes", async || {
        let text = metrics(&served, "/metrics/probes").await;
        if text.contains("prober_") { Err(text) } else { Ok(()) }
    })
    .await;
    served.end().await;
}

#[tokio::test]
async fn rights_are_asked_for_by_subresource() {
    let served = served().await;
    for (path, subresources) in [
        ("/stats/summary", "stats"),
        ("/stats/summary?only_cpu_and_memory=true", "stats"),
        ("/metrics", "metrics"),
        ("/metrics/resource", "metrics"),
        ("/metrics/cadvisor", "metrics"),
        ("/metrics/probes", "metrics"),
        ("/configz", "configz proxy"),
        ("/pods", "pods proxy"),
    ] {
        let unknown = answered(served.ask(path, None, None).await).await;
        assert_eq!(unknown, (401, "Unauthorized".to_owned()), "{path}");
        let words = format!(
            "Forbidden (user=visitor, verb=get, resource=nodes, subresource(s)=[{subresources}])\n"
        );
        let refused = answered(served.ask(path, None, Some(VISITOR)).await).await;
        assert_eq!(refused, (403, words), "{path}");
        assert_eq!(served.get(path).await.0, 200, "{path}");
    }
    let checks = ["", "/ping", "/log", "/syncloop", "/device-plugin"];
    for path in checks.map(|check| format!("/healthz{check}")) {
        let path = path.as_str();
        let answer = answered(served.ask(path, None, Some(VISITOR)).await).await;
        assert_eq!(answer, (200, "ok".to_owned()), "{path}");
    }
    let (_, words) = served.get("/healthz?verbose").await;
    let expected =
        "[+]ping ok\n[+]log ok\n[+]syncloop ok\n[+]device-plugin ok\nhealthz check passed\n";
    assert_eq!(words, expected);
    served.end().await;
}

#[tokio::test]
async fn other_methods_and_queries_are_answered_without_harm() {
    let served = served().await;
    for (method, path, status) in [
        (Method::POST, "/stats/summary", 200),
        (Method::PUT, "/stats/summary", 405),
        (Method::DELETE, "/metrics/resource", 405),
        (Method::PATCH, "/metrics", 405),
        (Method::POST, "/configz", 405),
        (Method::HEAD, "/metrics/resource", 200),
        (Method::HEAD, "/stats/summary", 405),
        (Method::GET, "/stats/summary?only_cpu_and_memory=%ff&&&=&%", 200),
        (Method::GET, "/stats/summary?only_cpu_and_memory=true&only_cpu_and_memory=false", 200),
        (Method::GET, "/metrics/resource?name[]=%00", 200),
        (Method::GET, "/stats/summary/none", 404),
        (Method::GET, "/stats/..%2Fmetrics", 404),
        (Method::GET, "/metrics/none", 404),
        (Method::GET, "/healthz/none", 404),
    ] {
        let answer = served.send(method.clone(), path, Some(&served.admin), None).await;
        let (seen, body) = answered(answer).await;
        assert_eq!(seen, status, "{method} {path}: {body}");
        assert!(method != Method::HEAD || body.is_empty(), "{method} {path}: {body}");
    }
    let answer = served.ask("/metrics/resource", Some(&served.admin), None).await;
    assert_eq!(answer.headers[CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    let answer = served.ask("/stats/summary", Some(&served.admin), None).await;
    assert_eq!(answer.headers[CONTENT_TYPE], "application/json");
    served.end().await;
}

#[tokio::test]
async fn configz_returns_effective_configuration() {
    let joined = Joined::new(ApiServer::start()).await;
    let config = joined.place.file(
        "kubelet.yaml",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         maxPods: 9\nevictionHard: {}\nsyncFrequency: 90s\nhealthzPort: 0\nauthorization: {webhook: {cacheUnauthorizedTTL: 1s}}\n",
    );
    let served = Served::with(joined, &["--config", &config, "--max-pods", "7"]).await;
    let (status, body) = served.get("/configz").await;
    assert_eq!(status, 200, "{body}");
    let shown: Value = serde_json::from_str(&body).unwrap();
    let shown = &shown["kubeletconfig"];
    let of_file = "kubelet.config.k8s.io/v1beta1";
    assert_eq!(
        (&shown["kind"], &shown["apiVersion"]),
        (&json!("KubeletConfiguration"), &json!(of_file))
    );
    assert_eq!(shown["maxPods"], 7);
    assert_eq!(shown["syncFrequency"], "1m30s");
    assert_eq!(shown["evictionHard"], json!({}));
    assert_eq!(shown["port"], served.port);
    assert_eq!((&shown["healthzPort"], &shown["readOnlyPort"]), (&json!(0), &json!(0)));
    assert_eq!(shown["authorization"]["webhook"]["cacheUnauthorizedTTL"], "1s");
    // The agent's own behaviour, not a kubelet's.
    assert_eq!((&shown["failSwapOn"], &shown["failCgroupV1"]), (&json!(false), &json!(false)));
    assert_eq!(
        (&shown["contentType"], &shown["eventRecordQPS"]),
        (&json!("application/json"), &json!(50))
    );
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert_eq!(shown["oomScoreAdj"].to_string(), own.trim());
    let parsed = kubelet_config::parse(&shown.to_string()).unwrap();
    let fields = kubelet_config::normalized(&parsed.document).unwrap();
    assert!(kubelet_config::check(&fields).is_ok_and(|it| it.without_effect.is_empty()), "{shown}");
    served.end().await;
}

/// Several agents on one machine: the first one gets the default health port, and the others get free ports.
#[tokio::test]
async fn taken_port_of_the_health_stops_no_agent() {
    let joined = Joined::new(ApiServer::start()).await;
    // Another test's agent may use it for a while.
    let taken = harness::eventually(WAIT_LIMIT, "the port", async || {
        std::net::TcpListener::bind("127.0.0.1:10248").map_err(|error| error.to_string())
    })
    .await;
    let config = format!("{KUBELET_CONFIGURATION}evictionHard: {{}}\n");
    let config = joined.place.file("default_port.yaml", &config);
    let mut agent = joined.agent(&["--config", &config]);
    let line = agent.err_line_with("healthz port is in use").await;
    let port = line.split_once(" port=").unwrap().1.split(' ').next().unwrap();
    std::net::TcpStream::connect(("127.0.0.1", port.parse::<u16>().unwrap())).unwrap();
    joined.wait_for_ready_node().await;
    agent.stop().await;
    let ended = joined.agent(&["--healthz-port", "10248"]).end().await;
    ended.exits(2).err_has("--healthz-port: failed to bind 127.0.0.1:10248");
    drop(taken);
    joined.end_runtime().await;
}
