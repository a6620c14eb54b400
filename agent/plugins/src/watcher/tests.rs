//! Tests of the watcher with scripted plugins.
#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixListener as StdListener;
use std::sync::Mutex;

use async_trait::async_trait;
use cri::pluginregistration as wire;
use cri::pluginregistration::registration_server::{Registration, RegistrationServer};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::*;

/// The timeout of all waits.
const LONGEST: Duration = Duration::from_secs(20);

/// A plugin that records the notifications about its registration.
struct Scripted {
    kind: &'static str,
    endpoint: &'static str,
    notified: mpsc::UnboundedSender<Result<(), String>>,
}

#[tonic::async_trait]
impl Registration for Scripted {
    async fn get_info(
        &self,
        _: Request<wire::InfoRequest>,
    ) -> Result<Response<wire::PluginInfo>, Status> {
        Ok(Response::new(wire::PluginInfo {
            r#type: self.kind.to_owned(),
            name: "p".to_owned(),
            endpoint: self.endpoint.to_owned(),
            supported_versions: vec!["v1".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<wire::RegistrationStatus>,
    ) -> Result<Response<wire::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let notified = if status.plugin_registered { Ok(()) } else { Err(status.error) };
        self.notified.send(notified).unwrap();
        Ok(Response::new(wire::RegistrationStatusResponse {}))
    }
}

/// Serves a plugin at a socket. Returns its task, and the notifications.
fn plugin(
    socket: &Path,
    kind: &'static str,
    endpoint: &'static str,
) -> (JoinHandle<()>, mpsc::UnboundedReceiver<Result<(), String>>) {
    let (notified, receiver) = mpsc::unbounded_channel();
    let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
    let service = RegistrationServer::new(Scripted { kind, endpoint, notified });
    let serving = tokio::spawn(async move {
        Server::builder().serve_with_incoming(service, incoming).await.unwrap();
    });
    (serving, receiver)
}

/// A handler that fails a given number of times, and reports its calls.
struct Handler {
    failures: Mutex<u32>,
    asked: mpsc::UnboundedSender<String>,
}

#[async_trait]
impl PluginHandler for Handler {
    fn kind(&self) -> &'static str {
        "Known"
    }

    fn validate(&self, plugin: &PluginInfo) -> Result<(), String> {
        assert_eq!(
            (plugin.name.as_str(), plugin.versions.as_slice()),
            ("p", &["v1".to_owned()][..])
        );
        Ok(())
    }

    async fn register(&self, plugin: &PluginInfo) -> Result<(), String> {
        self.asked.send(format!("register {}", plugin.endpoint.display())).unwrap();
        let mut failures = self.failures.lock().unwrap();
        match failures.checked_sub(1) {
            Some(left) => {
                *failures = left;
                Err("not yet".to_owned())
            }
            None => Ok(()),
        }
    }

    async fn deregister(&self, plugin: &PluginInfo) {
        self.asked.send(format!("deregister {}", plugin.endpoint.display())).unwrap();
    }
}

/// Watches a directory with a handler that fails at first. Returns the task, and the handler's calls.
fn watch(directory: &Path, failures: u32) -> (JoinHandle<()>, mpsc::UnboundedReceiver<String>) {
    let (asked, receiver) = mpsc::unbounded_channel();
    let handler = Arc::new(Handler { failures: Mutex::new(failures), asked });
    let watcher = PluginWatcher::new(directory.to_owned(), vec![handler]);
    (tokio::spawn(watcher.run()), receiver)
}

async fn next<T>(receiver: &mut mpsc::UnboundedReceiver<T>) -> T {
    timeout(LONGEST, receiver.recv()).await.unwrap().unwrap()
}

#[tokio::test]
async fn plugin_is_registered_until_its_socket_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("p.sock");
    let (watching, mut asked) = watch(root.path(), 0);
    let (serving, mut notified) = plugin(&socket, "Known", "unix:///run/p.sock");
    assert_eq!(next(&mut notified).await, Ok(()));
    assert_eq!(next(&mut asked).await, "register /run/p.sock");
    fs::remove_file(&socket).unwrap();
    assert_eq!(next(&mut asked).await, "deregister /run/p.sock");
    serving.abort();
    // A plugin without an endpoint serves at its registration socket.
    let (serving, mut notified) = plugin(&socket, "Known", "");
    assert_eq!(next(&mut notified).await, Ok(()));
    assert_eq!(next(&mut asked).await, format!("register {}", socket.display()));
    serving.abort();
    watching.abort();
}

#[tokio::test]
async fn failed_registration_is_reported_and_retried() {
    let root = tempfile::tempdir().unwrap();
    let (serving, mut notified) = plugin(&root.path().join("p.sock"), "Known", "/p");
    let (watching, mut asked) = watch(root.path(), 1);
    let problem = "RegisterPlugin error -- plugin registration failed with err: not yet";
    assert_eq!(next(&mut notified).await, Err(problem.to_owned()));
    assert_eq!(next(&mut notified).await, Ok(()));
    assert_eq!(
        (next(&mut asked).await, next(&mut asked).await),
        ("register /p".to_owned(), "register /p".to_owned())
    );
    serving.abort();
    watching.abort();
}

#[tokio::test]
async fn plugin_of_unknown_type_is_notified_that_no_handler_is_registered() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("p.sock");
    let (serving, mut notified) = plugin(&socket, "DRAPlugin", "");
    let (watching, mut asked) = watch(root.path(), 0);
    let problem = format!(
        "RegisterPlugin error -- no handler registered for plugin type: DRAPlugin at socket {}",
        socket.display()
    );
    assert_eq!(next(&mut notified).await, Err(problem));
    serving.abort();
    watching.abort();
    let _ = watching.await;
    assert!(asked.recv().await.is_none(), "the handler is not asked");
}

