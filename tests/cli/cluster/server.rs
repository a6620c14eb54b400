//! The agent's HTTPS server: authentication and authorization, pods, and logs.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::api_server::{ApiServer, VISITOR};
use super::joined::{Joined, pod};
use super::server_client::{Authority, Pair, Served, answered};
use crate::command::*;

const TOKEN_REVIEWS: &str = "POST /apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews";

#[tokio::test]
async fn server_admits_clients_whom_the_api_server_allows() {
    let served = Served::new(Joined::new(ApiServer::start()).await).await;
    let node = served.joined.node();
    let endpoint = json!({"kubeletEndpoint": {"Port": served.port}});
    assert_eq!(node["status"]["daemonEndpoints"], endpoint);

    let refused = (401, "Unauthorized".to_owned());
    let foreign = Authority::new().client("kube-apiserver-kubelet-client", "system:masters");
    for (pair, token) in [(None, None), (None, Some("wrong")), (Some(&foreign), None)] {
        let answer = answered(served.ask("/pods", pair, token).await).await;
        assert_eq!(answer, refused, "{token:?}");
    }
    let api_server = &served.joined.server;
    assert_eq!(api_server.count(TOKEN_REVIEWS), 1);
    assert_eq!(api_server.count(ACCESS_REVIEWS), 0);

    // Decisions are cached: the API server is asked once for each subresource.
    for _ in 0..2 {
        let answer = answered(served.ask("/pods", None, Some(VISITOR)).await).await;
        let words =
            "Forbidden (user=visitor, verb=get, resource=nodes, subresource(s)=[pods proxy])\n";
        assert_eq!(answer, (403, words.to_owned()));
        let answer = answered(served.ask("/healthz", None, Some(VISITOR)).await).await;
        assert_eq!(answer, (200, "ok".to_owned()));
        // A valid token is accepted together with an invalid certificate.
        let answer = answered(served.ask("/healthz", Some(&foreign), Some(VISITOR)).await).await;
        assert_eq!(answer, (200, "ok".to_owned()));
    }
    assert_eq!(api_server.count(TOKEN_REVIEWS), 2);
    assert_eq!(api_server.count(ACCESS_REVIEWS), 3);
    // The same path in another encoding.
    let answer = answered(served.ask("/%70ods", None, Some(VISITOR)).await).await;
    assert_eq!(answer.0, 403);

    served.joined.create_pod(&pod("shown", "sleep 3600"));
    served.joined.wait_for_phase("shown", "Running").await;
    for path in ["/pods", "/runningpods/"] {
        let (status, body) = served.get(path).await;
        let list: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &list["kind"]), (200, &json!("PodList")), "{path}");
        assert_eq!(list["items"][0]["metadata"]["name"], "shown", "{path}");
        assert_eq!(list["items"][0]["spec"]["containers"][0]["name"], "app", "{path}");
    }
    assert_eq!(served.get("/nothing").await.0, 404);
    served.end().await;
}

#[tokio::test]
async fn authorities_of_clients_are_read_again_when_their_file_changes() {
    let served = Served::new(Joined::new(ApiServer::start()).await).await;
    let next = Authority::new();
    let admin = next.client("kube-apiserver-kubelet-client", "system:masters");
    let status = async |pair: &Pair| {
        let answer = answered(served.ask("/healthz", Some(pair), None).await).await;
        answer.0
    };
    assert_eq!((status(&served.admin).await, status(&admin).await), (200, 401));
    served.joined.place.file("clients.crt", &next.pem());
    assert_eq!((status(&served.admin).await, status(&admin).await), (401, 200));
    // An invalid file has no effect.
    served.joined.place.file("clients.crt", "no certificate");
    assert_eq!((status(&served.admin).await, status(&admin).await), (401, 200));
    served.end().await;
}

#[tokio::test]
async fn server_refuses_when_the_api_server_is_away() {
    let mut served = Served::new(Joined::new(ApiServer::start()).await).await;
    assert_eq!(served.get("/healthz").await.0, 200);
    served.joined.server.go().await;
    let answer = answered(served.ask("/healthz", None, Some(VISITOR)).await).await;
    assert_eq!(answer, (401, "Unauthorized".to_owned()));
    let (status, words) = served.get("/stats/summary").await;
    assert_eq!(status, 500);
    assert!(
        words.starts_with("Authorization error (user=kube-apiserver-kubelet-client"),
        "{words}"
    );
    // What was allowed remains allowed.
    assert_eq!(served.get("/healthz").await.0, 200);
    served.end().await;
}

#[tokio::test]
async fn reviews_are_repeated_if_the_api_server_fails() {
    let served = Served::new(Joined::new(ApiServer::start()).await).await;
    let api_server = &served.joined.server;
    let path = |reviews: &str| reviews.trim_start_matches("POST ").to_owned();
    api_server.fail(&path(ACCESS_REVIEWS), 2);
    assert_eq!(served.get("/healthz").await, (200, "ok".to_owned()));
    assert_eq!(api_server.count(ACCESS_REVIEWS), 3);
    api_server.fail(&path(TOKEN_REVIEWS), 1);
    let answer = answered(served.ask("/healthz", None, Some(VISITOR)).await).await;
    assert_eq!(answer, (200, "ok".to_owned()));
    assert_eq!(api_server.count(TOKEN_REVIEWS), 2);
    served.end().await;
}

