//! Debugging handlers of the agent's HTTPS server: commands without a stream, checkpoints, logs of the node, statusz and flagz.

use http::Method;
use http::header::CONTENT_TYPE;

use super::api_server::{ApiServer, VISITOR};
use super::joined::{Joined, pod};
use super::server_client::{Served, answered};

/// The administrator's response to a request with this method.
async fn sent(served: &Served, method: Method, path: &str) -> (u16, String) {
    answered(served.send(method, path, Some(&served.admin), None).await).await
}

#[tokio::test]
async fn run_answers_with_the_output_of_a_command() {
    let served = Served::new(Joined::new(ApiServer::start()).await).await;
    let uid = served.joined.create_pod(&pod("p", "sleep 3600"));
    served.joined.wait_for_phase("p", "Running").await;
    let run = async |path: &str| sent(&served, Method::POST, &format!("/run/default/{path}")).await;
    for path in ["p/app".to_owned(), format!("p/{uid}/app")] {
        let answer = run(&format!("{path}?cmd=echo+hello%20you")).await;
        assert_eq!(answer, (200, "hello you\n".to_owned()), "{path}");
    }
    let answer =
        served.send(Method::POST, "/run/default/p/app?cmd=true", Some(&served.admin), None).await;
    assert_eq!(answer.headers[CONTENT_TYPE], "application/json");
    for (path, status, words) in [
        ("p/app?cmd=ls+/none", 500, "command 'ls /none' exited with 2: "),
        ("p/none?cmd=true", 500, "container not found (\"none\")"),
        ("none/app?cmd=true", 404, "pod does not exist"),
        ("p/other-uid/app?cmd=true", 404, "pod not found"),
    ] {
        let (seen, body) = run(path).await;
        assert!(seen == status && body.starts_with(words), "{path}: {seen} {body}");
    }
    // There is no command to run.
    assert_eq!(run("p/app").await.0, 500);
    assert_eq!(sent(&served, Method::GET, "/run/default/p/app?cmd=true").await.0, 405);
    served.end().await;
}

#[tokio::test]
async fn checkpoint_reports_why_it_failed() {
    let served = Served::new(Joined::new(ApiServer::start()).await).await;
    served.joined.create_pod(&pod("p", "sleep 3600"));
    served.joined.wait_for_phase("p", "Running").await;
    for (path, status, words) in [
        ("p/none", 404, "container none does not exist"),
        ("none/app", 404, "pod does not exist"),
        ("p/app?timeout=x", 404, "cannot parse value of timeout parameter"),
        (
            "p/app?timeout=-1",
            500,
            "checkpointing of default/p/app failed (CheckpointContainer requires the timeout value to be > 0)",
        ),
        // The image is the machine's root, which the runtime does not write to an archive.
        ("p/app", 500, "checkpointing of default/p/app failed (rpc error: code = "),
    ] {
        let path = format!("/checkpoint/default/{path}");
        let (seen, body) = sent(&served, Method::POST, &path).await;
        assert!(seen == status && body.starts_with(words), "{path}: {seen} {body}");
    }
    assert_eq!(sent(&served, Method::GET, "/checkpoint/default/p/app").await.0, 405);
    let left = std::fs::read_dir(served.joined.place.path("root/checkpoints")).unwrap();
    assert_eq!(left.count(), 0);
    served.end().await;
}

