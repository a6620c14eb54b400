//! A pod's lifecycle by hand, with the commands and files of crictl.

use crate::command::*;

struct Client {
    place: Place,
    runtime: Runtime,
}

impl Client {
    async fn start() -> Self {
        let runtime = Runtime::with().start().await.unwrap();
        Self { place: Place::unchecked(), runtime }
    }

    async fn run(&self, args: &[&str]) -> Ended {
        let socket = self.runtime.socket().display().to_string();
        let mut all = vec!["-r", socket.as_str()];
        all.extend(args);
        self.place.crib(&all).await
    }

    /// The output of a command that must succeed, without its final newline.
    async fn out(&self, args: &[&str]) -> String {
        let ended = self.run(args).await;
        assert_eq!(ended.code, Some(0), "crib {args:?}: {ended:?}");
        ended.out.trim_end().to_owned()
    }

    async fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.out(args).await).unwrap()
    }

    /// Files for a pod, and for a container that runs until it is stopped.
    fn configs(&self) -> (String, String) {
        let logs = self.place.path("logs");
        std::fs::create_dir_all(&logs).unwrap();
        let pod = json!({
            "metadata": {"name": "web", "namespace": "test"},
            "log_directory": logs, "labels": {"app": "web"}, "linux": {},
        });
        // YAML with the CRI's field names, and a limit as a number.
        let container = "metadata: {name: main}\nimage: {image: crib.local/host}\nlog_path: main.log\n\
            command: [sh, -c, 'echo started; trap exit TERM; while :; do sleep 0.1; done']\n\
            linux: {resources: {memory_limit_in_bytes: 67108864}}\n";
        (
            self.place.file("pod.json", &pod.to_string()),
            self.place.file("container.yaml", container),
        )
    }
}

#[tokio::test]
async fn pod_lives_by_commands_of_crictl() {
    let client = Client::start().await;
    let (pod_config, config) = client.configs();
    let pod = client.out(&["runp", &pod_config]).await;
    assert_eq!(client.out(&["pods", "-q", "--state", "ready"]).await, pod);
    let status = client.json(&["inspectp", &pod]).await;
    let uid = status["status"]["metadata"]["uid"].as_str().unwrap();
    assert_eq!(uid.len(), 36, "a pod without uid gets one: {uid}");

    let container = client.out(&["create", &pod, &config, &pod_config]).await;
    let status = client.json(&["inspect", &container]).await;
    assert_eq!(status["status"]["state"], "CONTAINER_CREATED");
    assert_eq!(status["status"]["startedAt"], "0001-01-01T00:00:00Z");
    assert_eq!(client.out(&["start", &container]).await, container);
    let log = client.place.path("logs/main.log");
    eventually("the first line", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.contains("started") { vec![] } else { vec![text] }
    })
    .await;

    let running = client.run(&["rm", &container]).await.exits(1);
    assert_eq!(
        running.err,
        format!("crib: container {container} is running: stop it first, or use --force\n")
    );
    assert_eq!(client.out(&["stop", "--timeout", "30", &container]).await, container);
    let status = client.json(&["inspect", &container]).await;
    assert_eq!(status["status"]["state"], "CONTAINER_EXITED");
    assert_eq!(client.out(&["rm", &container]).await, container);
    assert!(!log.exists(), "rm removes the log");

    let container = client.out(&["create", &pod, &config, &pod_config]).await;
    client.out(&["start", &container]).await;
    assert_eq!(client.out(&["stop", "--all"]).await, container);
    assert_eq!(client.out(&["stop", "-a"]).await, "No running containers found.");
    assert_eq!(client.out(&["rm", "-k", "--all"]).await, container);
    assert!(log.exists(), "--keep-logs keeps the log");

    let ready = client.run(&["rmp", &pod]).await.exits(1);
    ready.err_has("is running: stop it first");
    assert_eq!(client.out(&["stopp", &pod]).await, format!("Stopped sandbox {pod}"));
    assert_eq!(client.out(&["rmp", &pod]).await, format!("Removed sandbox {pod}"));
    let pod = client.out(&["runp", &pod_config]).await;
    let removed = client.out(&["rmp", "-fa"]).await;
    assert_eq!(removed, format!("Stopped sandbox {pod}\nRemoved sandbox {pod}"));
    assert_eq!(client.out(&["pods", "-q"]).await, "");
}

