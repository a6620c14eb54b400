//! Serves, stores and deletes manifests, by tag and by digest. A manifest keeps the media type that it was pushed with,
//! and is accepted only if all content that it needs is stored.

use std::{fs, io};

use hyper::StatusCode;
use hyper::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderName, LOCATION};
use serde_json::{Value, json};

use super::super::document::{Document, OCI_INDEX, accepts};
use super::super::names::Names;
use super::super::response::PendingResponse;
use super::super::route::{Digest, Reference, field};
use super::super::store::{LONGEST_MANIFEST, digest_of, has_digest};
use super::{CONTENT_DIGEST, ParsedRequest, Server, refuse_missing, uploads};

/// The header that confirms a manifest's subject.
const SUBJECT: HeaderName = HeaderName::from_static("oci-subject");
/// The header that names the filters of a listing.
const FILTERS: HeaderName = HeaderName::from_static("oci-filters-applied");

impl Server {
    pub(super) fn manifest(
        &self,
        request: &ParsedRequest,
        name: &str,
        reference: &Reference,
    ) -> io::Result<PendingResponse> {
        let found = self.store.names(|names| {
            let (_, digest, manifest) = names.manifest(name, request.registry(), reference)?;
            Ok((digest.clone(), manifest.media_type.clone()))
        });
        let (digest, kind) = match found {
            Ok(found) => found,
            Err(missing) => return Ok(refuse_missing(&missing, name, "MANIFEST_UNKNOWN")),
        };
        let wanted = request.headers.get_all(ACCEPT).iter();
        if !accepts(wanted.filter_map(|value| value.to_str().ok()), &kind) {
            let message =
                format!("the Accept header does not list the manifest's media type {kind}");
            return Ok(PendingResponse::refusal(
                StatusCode::NOT_FOUND,
                "MANIFEST_UNKNOWN",
                &message,
            ));
        }
        let bytes = fs::read(self.store.blob_path(&digest))?;
        Ok(PendingResponse::bytes(&kind, bytes)
            .with(CONTENT_DIGEST, digest.as_str())
            .with(ETAG, &format!("\"{digest}\"")))
    }

    pub(super) async fn put_manifest(
        &self,
        request: ParsedRequest,
        name: &str,
        reference: &Reference,
    ) -> io::Result<PendingResponse> {
        let content_type = request.header(&CONTENT_TYPE).map(str::to_owned);
        let stored_name = Names::for_push(name, request.registry());
        let bytes = match uploads::read_all(request.body, LONGEST_MANIFEST).await {
            Ok(bytes) => bytes,
            Err(refusal) => return Ok(refusal),
        };
        let bad = |code, message: &str| {
            Ok(PendingResponse::refusal(StatusCode::BAD_REQUEST, code, message))
        };
        let (tag, digest) = match reference {
            Reference::Tag(tag) => (Some(tag.as_str()), digest_of(&bytes)),
            Reference::Digest(digest) if has_digest(&bytes, digest) => (None, digest.clone()),
            Reference::Digest(_) => {
                return bad("DIGEST_INVALID", "the manifest has another digest");
            }
        };
        let document = match Document::parse(&bytes) {
            Ok(document) => document,
            Err(error) => return bad("MANIFEST_INVALID", &format!("invalid manifest: {error}")),
        };
        let kind = content_type.unwrap_or_else(|| document.kind().to_owned());
        let missing = document.blobs().find(|blob| {
            let digest = blob.digest.parse();
            !digest.is_ok_and(|digest: Digest| self.store.blob_size(&digest).is_some())
        });
        if let Some(blob) = missing {
            let message = format!("push the blob {} first", blob.digest);
            return bad("MANIFEST_BLOB_UNKNOWN", &message);
        }
        self.store.put_manifest(&stored_name, tag, &digest, &kind, &bytes, &document)?;
        self.store.write_index()?;
        let response = PendingResponse::empty(StatusCode::CREATED)
            .with(LOCATION, &format!("/v2/{name}/manifests/{digest}"))
            .with(CONTENT_DIGEST, digest.as_str());
        Ok(match document.subject() {
            Some(subject) => response.with(SUBJECT, subject.as_str()),
            None => response,
        })
    }

    pub(super) fn delete_manifest(
        &self,
        request: &ParsedRequest,
        name: &str,
        reference: &Reference,
    ) -> io::Result<PendingResponse> {
        let removed = self.store.names(|names| {
            let (full, ..) = names.manifest(name, request.registry(), reference)?;
            let full = full.to_owned();
            names.remove(&full, reference);
            Ok(())
        });
        if let Err(missing) = removed {
            return Ok(refuse_missing(&missing, name, "MANIFEST_UNKNOWN"));
        }
        self.store.write_index()?;
        Ok(PendingResponse::empty(StatusCode::ACCEPTED))
    }

    pub(super) fn referrers(
        &self,
        request: &ParsedRequest,
        name: &str,
        subject: &Digest,
    ) -> PendingResponse {
        let wanted = field(&request.fields, "artifactType");
        let manifests: Vec<Value> = self.store.names(|names| {
            let all = names.referrers(name, request.registry(), subject);
            all.filter(|(_, manifest)| {
                wanted.is_none_or(|wanted| manifest.artifact_type.as_deref() == Some(wanted))
            })
            .map(|(digest, manifest)| {
                json!({
                    "mediaType": manifest.media_type,
                    "digest": digest.as_str(),
                    "size": manifest.size,
                    "artifactType": manifest.artifact_type,
                    "annotations": manifest.annotations,
                })
            })
            .collect()
        });
        let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests});
        let response = PendingResponse::bytes(OCI_INDEX, index.to_string());
        match wanted {
            Some(_) => response.with(FILTERS, "artifactType"),
            None => response,
        }
    }
}
