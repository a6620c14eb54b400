//! Copies with crib's own runtime, which itself reads and writes files in the container's mounts.

use bytes::Bytes;
use cri::files::{ReadRequest, WriteRequest};
use tokio_stream::wrappers::ReceiverStream;

use super::{Archive, Progress, Sink, TargetContainer};
use crate::client::CallError;

const READ: &str = "Read";

/// Copies from the container.
pub(super) async fn read(
    container: &TargetContainer<'_>,
    path: &str,
    sink: Sink,
    progress: Progress,
) -> Result<Vec<String>, CallError> {
    let sent = receive(container, path, &sink, &progress).await;
    drop(progress);
    sink.ended(sent).await
}

async fn receive(
    container: &TargetContainer<'_>,
    path: &str,
    sink: &Sink,
    progress: &Progress,
) -> Result<Vec<String>, CallError> {
    let mut client = container.cri.runtime.files.clone();
    let request = ReadRequest { container_id: container.id.clone(), path: path.to_owned() };
    let answer = container.cri.call_without_timeout(READ, client.read(request)).await?;
    let mut responses = answer.into_inner();
    let mut skipped = Vec::new();
    let failed = |status| CallError::refused(READ, status);
    while let Some(response) = responses.message().await.map_err(failed)? {
        progress.add(response.data.len());
        skipped.extend(response.skipped);
        if !response.data.is_empty() && !sink.take(response.data).await? {
            break;
        }
    }
    Ok(skipped)
}

/// Copies into the container.
pub(super) async fn write(
    container: &TargetContainer<'_>,
    archive: Archive,
    path: &str,
    progress: Progress,
) -> Result<Vec<String>, CallError> {
    let first = WriteRequest {
        container_id: container.id.clone(),
        path: path.to_owned(),
        name: archive.name(),
        data: Bytes::new(),
    };
    let mut packing = archive.begin(None)?;
    let (sender, requests) = tokio::sync::mpsc::channel(1);
    let chunks = &mut packing.chunks;
    let feed = async {
        // Dropped after the last chunk, which marks the end of the archive.
        let sender = sender;
        let mut next = first;
        while sender.send(next).await.is_ok() {
            let Some(data) = chunks.recv().await else {
                break;
            };
            progress.add(data.len());
            next = WriteRequest { data, ..WriteRequest::default() };
        }
    };
    let mut client = container.cri.runtime.files.clone();
    // The duration depends on the size of the archive.
    let call = client.write(ReceiverStream::new(requests));
    let call = container.cri.call_without_timeout("Write", call);
    tokio::pin!(call);
    let answer = tokio::select! {
        // A response before the end of the archive is an error.
        answer = &mut call => answer,
        () = feed => call.await,
    };
    drop(progress);
    packing.ended(answer.map(|answer| answer.into_inner().skipped)).await
}