#[tokio::test]
async fn sockets_are_listed_with_their_registrations() {
    let root = tempfile::tempdir().unwrap();
    let (known, other) = (root.path().join("known.sock"), root.path().join("other.sock"));
    let (of_known, _notified) = plugin(&known, "Known", "");
    let (of_other, mut notified) = plugin(&other, "Other", "");
    let (asked, _calls) = mpsc::unbounded_channel();
    let handler = Arc::new(Handler { failures: Mutex::new(0), asked });
    let watcher = PluginWatcher::new(root.path().to_owned(), vec![handler]);
    let mut sockets = watcher.sockets();
    let watching = tokio::spawn(watcher.run());
    next(&mut notified).await.unwrap_err();
    let expected = vec![(known, true), (other, false)];
    let listed = sockets.wait_for(|sockets| *sockets == expected);
    timeout(LONGEST, listed).await.unwrap().unwrap();
    for task in [of_known, of_other, watching] {
        task.abort();
    }
}

#[test]
fn scan_finds_sockets_recursively_and_detects_replacements() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    fs::create_dir_all(at("below")).unwrap();
    fs::write(at("file.sock"), "").unwrap();
    let _hidden = StdListener::bind(at(".hidden.sock")).unwrap();
    let _below = StdListener::bind(at("below/b.sock")).unwrap();
    let first = StdListener::bind(at("a.sock")).unwrap();
    let (sockets, directories) = scan(root.path());
    assert_eq!(directories, Set::from([root.path().to_owned(), at("below")]));
    assert_eq!(sockets.keys().cloned().collect::<Vec<_>>(), [at("a.sock"), at("below/b.sock")]);
    drop(first);
    fs::remove_file(at("a.sock")).unwrap();
    let _second = StdListener::bind(at("a.sock")).unwrap();
    let (again, _) = scan(root.path());
    assert_ne!(again[&at("a.sock")], sockets[&at("a.sock")]);
    assert_eq!(again[&at("below/b.sock")], sockets[&at("below/b.sock")]);
    let (none, directories) = scan(&at("none"));
    assert!(none.is_empty() && directories.is_empty());
}