#[tokio::test]
async fn anonymous_clients_are_served_if_configured() {
    let joined = Joined::new(ApiServer::start()).await;
    let config = joined.place.file(
        "kubelet.yaml",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         authentication: {anonymous: {enabled: true}}\nauthorization: {mode: AlwaysAllow}\nevictionHard: {}\n",
    );
    let served = Served::with(joined, &["--config", &config]).await;
    let answer = answered(served.ask("/healthz", None, None).await).await;
    assert_eq!(answer, (200, "ok".to_owned()));
    // An invalid token is worse than none.
    let answer = answered(served.ask("/healthz", None, Some("wrong")).await).await;
    assert_eq!(answer.0, 401);
    assert_eq!(served.joined.server.count(ACCESS_REVIEWS), 0);
    served.end().await;
}

#[tokio::test]
async fn logs_are_those_of_the_container() {
    let joined = Joined::new(ApiServer::start()).await;
    let config = joined.place.file(
        "kubelet.yaml",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         featureGates: {PodLogsQuerySplitStreams: true}\nevictionHard: {}\n",
    );
    let served = Served::with(joined, &["--config", &config]).await;
    let script = "echo one; echo two; echo three; until test -e /tmp/end; do sleep 0.05; done; echo four >&2";
    served.joined.create_pod(&pod("talks", script));
    served.joined.wait_for_phase("talks", "Running").await;
    let path = "/containerLogs/default/talks/app";
    harness::eventually(WAIT_LIMIT, "three lines", async || {
        let seen = served.get(path).await;
        if seen == (200, "one\ntwo\nthree\n".to_owned()) { Ok(()) } else { Err(seen) }
    })
    .await;
    for (query, expected) in [
        ("tailLines=1", "three\n"),
        ("tailLines=0", ""),
        ("stream=Stdout", "one\ntwo\nthree\n"),
        ("stream=Stderr", ""),
        ("limitBytes=5", "one\nt"),
        ("sinceTime=2100-01-01T00:00:00Z", ""),
        ("sinceSeconds=3600&tailLines=2", "two\nthree\n"),
    ] {
        let seen = served.get(&format!("{path}?{query}")).await;
        assert_eq!(seen, (200, expected.to_owned()), "{query}");
    }
    let (_, timed) = served.get(&format!("{path}?timestamps=true&tailLines=1")).await;
    let (time, text) = timed.split_once(' ').unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok() && text == "three\n", "{timed}");

    let it = "container \"app\" in pod \"talks\"";
    for (path, status, words) in [
        ("/containerLogs/default/none/app", 404, "pod \"none\" does not exist".to_owned()),
        ("/containerLogs/other/talks/app", 404, "pod \"talks\" does not exist".to_owned()),
        (
            "/containerLogs/default/talks/none",
            404,
            "container \"none\" not found in pod \"talks\"".to_owned(),
        ),
        ("/containerLogs/default/..%2Ftalks/app", 404, "404: Page Not Found".to_owned()),
        (
            "/containerLogs/default/talks/app?tailLines=x",
            400,
            "{\"message\": \"Unable to decode query.\"}".to_owned(),
        ),
        (
            "/containerLogs/default/talks/app?tailLines=-1",
            422,
            "{\"message\": \"Invalid request.\"}".to_owned(),
        ),
        (
            "/containerLogs/default/talks/app?previous=true",
            400,
            format!("previous terminated {it} not found"),
        ),
    ] {
        assert_eq!(served.get(path).await, (status, words), "{path}");
    }

    // Later lines are sent immediately, and the response ends with the container.
    let follow = format!("{path}?follow=true&tailLines=1");
    let mut following = served.ask(&follow, Some(&served.admin), None).await;
    let first = tokio::time::timeout(WAIT_LIMIT, following.chunk()).await.unwrap().unwrap();
    assert_eq!(first.unwrap(), "three\n");
    let args =
        ["exec", "--runtime-endpoint", served.joined.endpoint(), "talks", "touch", "/tmp/end"];
    served.joined.place.crib(&args).await.exits(0);
    let rest = tokio::time::timeout(WAIT_LIMIT, answered(following)).await.unwrap();
    assert_eq!(rest, (200, "four\n".to_owned()));
    for (stream, expected) in [("Stdout", "one\ntwo\nthree\n"), ("Stderr", "four\n")] {
        let seen = served.get(&format!("{path}?stream={stream}")).await;
        assert_eq!(seen, (200, expected.to_owned()), "{stream}");
    }
    served.end().await;
}

