//! Receives blobs: in one request, in one request after a start, in chunks, or by mounting an existing blob.

use std::io;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{CONTENT_RANGE, HeaderName, LOCATION, RANGE};
use sha2::Digest as _;
use tokio::io::AsyncWriteExt as _;

use super::super::response::PendingResponse;
use super::super::route::{Digest, field};
use super::super::store::{Store, Upload};
use super::{CONTENT_DIGEST, ParsedRequest, Server};

/// The header with the upload's id.
const UPLOAD: HeaderName = HeaderName::from_static("docker-upload-uuid");

impl Server {
    pub(super) async fn start_upload(
        &self,
        request: ParsedRequest,
        name: &str,
    ) -> io::Result<PendingResponse> {
        // All repositories share all blobs, so `from` is not checked.
        if let Some(digest) = field(&request.fields, "mount").and_then(|text| text.parse().ok())
            && self.store.blob_size(&digest).is_some()
        {
            return Ok(created(name, &digest));
        }
        let id = self.store.begin()?;
        if field(&request.fields, "digest").is_some() {
            return self.end_upload(request, name, &id).await;
        }
        Ok(progress(StatusCode::ACCEPTED, name, &id, 0))
    }

    pub(super) fn upload_status(&self, name: &str, id: &str) -> PendingResponse {
        match self.store.upload_size(id) {
            Some(size) => progress(StatusCode::NO_CONTENT, name, id, size),
            None => unknown(id),
        }
    }

    pub(super) async fn send_chunk(
        &self,
        request: ParsedRequest,
        name: &str,
        id: &str,
    ) -> io::Result<PendingResponse> {
        let Some(mut session) = Session::take(&self.store, id) else {
            return Ok(unknown(id));
        };
        let size = session.size();
        let range = request.header(&CONTENT_RANGE).map(|range| {
            let range = range.strip_prefix("bytes ").unwrap_or(range);
            let (from, _) = range.split_once('-').unwrap_or((range, ""));
            from.parse::<u64>().ok()
        });
        if range.is_some_and(|from| from != Some(size)) {
            return Ok(progress(StatusCode::RANGE_NOT_SATISFIABLE, name, id, size));
        }
        match session.receive(request.body).await? {
            true => Ok(progress(StatusCode::ACCEPTED, name, id, session.size())),
            false => Ok(incomplete_body()),
        }
    }

    pub(super) async fn end_upload(
        &self,
        request: ParsedRequest,
        name: &str,
        id: &str,
    ) -> io::Result<PendingResponse> {
        let Some(digest) = field(&request.fields, "digest").and_then(|text| text.parse().ok())
        else {
            let message = "the query needs the digest of the whole blob";
            return Ok(PendingResponse::refusal(
                StatusCode::BAD_REQUEST,
                "DIGEST_INVALID",
                message,
            ));
        };
        let Some(mut session) = Session::take(&self.store, id) else {
            return Ok(unknown(id));
        };
        if !session.receive(request.body).await? {
            return Ok(incomplete_body());
        }
        let Some(upload) = session.upload.take() else {
            return Ok(unknown(id));
        };
        if self.store.finish(&upload, &digest)? {
            return Ok(created(name, &digest));
        }
        let message = format!("the uploaded content does not match {digest}");
        Ok(PendingResponse::refusal(StatusCode::BAD_REQUEST, "DIGEST_INVALID", &message))
    }

    pub(super) fn cancel_upload(&self, id: &str) -> io::Result<PendingResponse> {
        let Some(upload) = self.store.take(id) else {
            return Ok(unknown(id));
        };
        std::fs::remove_file(&upload.path)?;
        Ok(PendingResponse::empty(StatusCode::NO_CONTENT))
    }
}

/// An upload that one request has taken. It returns to the store when the request ends, even if the client disconnects, so that the
/// client can query the progress and continue.
struct Session<'a> {
    store: &'a Store,
    id: &'a str,
    upload: Option<Upload>,
}

impl<'a> Session<'a> {
    fn take(store: &'a Store, id: &'a str) -> Option<Self> {
        let upload = Some(store.take(id)?);
        Some(Self { store, id, upload })
    }

    fn size(&self) -> u64 {
        self.upload.as_ref().map_or(0, |upload| upload.size)
    }

    /// Appends a body. Returns whether it was complete.
    async fn receive(&mut self, mut body: Incoming) -> io::Result<bool> {
        let Some(upload) = &mut self.upload else {
            return Ok(false);
        };
        let mut options = tokio::fs::File::options();
        let mut file = options.write(true).open(&upload.path).await?;
        // Discards bytes that an aborted request wrote without counting them.
        file.set_len(upload.size).await?;
        tokio::io::AsyncSeekExt::seek(&mut file, io::SeekFrom::End(0)).await?;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return Ok(false) };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            file.write_all(&data).await?;
            file.flush().await?;
            upload.hash.update(&data);
            upload.size += data.len() as u64;
        }
        Ok(true)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            self.store.put_back(self.id, upload);
        }
    }
}

/// Reads a body of at most `limit` bytes.
pub(super) async fn read_all(mut body: Incoming, limit: usize) -> Result<Bytes, PendingResponse> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(incomplete_body());
        };
        if let Ok(data) = frame.into_data() {
            all.extend_from_slice(&data);
        }
        if all.len() > limit {
            let message = format!("the body has more than {limit} bytes");
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            return Err(PendingResponse::refusal(status, "SIZE_INVALID", &message));
        }
    }
    Ok(all.freeze())
}

fn created(name: &str, digest: &Digest) -> PendingResponse {
    PendingResponse::empty(StatusCode::CREATED)
        .with(LOCATION, &format!("/v2/{name}/blobs/{digest}"))
        .with(CONTENT_DIGEST, digest.as_str())
}

/// The range received so far. It names the last byte, even for an empty upload, as in other registries.
fn progress(status: StatusCode, name: &str, id: &str, size: u64) -> PendingResponse {
    PendingResponse::empty(status)
        .with(LOCATION, &format!("/v2/{name}/blobs/uploads/{id}"))
        .with(RANGE, &format!("0-{}", size.saturating_sub(1)))
        .with(UPLOAD, id)
}

fn unknown(id: &str) -> PendingResponse {
    let message = format!("upload {id} not found, or in use by another request");
    PendingResponse::refusal(StatusCode::NOT_FOUND, "BLOB_UPLOAD_UNKNOWN", &message)
}

fn incomplete_body() -> PendingResponse {
    let message = "the request body is incomplete";
    PendingResponse::refusal(StatusCode::BAD_REQUEST, "BLOB_UPLOAD_INVALID", message)
}
