//! Serves `run.sock`: each connection sends one request to the event loop, which has the state. Watches then follow the store of
//! the run until the event loop ends.

use std::io;
use std::path::Path;

use cluster::{Event, List, Watch};
use crib_base::run_socket::{self, Request, RunResponse, WatchEvent};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

/// The maximum size of a request, in bytes.
const LONGEST: u64 = 64 << 10;

/// A request, and the channel for its response.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) request: Request,
    pub(super) reply: oneshot::Sender<Reply>,
}

/// A response of the event loop.
#[derive(Debug)]
pub(super) enum Reply {
    /// A complete response.
    Response(RunResponse),
    /// The objects, and a watch of later changes.
    Watch(List, Watch),
}

/// Listens in the directory of a run, which no other user can access.
pub(super) fn serve(run: &Path) -> io::Result<mpsc::UnboundedReceiver<PendingRequest>> {
    let listener = UnixListener::bind(run_socket::path(run))?;
    let (sender, requests) = mpsc::unbounded_channel();
    tasks::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let sender = sender.clone();
                    tasks::spawn(async move {
                        if let Err(error) = respond(stream, &sender).await {
                            tracing::warn!(%error, "failed to serve a request on run.sock");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection to run.sock");
                    // For example, no descriptor is left. The listener would become ready again immediately.
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
            }
        }
    });
    Ok(requests)
}

async fn respond(
    mut stream: UnixStream,
    requests: &mpsc::UnboundedSender<PendingRequest>,
) -> io::Result<()> {
    let (mut read, mut write) = stream.split();
    let mut line = String::new();
    BufReader::new((&mut read).take(LONGEST)).read_line(&mut line).await?;
    let request: Request = serde_json::from_str(&line)?;
    let (reply, replied) = oneshot::channel();
    let pending = PendingRequest { request, reply };
    // If the receiver is dropped, the run is ending.
    if requests.send(pending).is_err() {
        return Ok(());
    }
    match replied.await {
        Ok(Reply::Response(response)) => write_line(&mut write, &response).await,
        Ok(Reply::Watch(list, watch)) => {
            // A watching client sends nothing more: when it closes its side, the watch ends.
            tokio::select! {
                ended = stream_changes(&mut write, list, watch, requests) => ended,
                () = closed(&mut read) => Ok(()),
            }
        }
        Err(_) => Ok(()),
    }
}

/// Writes the objects and then their changes, until the event loop has ended.
async fn stream_changes(
    write: &mut WriteHalf<'_>,
    list: List,
    mut watch: Watch,
    requests: &mpsc::UnboundedSender<PendingRequest>,
) -> io::Result<()> {
    for object in list.items {
        write_line(write, &WatchEvent::Added(object.value.clone())).await?;
    }
    write_line(write, &WatchEvent::Bookmark).await?;
    loop {
        // Both arms are cancel-safe. Changes from before the end of the event loop are still written.
        let next = tokio::select! {
            biased;
            next = watch.next() => next.map(Some),
            () = requests.closed() => watch.try_next(),
        };
        let event = match next {
            Ok(Some(Event::Added(object))) => WatchEvent::Added(object.value.clone()),
            Ok(Some(Event::Modified(object))) => WatchEvent::Modified(object.value.clone()),
            Ok(Some(Event::Deleted(object))) => WatchEvent::Deleted(object.value.clone()),
            Ok(None) => return Ok(()),
            // The client did not read fast enough.
            Err(error) => return write_line(write, &WatchEvent::Error(error.to_string())).await,
        };
        write_line(write, &event).await?;
    }
}

/// Returns when the client closes its side, or the connection fails.
async fn closed(read: &mut ReadHalf<'_>) {
    let mut byte = [0];
    while read.read(&mut byte).await.is_ok_and(|length| length > 0) {}
}

async fn write_line(write: &mut WriteHalf<'_>, value: &impl serde::Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    write.write_all(&line).await
}

#[cfg(test)]
mod tests {
    use cluster::{DeleteOptions, Selection, Store};
    use crib_base::run_socket::{PodWithEvents, RunConnection};
    use serde_json::json;

    use super::*;

