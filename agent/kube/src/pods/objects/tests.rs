//! Lists and watches of the objects of a pod, at a server that records them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicBool, Ordering};

use rstest::rstest;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{advance, pause, resume};

use super::*;
use crate::client::plain_client;

/// The timeout of a wait for a request.
const LONGEST: Duration = Duration::from_secs(60);
const WATCH_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// The recorded requests for ConfigMaps: `list NAME`, `watch NAME`, and `end NAME` when the client ends a watch.
struct Requests {
    receiver: mpsc::UnboundedReceiver<String>,
    seen: Vec<String>,
}

impl Requests {
    fn count(&mut self, what: &str) -> usize {
        while let Ok(next) = self.receiver.try_recv() {
            self.seen.push(next);
        }
        self.seen.iter().filter(|seen| *seen == what).count()
    }

    async fn until(&mut self, what: &str, times: usize) {
        while self.count(what) < times {
            match timeout(LONGEST, self.receiver.recv()).await {
                Ok(Some(next)) => self.seen.push(next),
                Ok(None) | Err(_) => panic!("no {what} {times} in {:?}", self.seen),
            }
        }
    }
}

async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

/// The ConfigMap that a request is for.
fn config_map(head: &str) -> Option<String> {
    let (_, query) = head.lines().next()?.split_once("/configmaps?")?;
    let (_, name) = query.split_once("metadata.name")?;
    let name = name.trim_start_matches("%3D").trim_start_matches('=');
    name.split(['&', ' ']).next().map(str::to_owned)
}

/// Answers the requests of a connection, except those for `silent`. `fixed` is immutable. The first list of `late` is forbidden.
async fn serve(
    mut stream: TcpStream,
    notes: mpsc::UnboundedSender<String>,
    forbids: Arc<AtomicBool>,
) {
    while let Some(head) = head(&mut stream).await {
        let name = config_map(&head);
        let note = |what: &str| {
            if let Some(name) = &name {
                let _ = notes.send(format!("{what} {name}"));
            }
        };
        let is_watch = head.contains("watch=true");
        note(if is_watch { "watch" } else { "list" });
        if is_watch || name.as_deref() == Some("silent") {
            if is_watch {
                let _ = stream.write_all(WATCH_HEAD).await;
            }
            // The client sends nothing more: the read returns when it closes the connection.
            let _ = stream.read_u8().await;
            note("end");
            return;
        }
        if name.as_deref() == Some("late") && forbids.swap(false, Ordering::SeqCst) {
            let _ =
                stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno").await;
            continue;
        }
        let items: Vec<Value> = name
            .iter()
            .map(|name| {
                let metadata = json!({"name": name, "namespace": "ns", "resourceVersion": "1"});
                json!({"metadata": metadata, "immutable": name == "fixed"})
            })
            .collect();
        let list = json!({"metadata": {"resourceVersion": "1"}, "items": items}).to_string();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{list}", list.len());
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}

/// Starts a server, and follows what registered pods need.
async fn start() -> (Registry, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (notes, receiver) = mpsc::unbounded_channel();
    let forbids = Arc::new(AtomicBool::new(true));
    tasks::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tasks::spawn(serve(stream, notes.clone(), Arc::clone(&forbids)));
        }
    });
    let client = plain_client(address);
    let others = ObjectMap::default();
    let objects = Objects::new(client, "n1", Arc::default(), others, Duration::ZERO);
    let registry = objects.registry();
    tasks::spawn(objects.run());
    (registry, Requests { receiver, seen: Vec::new() })
}

/// Registers a pod with variables from these ConfigMaps, and a volume of `mounted`.
async fn register(registry: &Registry, variables: &[&str]) {
    let variable = |name: &&str| {
        let key = json!({"name": name, "key": "k"});
        json!({"name": "V", "valueFrom": {"configMapKeyRef": key}})
    };
    let variables: Vec<Value> = variables.iter().map(variable).collect();
    let container = json!({
        "name": "c",
        "env": variables,
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    });
    let volume = json!({"name": "v", "configMap": {"name": "mounted"}});
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [container], "volumes": [volume]},
    });
    let pod = Pod::new(serde_json::from_value(pod).unwrap());
    let (_sender, sent_cidrs) = watch::channel(None);
    registry.register(&[pod], sent_cidrs).await;
}

async fn sync(registry: &Registry, name: &str) -> Result<(), String> {
    registry.sync("ns", &[(ObjectKind::ConfigMap, name.to_owned())]).await
}

/// Repeats `sync` until it succeeds, because a slow machine may exceed its timeout.
async fn sync_at_last(registry: &Registry, name: &str) {
    while sync(registry, name).await.is_err() {}
}

#[tokio::test]
async fn object_of_variables_is_not_watched_while_it_is_not_read() {
    let (registry, mut requests) = start().await;
    register(&registry, &["settings", "fixed"]).await;
    for watched in ["watch settings", "watch mounted", "list fixed"] {
        requests.until(watched, 1).await;
    }
    sync_at_last(&registry, "settings").await;
    assert_eq!(requests.count("list settings"), 1, "it is watched");

    pause();
    advance(LEAST_IDLE * 3).await;
    resume();
    requests.until("end settings", 1).await;
    sync_at_last(&registry, "settings").await;
    requests.until("watch settings", 2).await;
    assert_eq!(requests.count("list settings"), 2, "it is read before the container starts");

    for (name, watches) in [("mounted", 1), ("fixed", 0)] {
        sync_at_last(&registry, name).await;
        assert_eq!(requests.count(&format!("list {name}")), 1, "{name}");
        assert_eq!(requests.count(&format!("watch {name}")), watches, "{name}");
        assert_eq!(requests.count(&format!("end {name}")), 0, "{name}");
    }
}

#[tokio::test]
async fn start_of_a_container_fails_without_an_answer_about_an_object_that_is_followed() {
    let (registry, _requests) = start().await;
    register(&registry, &["silent"]).await;
    let unanswered = "failed to sync configmap cache: timed out waiting for the condition";
    assert_eq!(sync(&registry, "silent").await, Err(unanswered.to_owned()));
    assert_eq!(sync(&registry, "of-another-pod").await, Ok(()));
}

#[rstest]
#[case::within_the_patience(LONGEST, 2, Ok(1))]
#[case::after_the_patience(Duration::ZERO, 1, Err("the API server answered 403 (): no"))]
#[tokio::test]
async fn forbidden_first_list_is_repeated_before_it_is_an_answer(
    #[case] patience: Duration,
    #[case] lists: usize,
    #[case] expected: Result<usize, &str>,
) {
    let (registry, mut requests) = start().await;
    let (namespace, name) = ("ns".to_owned(), "late".to_owned());
    let watched = WatchTarget::Object(ObjectRef { kind: ObjectKind::ConfigMap, namespace, name });
    let (sender, mut answers) = mpsc::unbounded_channel();
    let reflector = reflector(&registry.client, "n1", &watched).unwrap();
    let following = tasks::spawn(follow(reflector, watched, sender, patience));
    let (_, answer) = answers.recv().await.unwrap();
    following.abort();
    let found = match answer {
        WatchResult::Objects(found) => Ok(found.len()),
        WatchResult::Refused(why) => Err(why),
        WatchResult::Claim(bound) => panic!("{bound:?}"),
    };
    assert_eq!(found, expected.map_err(str::to_owned));
    assert_eq!(requests.count("list late"), lists);
}
