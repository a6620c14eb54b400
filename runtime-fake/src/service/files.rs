//! `crib.files.v1.Files`: copies of containers' files.

use std::io;

use cri::files::{
    ReadRequest, ReadResponse, WriteRequest, WriteResponse, files_server::Files as Service,
};
use file_copy::{ChunkReader, ChunkWriter};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    runtime::{Copied, Runtime},
    store::StateError,
};

/// The service over one runtime.
pub(crate) struct FilesServer {
    runtime: Runtime,
}

impl FilesServer {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self { runtime }
    }
}

#[tonic::async_trait]
impl Service for FilesServer {
    type ReadStream = ReceiverStream<Result<ReadResponse, Status>>;

    async fn read(
        &self,
        request: Request<ReadRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        let files = self.runtime.container_files(&request.container_id).await?;
        let (writer, mut chunks) = ChunkWriter::new();
        let copied = files.pack(path(&request.path)?, writer)?;
        let (answers, responses) = mpsc::channel(1);
        let runtime = self.runtime.clone();
        self.runtime.tasks.spawn(tasks::boxed(async move {
            let send = async {
                while let Some(data) = chunks.recv().await {
                    let response = ReadResponse { data, ..ReadResponse::default() };
                    if answers.send(Ok(response)).await.is_err() {
                        return;
                    }
                }
                let last = outcome(copied).await;
                let last = last.map(|skipped| ReadResponse { skipped, ..ReadResponse::default() });
                let _ = answers.send(last).await;
            };
            // Dropping the chunks ends the thread.
            tokio::select! {
                () = send => {}
                () = runtime.stopping.cancelled() => {}
                () = answers.closed() => {}
            }
        }));
        Ok(Response::new(ReceiverStream::new(responses)))
    }

    async fn write(
        &self,
        request: Request<Streaming<WriteRequest>>,
    ) -> Result<Response<WriteResponse>, Status> {
        let mut requests = request.into_inner();
        let first = requests.message().await?;
        let first = first.ok_or_else(|| Status::invalid_argument("the request is missing"))?;
        let files = self.runtime.container_files(&first.container_id).await?;
        let (reader, chunks) = ChunkReader::new();
        let copied = files.unpack(path(&first.path)?, name(&first.name)?, reader)?;
        let feed = async move {
            let mut next = Ok(first.data);
            while chunks.send(next).await.is_ok() {
                next = match requests.message().await {
                    Ok(Some(request)) => Ok(request.data),
                    Ok(None) => return,
                    Err(status) => Err(io::Error::other(status.message().to_owned())),
                };
            }
        };
        let both = async {
            let copied = outcome(copied);
            tokio::pin!(copied);
            // A copy that ends before it has read the whole archive has failed.
            tokio::select! {
                skipped = &mut copied => skipped,
                () = feed => copied.await,
            }
        };
        let skipped = tokio::select! {
            skipped = both => skipped?,
            () = self.runtime.stopping.cancelled() => {
                return Err(crate::runtime::Error::from(StateError::ShuttingDown).into());
            }
        };
        Ok(Response::new(WriteResponse { skipped }))
    }
}

async fn outcome(copied: Copied) -> Result<Vec<String>, Status> {
    match copied.await {
        Ok(Ok(notes)) => Ok(notes.lines()),
        Ok(Err(error)) => Err(crate::runtime::Error::from(error).into()),
        Err(_) => Err(Status::internal("the copy ended without a result")),
    }
}

fn path(path: &str) -> Result<&str, Status> {
    match path.is_empty() || path.contains('\0') {
        true => Err(Status::invalid_argument(format!("{path:?} is not a path"))),
        false => Ok(path),
    }
}

/// A name in a directory; empty for none.
fn name(name: &str) -> Result<&str, Status> {
    match name.contains(['/', '\0']) || matches!(name, "." | "..") {
        true => Err(Status::invalid_argument(format!("{name:?} is not a file name"))),
        false => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("file", true)]
    #[case("", true)]
    #[case(".", false)]
    #[case("..", false)]
    #[case("a/b", false)]
    #[case("a\0", false)]
    fn name_is_one_component(#[case] text: &str, #[case] fits: bool) {
        assert_eq!(name(text).is_ok(), fits);
        assert!(path("").is_err() && path("a\0").is_err() && path("/").is_ok());
    }
}
