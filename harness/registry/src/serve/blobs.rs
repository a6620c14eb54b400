//! Serves and deletes blobs, whole or in part.

use std::{fs, io};

use hyper::StatusCode;
use hyper::header::{ACCEPT_RANGES, CONTENT_RANGE, ETAG, RANGE};

use super::super::answer::Answer;
use super::super::route::{Digest, range};
use super::{Ask, CONTENT_DIGEST, Server};

impl Server {
    /// Serves any blob from any repository: the registry does not isolate repositories.
    pub(super) async fn blob(&self, ask: &Ask, digest: &Digest) -> io::Result<Answer> {
        let file = match tokio::fs::File::open(self.store.blob_path(digest)).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(unknown(digest)),
            Err(error) => return Err(error),
        };
        let length = file.metadata().await?.len();
        let answer = match range(ask.header(&RANGE), length) {
            None => Answer::refusal(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "SIZE_INVALID",
                &format!("the blob has {length} bytes"),
            )
            .with(CONTENT_RANGE, &format!("bytes */{length}")),
            Some(None) => Answer::file(file, 0, length),
            Some(Some((from, count))) => Answer::file(file, from, count)
                .status(StatusCode::PARTIAL_CONTENT)
                .with(CONTENT_RANGE, &format!("bytes {from}-{}/{length}", from + count - 1)),
        };
        Ok(answer
            .with(CONTENT_DIGEST, digest.as_str())
            .with(ETAG, &format!("\"{digest}\""))
            .with(ACCEPT_RANGES, "bytes"))
    }

    pub(super) fn delete_blob(&self, digest: &Digest) -> io::Result<Answer> {
        match fs::remove_file(self.store.blob_path(digest)) {
            Ok(()) => Ok(Answer::empty(StatusCode::ACCEPTED)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(unknown(digest)),
            Err(error) => Err(error),
        }
    }
}

fn unknown(digest: &Digest) -> Answer {
    let said = format!("blob {digest} not found");
    Answer::refusal(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", &said)
}