    fn ask(run: &Path, request: Request) -> tokio::task::JoinHandle<Option<RunResponse>> {
        let run = run.to_owned();
        tasks::spawn_blocking(move || {
            let mut connection = RunConnection::open(&run).unwrap()?;
            connection.call(request).unwrap()
        })
    }

    #[tokio::test]
    async fn requests_are_answered_until_the_loop_ends() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(ask(run.path(), Request::Pods).await.unwrap(), None);
        let mut requests = serve(run.path()).unwrap();
        for request in [Request::Pods, Request::End] {
            let asked = ask(run.path(), request.clone());
            let pending = requests.recv().await.unwrap();
            assert_eq!(pending.request, request);
            let answer =
                RunResponse { pods: vec![PodWithEvents::default()], ..RunResponse::default() };
            pending.reply.send(Reply::Response(answer.clone())).unwrap();
            assert_eq!(asked.await.unwrap(), Some(answer));
        }
        drop(requests);
        assert_eq!(ask(run.path(), Request::Pods).await.unwrap(), None);
    }

    #[tokio::test]
    async fn watch_has_objects_and_changes_until_the_loop_ends() {
        let run = tempfile::tempdir().unwrap();
        let mut requests = serve(run.path()).unwrap();
        let mut stream = UnixStream::connect(run_socket::path(run.path())).await.unwrap();
        stream.write_all(b"\"watch\"\n").await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        let mut next = async || {
            let line = lines.next_line().await.unwrap()?;
            Some(serde_json::from_str::<WatchEvent>(&line).unwrap())
        };
        let pending = requests.recv().await.unwrap();
        assert_eq!(pending.request, Request::Watch);
        let store = Store::new(1);
        let object = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let now = jiff::Timestamp::UNIX_EPOCH;
        let first = store.create(object("a"), now).unwrap().value.clone();
        let list = store.list(&Selection::default());
        let watch = store.watch(Selection::default(), list.version).unwrap();
        pending.reply.send(Reply::Watch(list, watch)).unwrap();
        assert_eq!(next().await, Some(WatchEvent::Added(first)));
        assert_eq!(next().await, Some(WatchEvent::Bookmark));
        let second = store.create(object("b"), now).unwrap();
        assert_eq!(next().await, Some(WatchEvent::Added(second.value.clone())));
        let deleted = store.delete(&second.key, &DeleteOptions::default(), now).unwrap();
        // Changes from before the end of the event loop are written.
        drop(requests);
        assert_eq!(next().await, Some(WatchEvent::Deleted(deleted.object.value.clone())));
        assert_eq!(next().await, None);
    }

    #[tokio::test]
    async fn watcher_that_falls_behind_gets_the_reason() {
        let run = tempfile::tempdir().unwrap();
        let mut requests = serve(run.path()).unwrap();
        let mut stream = UnixStream::connect(run_socket::path(run.path())).await.unwrap();
        stream.write_all(b"\"watch\"\n").await.unwrap();
        let pending = requests.recv().await.unwrap();
        let store = Store::with_history(1, 1);
        let list = store.list(&Selection::default());
        let watch = store.watch(Selection::default(), list.version).unwrap();
        for name in ["a", "b"] {
            let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
            store.create(object, jiff::Timestamp::UNIX_EPOCH).unwrap();
        }
        pending.reply.send(Reply::Watch(list, watch)).unwrap();
        let mut lines = BufReader::new(stream).lines();
        let mut all = Vec::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            all.push(serde_json::from_str::<WatchEvent>(&line).unwrap());
        }
        assert_eq!(all[0], WatchEvent::Bookmark);
        assert!(
            matches!(all.as_slice(), [_, WatchEvent::Error(why)] if !why.is_empty()),
            "{all:?}"
        );
    }

    #[tokio::test]
    async fn invalid_requests_are_dropped() {
        let run = tempfile::tempdir().unwrap();
        let mut requests = serve(run.path()).unwrap();
        for text in ["{}\n", "", "\"dance\"\n", &"x".repeat(100_000)] {
            let mut stream = UnixStream::connect(run_socket::path(run.path())).await.unwrap();
            // The server may have closed the connection already.
            let _ = stream.write_all(text.as_bytes()).await;
            let _ = stream.shutdown().await;
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            assert_eq!(rest, b"", "{text}");
        }
        assert!(requests.try_recv().is_err());
    }
}