#[tokio::test]
async fn debug_endpoints_need_their_subresource() {
    let served = Served::new(Joined::new(ApiServer::start()).await).await;
    for (method, path, subresource) in [
        ("get", "/logs/", "log"),
        ("get", "/statusz", "statusz"),
        ("get", "/flagz", "configz"),
        ("get", "/metrics/slis", "metrics"),
        ("get", "/debug/pprof/", "proxy"),
        ("create", "/run/a/b/c", "proxy"),
        ("create", "/checkpoint/a/b/c", "checkpoint"),
    ] {
        let by = if method == "get" { Method::GET } else { Method::POST };
        let refused = answered(served.send(by, path, None, Some(VISITOR)).await).await;
        let words = format!(
            "Forbidden (user=visitor, verb={method}, resource=nodes, subresource(s)=[{subresource}])\n"
        );
        assert_eq!(refused, (403, words), "{path}");
    }
    let (status, page) = served.get("/logs/").await;
    assert!(status == 200 && page.starts_with("<!doctype html>\n"), "{status} {page}");
    for path in ["/logs/../../etc/passwd", "/logs/..%2f..%2fetc%2fpasswd", "/logs//etc/passwd"] {
        assert_eq!(served.get(path).await, (404, "404 page not found\n".to_owned()), "{path}");
    }
    // A kubelet without enableSystemLogQuery ignores queries.
    assert_eq!(served.get("/logs/?query=kubelet").await, (200, page));

    let (status, text) = served.get("/statusz").await;
    assert!(status == 200 && text.contains("\nBinary version: 1.36."), "{status} {text}");
    let (status, text) = served.get("/flagz").await;
    assert!(status == 200 && text.contains("\nnode-name=n1\n"), "{status} {text}");

    let disabled = |what: &str| (405, format!("{what} endpoint is disabled.\n"));
    assert_eq!(served.get("/debug/pprof/heap").await, disabled("profiling"));
    assert_eq!(sent(&served, Method::PUT, "/debug/flags/v").await, disabled("flags"));

    assert_eq!(served.get("/healthz").await.0, 200);
    let successes =
        r#"kubernetes_healthchecks_total{name="syncloop",status="success",type="healthz"} "#;
    let (_, text) = served.get("/metrics/slis").await;
    assert!(text.contains(successes), "{text}");
    let reset = sent(&served, Method::DELETE, "/metrics/slis").await;
    assert_eq!(reset, (200, "metrics reset\n".to_owned()));
    let (_, text) = served.get("/metrics/slis").await;
    assert!(!text.contains(successes), "{text}");

    let (_, text) = served.get("/metrics").await;
    let requests = "kubelet_http_requests_total{long_running=\"false\",method=\"GET\",path=\"healthz\",server_type=\"readwrite\"} 1\n";
    assert!(text.contains(requests), "{text}");
    served.end().await;
}

/// A node with these fields in its configuration.
async fn configured(fields: &str) -> Served {
    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let joined = Joined::new(ApiServer::start()).await;
    let config =
        joined.place.file("kubelet.yaml", &format!("{HEAD}evictionHard: {{}}\n{fields}\n"));
    Served::with(joined, &["--config", &config]).await
}

#[tokio::test]
async fn log_and_checkpoint_handlers_can_be_disabled() {
    let fields = "enableSystemLogHandler: false\n\
        featureGates: {ComponentFlagz: false, ContainerCheckpoint: false, PodLogsQuerySplitStreams: false}";
    let served = configured(fields).await;
    let disabled = (405, "logs endpoint is disabled.\n".to_owned());
    assert_eq!(served.get("/logs/syslog").await, disabled);
    assert_eq!(sent(&served, Method::POST, "/checkpoint/a/b/c").await.0, 404);
    assert_eq!(served.get("/flagz").await.0, 404);
    assert_eq!(served.get("/statusz").await.0, 200);
    served.joined.create_pod(&pod("p", "sleep 3600"));
    served.joined.wait_for_phase("p", "Running").await;
    let log = "/containerLogs/default/p/app?stream";
    assert_eq!(served.get(&format!("{log}=All")).await.0, 200);
    let (status, text) = served.get(&format!("{log}=Stdout")).await;
    assert!(status == 400 && text.contains("PodLogsQuerySplitStreams"), "{status} {text}");
    served.end().await;
}

#[tokio::test]
async fn debug_endpoints_are_refused_without_debugging_handlers() {
    let served = configured("enableDebuggingHandlers: false").await;
    let disabled = (405, "Debug endpoints are disabled.\n".to_owned());
    for path in ["/logs/", "/containerLogs/a/b/c", "/exec/a/b/c", "/runningpods/"] {
        assert_eq!(served.get(path).await, disabled, "{path}");
    }
    assert_eq!(served.get("/configz").await.0, 404);
    assert_eq!(served.get("/pods").await.0, 200);
    served.end().await;
}