#[tokio::test]
async fn info_shows_runtime_and_its_usage() {
    let client = Client::start().await;
    let (pod_config, config) = client.configs();
    let pod = client.out(&["runp", &pod_config]).await;
    let container = client.out(&["create", &pod, &config, &pod_config]).await;
    client.out(&["start", &container]).await;

    let info = client.json(&["info"]).await;
    assert_eq!(info["status"]["conditions"][0]["type"], "RuntimeReady");
    assert!(info["runtimeHandlers"].is_array(), "{info}");
    let usage = client.json(&["imagefsinfo"]).await;
    assert!(usage["status"]["imageFilesystems"][0]["timestamp"].is_string(), "{usage}");
    let stats = client.json(&["statsp", "-o", "json", &pod]).await;
    assert_eq!(stats["stats"][0]["attributes"]["id"], *pod);
    let table = client.out(&["statsp", "--seconds", "0.1"]).await;
    assert!(table.starts_with("POD ") && table.contains(&pod[..13]), "{table}");
    let metrics = client.json(&["metricsp"]).await;
    assert_eq!(metrics["podMetrics"][0]["podSandboxId"], *pod);
    let descriptors = client.json(&["metricdescs"]).await;
    assert!(descriptors["descriptors"][0]["name"].is_string(), "{descriptors}");
    let driver = client.out(&["runtime-config"]).await;
    assert!(driver.starts_with("cgroup driver:   "), "{driver}");
    let other = client.run(&["update-runtime-config", "--pod-cidr", "10.88.0.0/16"]).await;
    other.err_has("takes effect after they are removed");
}

#[tokio::test]
async fn limits_and_checkpoints_are_passed_to_runtime() {
    let client = Client::start().await;
    let (pod_config, config) = client.configs();
    let pod = client.out(&["runp", &pod_config]).await;
    let container = client.out(&["create", &pod, &config, &pod_config]).await;
    // Not started: limits that cannot be applied here are reported, and the call succeeds.
    let updated = client.run(&["update", "--memory", "134217728", &container]).await;
    assert_eq!(updated.out.trim_end(), container, "{updated:?}");
    let status = client.json(&["inspect", &container]).await;
    let limit = &status["status"]["resources"]["linux"]["memoryLimitInBytes"];
    assert_eq!(limit, "134217728");
    let refused =
        client.run(&["checkpoint", "--export", "relative.tar", &container]).await.exits(1);
    refused.err_begins("crib: CheckpointContainer: ");
}

#[tokio::test]
async fn configurations_are_checked() {
    let client = Client::start().await;
    let (pod_config, config) = client.configs();
    let pod = client.out(&["runp", &pod_config]).await;
    let place = &client.place;
    let nameless = place.file("nameless.json", r#"{"metadata": {"name": "x"}}"#);
    let imageless = place.file("imageless.yaml", "metadata: {name: x}\n");
    let broken = place.file("broken.json", "{\"metadata\": 3}");
    for (args, sentence) in [
        (&["runp", &nameless][..], "nameless.json: set metadata.name and metadata.namespace"),
        (&["runp", &broken], "invalid configuration "),
        (&["runp", "/nowhere.json"], "failed to read the configuration /nowhere.json"),
        (&["create", &pod, &imageless, &pod_config], "imageless.yaml: set image.image"),
        (&["create", &pod, &config], "<POD-CONFIG>"),
        (&["stop"], "<CONTAINER>"),
        (&["checkpoint", "x"], "--export"),
    ] {
        let ended = client.run(args).await;
        assert_eq!(ended.code, Some(2), "{args:?}: {ended:?}");
        assert!(ended.err.contains(sentence), "{args:?}: {}", ended.err);
    }
    let typo = place.file(
        "typo.json",
        r#"{"metadata": {"name": "x", "namespace": "test"}, "log_directroy": "/x"}"#,
    );
    let ended = client.run(&["runp", &typo]).await.exits(0);
    ended.err_has("typo.json: ignored: ");
    ended.err_has("log_directroy");
}
