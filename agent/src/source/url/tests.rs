//! A source with a server whose responses a test sets.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Mutex;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: x}]}\n";
const LIST: &str = r#"{"apiVersion": "v1", "kind": "PodList", "items": [
  {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "x"}]}},
  {"metadata": {"name": "b"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}]}"#;

/// A server on the loopback interface.
struct Server {
    url: String,
    answer: Arc<Mutex<(u16, String)>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/pods", listener.local_addr().unwrap());
        let answer = Arc::new(Mutex::new((200, String::new())));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answers, seen) = (Arc::clone(&answer), Arc::clone(&requests));
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let length = client.read(&mut request).await.unwrap();
                let text = String::from_utf8_lossy(&request[..length]).into_owned();
                seen.lock().unwrap().push(text);
                let (status, body) = answers.lock().unwrap().clone();
                // The body of a redirect is its target.
                let location = match status {
                    300..400 => format!("Location: {body}\r\n"),
                    _ => String::new(),
                };
                let head = format!(
                    "HTTP/1.1 {status} X\r\n{location}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = client.write_all(head.as_bytes()).await;
            }
        });
        Self { url, answer, requests }
    }

    fn answers(&self, status: u16, body: &str) {
        *self.answer.lock().unwrap() = (status, body.to_owned());
    }

    fn source(&self, headers: &str) -> UrlSource {
        let source = UrlSource::new(&self.url, headers, "n".to_owned()).unwrap();
        source.read_each(Duration::from_millis(10))
    }

    /// Waits until the server has received this many further requests.
    async fn wait_for_requests(&self, more: usize) {
        let count = || self.requests.lock().unwrap().len();
        let wanted = count() + more;
        while count() < wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn next(source: &mut UrlSource) -> Vec<String> {
    let pods = tokio::time::timeout(Duration::from_secs(60), source.next());
    let pods = pods.await.expect("no update of the source").unwrap();
    pods.iter().map(|pod| pod.name().to_owned()).collect()
}

#[tokio::test]
async fn source_follows_a_pod_and_a_list() {
    let server = Server::start().await;
    server.answers(200, POD);
    let mut source = server.source("Authorization: Bearer t\nX-A: 1\nX-A: 2\n");
    assert_eq!(next(&mut source).await, ["a-n"]);
    let request = server.requests.lock().unwrap()[0].to_lowercase();
    assert!(request.contains("authorization: bearer t\r\n"), "{request}");
    assert!(request.contains("x-a: 1\r\nx-a: 2\r\n"), "{request}");
    server.answers(200, LIST);
    assert_eq!(next(&mut source).await, ["a-n", "b-n"]);
    server.answers(200, "");
    assert_eq!(next(&mut source).await, [""; 0]);
}

#[tokio::test]
async fn later_pods_of_a_name_are_ignored() {
    let server = Server::start().await;
    let twins = |image: &str| {
        let pod = |image: &str| {
            let spec = json!({"containers": [{"name": "c", "image": image}]});
            json!({"metadata": {"name": "a"}, "spec": spec})
        };
        let items = [pod("x"), pod(image)];
        json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string()
    };
    let mut source = server.source("");
    // The second answer changes only the pod that is ignored.
    for image in ["y", "z"] {
        server.answers(200, &twins(image));
        assert_eq!(next(&mut source).await, ["a-n"]);
        let ignored = source.take_ignored();
        let images = ignored.iter().map(|pod| pod.containers()[0].image.as_deref());
        assert_eq!(images.collect::<Vec<_>>(), [Some(image)]);
        assert!(source.take_ignored().is_empty());
    }
}

#[tokio::test]
async fn failures_and_unchanged_answers_keep_the_pods() {
    let server = Server::start().await;
    server.answers(200, POD);
    let mut source = server.source("");
    assert_eq!(next(&mut source).await, ["a-n"]);
    for (status, body) in [(200, POD), (500, LIST), (200, "kind: [")] {
        server.answers(status, body);
        tokio::select! {
            pods = source.next() => panic!("{status} {body}: {pods:?}"),
            () = server.wait_for_requests(3) => {}
        }
    }
    server.answers(200, LIST);
    assert_eq!(next(&mut source).await, ["a-n", "b-n"]);
}

#[tokio::test]
async fn pods_of_a_url_have_its_source_and_no_toleration() {
    let server = Server::start().await;
    server.answers(200, POD);
    let pods = server.source("").next().await.unwrap();
    let source = pods[0].annotations().find(|(key, _)| key.ends_with("config.source"));
    assert_eq!(source.unwrap().1, "http");
    assert_eq!(pods[0].spec().tolerations, None);
}

#[tokio::test]
async fn redirects_are_followed_without_credentials() {
    let (first, second) = (Server::start().await, Server::start().await);
    first.answers(302, &second.url);
    second.answers(200, POD);
    let mut source = first.source("Authorization: Bearer t\nX-A: 1\n");
    assert_eq!(next(&mut source).await, ["a-n"]);
    let request = second.requests.lock().unwrap()[0].to_lowercase();
    assert!(request.contains("x-a: 1\r\n") && !request.contains("bearer"), "{request}");
    assert!(request.contains(&format!("referer: {}\r\n", first.url)), "{request}");

    first.answers(302, "/pods");
    let error = source.fetch().await.unwrap_err();
    assert_eq!(error.to_string(), "stopped after 10 redirects");
    let requests = first.requests.lock().unwrap();
    assert_eq!(requests.len(), 1 + 11);
    assert!(requests[11].contains("Bearer t"), "{requests:?}");
}

#[test]
fn malformed_urls_and_headers_are_refused() {
    let error = |url: &str, headers: &str| {
        let source = UrlSource::new(url, headers, "n".to_owned());
        source.err().unwrap().to_string()
    };
    assert_eq!(error("ftp://x/", ""), "\"ftp://x/\" is not an http or https URL");
    assert_eq!(error("http://x/", "a: b\n\nc"), "line 3 is not a header, expected Name: value");
}