#[tokio::test]
async fn waiting_container_has_no_log() {
    let served = Served::new(Joined::new(ApiServer::start()).await).await;
    let waits = pod("waits", "true")
        .replace("    command:", "    envFrom: [{configMapRef: {name: missing}}]\n    command:");
    served.joined.create_pod(&waits);
    let reason =
        |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
    let is_waiting = |pod: &Value| reason(pod) == "CreateContainerConfigError";
    served.joined.wait_for_pod("waits", "its container waits", is_waiting).await;
    let words =
        "container \"app\" in pod \"waits\" is waiting to start: CreateContainerConfigError";
    assert_eq!(served.get("/containerLogs/default/waits/app").await, (400, words.to_owned()));
    served.end().await;
}

#[tokio::test]
async fn unauthorized_clients_do_not_block_server() {
    let served = Served::new(Joined::new(ApiServer::start()).await).await;
    // More idle connections than the limit, some of them after a handshake.
    let mut silent = Vec::new();
    let mut greeted = Vec::new();
    for _ in 0..80 {
        silent.push(TcpStream::connect(("127.0.0.1", served.port)).await.unwrap());
    }
    for _ in 0..4 {
        greeted.push(served.connect(None).await);
    }
    assert_eq!(served.get("/healthz").await, (200, "ok".to_owned()));
    // The oldest connection was closed for the new one.
    let mut byte = [0];
    let oldest = tokio::time::timeout(WAIT_LIMIT, silent[0].read(&mut byte)).await.unwrap();
    assert!(matches!(oldest, Ok(0) | Err(_)), "{oldest:?}");

    // Request heads that are too large, and requests that are not HTTP, close the connection.
    let large = format!("GET /healthz HTTP/1.1\r\nHost: n1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let many = format!("GET /healthz HTTP/1.1\r\nHost: n1\r\n{}\r\n", "X: y\r\n".repeat(1000));
    for (head, expected) in
        [(&large[..], "HTTP/1.1 431"), (&many, "HTTP/1.1 431"), ("x\r\n\r\n", "HTTP/1.1 400")]
    {
        let mut stream = served.connect(None).await;
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(head.as_bytes()).await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(WAIT_LIMIT, stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "{expected}: the connection stays open");
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with(expected), "{answer}");
    }
    assert_eq!(served.get("/healthz").await, (200, "ok".to_owned()));
    served.end().await;
}

/// The visitor is authenticated in both cases.
#[tokio::test]
async fn connection_without_authorized_request_makes_room_for_new_clients() {
    let served = Served::new(Joined::new(ApiServer::start()).await).await;
    let head = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: n1\r\nAuthorization: Bearer {VISITOR}\r\n")
    };
    let connected = async |path: &str| {
        let mut stream = served.connect(None).await;
        stream.write_all(format!("{}\r\n", head(path)).as_bytes()).await.unwrap();
        let mut status = [0; 12];
        let read = tokio::time::timeout(WAIT_LIMIT, stream.read_exact(&mut status)).await;
        read.unwrap().unwrap();
        (String::from_utf8_lossy(&status).into_owned(), stream)
    };
    let (status, mut allowed) = connected("/healthz").await;
    assert_eq!(status, "HTTP/1.1 200");
    let mut refused = Vec::new();
    for _ in 0..80 {
        let (status, stream) = connected("/pods").await;
        assert_eq!(status, "HTTP/1.1 403");
        refused.push(stream);
    }
    let mut rest = Vec::new();
    let oldest = tokio::time::timeout(WAIT_LIMIT, refused[0].read_to_end(&mut rest)).await;
    assert!(oldest.is_ok(), "the connection stays open");
    let last = format!("{}Connection: close\r\n\r\n", head("/healthz"));
    allowed.write_all(last.as_bytes()).await.unwrap();
    let mut answers = Vec::new();
    let read = tokio::time::timeout(WAIT_LIMIT, allowed.read_to_end(&mut answers)).await;
    read.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&answers).contains("HTTP/1.1 200"), "{answers:?}");
    served.end().await;
}

#[tokio::test]
async fn unusable_server_settings_are_refused_before_anything_starts() {
    let joined = Joined::new(ApiServer::start()).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().port().to_string();
    let empty = joined.place.file("empty.crt", "");
    for (flags, problem) in [
        (&["--port", &taken, "--address", "127.0.0.1"][..], "set another --port or --address"),
        (&["--port", "1", "--client-ca-file", &empty][..], "no certificate in the file"),
        (
            &["--port", "1", "--tls-cert-file", &empty, "--tls-private-key-file", &empty][..],
            "no certificate in the file",
        ),
    ] {
        let agent = joined.agent(flags);
        let ended = tokio::time::timeout(Duration::from_secs(60), agent.end()).await.unwrap();
        ended.exits(2).err_has(problem);
    }
    let args = ["agent", "--runtime-endpoint", "unix:///nowhere.sock", "--port", "1"];
    joined.place.crib(&args).await.exits(2).err_has("--kubeconfig");
    joined.end_runtime().await;
}
