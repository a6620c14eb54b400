//! Flags of `crib agent` with a kubelet's names, its configuration file, and its HTTP endpoints.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::command::*;

/// A pod of one long-running container, with these lines in its spec and in its container.
pub(crate) fn pod(name: &str, spec: &str, container: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n{spec}  containers: \
         [{{name: app, image: crib.local/host, command: [sleep, '3600']{container}}}]\n"
    )
}

/// A port that nothing listens on.
pub(crate) fn free_port() -> u16 {
    harness::ports::free().unwrap()
}

/// The status line and the body of the response; `None` if nothing listens.
pub(crate) async fn get(port: u16, path: &str) -> Option<(String, String)> {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.lines().next()?.trim_start_matches("HTTP/1.1 ");
    Some((status.to_owned(), body.to_owned()))
}

/// The pods that the agent reports: names, phases and reasons, sorted.
pub(crate) async fn shown(port: u16) -> (Vec<String>, Value) {
    let Some((_, body)) = get(port, "/pods").await else {
        return (Vec::new(), Value::Null);
    };
    let list: Value = serde_json::from_str(&body).unwrap();
    let items = list["items"].as_array().unwrap();
    let line = |pod: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (name, status) = (text(&pod["metadata"]["name"]), &pod["status"]);
        format!("{name} {} {}", text(&status["phase"]), text(&status["reason"]))
    };
    let mut lines: Vec<String> = items.iter().map(line).collect();
    lines.sort();
    (lines, list)
}

/// Waits until the agent reports these pods, and returns the list.
pub(crate) async fn wait_until_shown(port: u16, expected: &[&str]) -> Value {
    harness::eventually(WAIT_LIMIT, &format!("the pods {expected:?}"), async || {
        let (seen, list) = shown(port).await;
        if seen == expected { Ok(list) } else { Err(seen) }
    })
    .await
}

#[tokio::test]
async fn agent_takes_pods_by_its_flags_and_configuration() {
    let place = Place::unchecked();
    let (runtime, endpoint) = place.runtime().await;
    let config = place.file(
        "kubelet.yaml",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 1\nallowedUnsafeSysctls: [kernel.msg*]\n\
         cpuManagerPolicy: none\niptablesDropBit: 7\nsystemReserved: {memory: 1Gi}\n",
    );
    place.file("pods/elsewhere.yaml", &pod("elsewhere", "  nodeSelector: {disk: ssd}\n", ""));
    place.file("pods/intolerant.yaml", &pod("intolerant", "  nodeSelector: {disk: hdd}\n", ""));
    let tolerant = "  tolerations: [{operator: Exists}]\n";
    place.file(
        "pods/a.yaml",
        &pod(
            "a",
            &format!("{tolerant}  nodeSelector: {{disk: hdd, kubernetes.io/os: linux}}\n"),
            "",
        ),
    );
    let (health, pods) = (free_port(), free_port());
    let (health_flag, pods_flag) = (health.to_string(), pods.to_string());
    let given = ["--config", &config, "--max-pods", "2", "--read-only-port", &pods_flag];
    let start = |more: &[&str]| {
        Running::start(place.agent(&endpoint, "pods", &[&given[..], more].concat()))
    };
    let of_first = [
        "--node-labels",
        "disk=hdd",
        "--register-with-taints",
        "only=tests:NoExecute",
        "--event-driven-pleg=false",
        "--healthz-port",
        &health_flag,
    ];
    let agent = start(&of_first);
    let wait_for = async |expected: &[&str]| wait_until_shown(pods, expected).await;
    let (a, others) =
        ("a Running ", ["elsewhere Failed NodeAffinity", "intolerant Failed TaintToleration"]);
    let list = wait_for(&[a, others[0], others[1]]).await;
    assert_eq!((list["kind"].as_str(), list["apiVersion"].as_str()), (Some("PodList"), Some("v1")));
    let running = &list["items"].as_array().unwrap().iter();
    let running = running.clone().find(|pod| pod["metadata"]["name"] == "a").unwrap();
    let ip = |field: &str| running["status"][field].as_str().unwrap_or_default().to_owned();
    assert_ne!(ip("hostIP"), ip("podIP"), "{running}");
    let routed = agent::local_node::node_address::of_default_route();
    if !routed.is_loopback() {
        assert_ne!(ip("hostIP"), "127.0.0.1", "{running}");
    }

    // Flags take precedence over the file, and the file over the defaults: two pods, and an unsafe sysctl.
    let sysctl = "  securityContext: {sysctls: [{name: kernel.msgmax, value: '8192'}]}\n";
    place.file("pods/b.yaml", &pod("b", &format!("{tolerant}{sysctl}"), ""));
    wait_for(&[a, "b Running ", others[0], others[1]]).await;
    place.file("pods/c.yaml", &pod("c", tolerant, ""));
    wait_for(&[a, "b Running ", "c Failed OutOfpods", others[0], others[1]]).await;

    assert_eq!(get(health, "/healthz").await, Some(("200 OK".to_owned(), "ok".to_owned())));
    for (port, path) in [(health, "/pods"), (pods, "/exec")] {
        let (status, _) = get(port, path).await.unwrap();
        assert_eq!(status, "404 Not Found", "{path}");
    }
    agent.signal(Signal::SIGTERM);
    let ended = agent.end().await.exits(0);
    for words in [
        "configuration fields have no effect fields=\"iptablesDropBit (",
        "runtime=\"crib ",
        "starting",
    ] {
        assert!(ended.err.contains(words), "no {words:?} in:\n{}", ended.err);
    }

    // The next agent finds the running pods.
    let next = start(&[]);
    wait_for(&[a, "b Running ", "c Failed OutOfpods", others[0], others[1]]).await;
    next.signal(Signal::SIGTERM);
    let ended = next.end().await;
    let adopted = |name: &str| format!("adopted pod pod=default/{name} running=1");
    for words in [adopted("a"), adopted("b")] {
        assert!(ended.err.contains(&words), "no {words:?} in:\n{}", ended.err);
    }
    runtime.stop().await;
}

#[tokio::test]
async fn bad_values_exit_2_with_the_flag_in_the_message() {
    let place = Place::unchecked();
    place.file("pods/a.yaml", &pod("a", "", ""));
    let other = place.file("other.yaml", "kind: Pod\n");
    let wrong = place.file(
        "wrong.yaml",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nsystemReserved: {gpu: '1'}\n",
    );
    for (flags, words) in [
        (&["--node-ip", "127.0.0.1"][..], "--node-ip: 127.0.0.1 is a loopback"),
        (&["--container-log-max-files", "1"], "--container-log-max-files: a log needs at least 2"),
        (
            &["--container-log-max-size", "big"],
            "--container-log-max-size: \"big\" is not a quantity",
        ),
        (
            &["--image-gc-low-threshold", "50"],
            "--image-gc-low-threshold needs --image-gc-high-threshold",
        ),
        (
            &["--serialize-image-pulls", "--max-parallel-image-pulls", "3"],
            "--serialize-image-pulls allows only one pull",
        ),
        (&["--config", &other], "expected apiVersion kubelet.config.k8s.io/v1beta1"),
        (&["--config", &wrong], "--config: systemReserved: cannot reserve \"gpu\""),
        (&["--config", "/nowhere"], "failed to read --config /nowhere"),
    ] {
        let ended = place.end(place.agent("unix:///nowhere", "pods", flags)).await;
        assert_eq!(ended.code, Some(2), "{flags:?}: {ended:?}");
        assert!(ended.err.contains(words), "{flags:?}: {ended:?}");
    }
}
