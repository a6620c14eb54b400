//! Serves, stores and deletes manifests, by tag and by digest. A manifest keeps the media type that it was pushed with,
//! and is accepted only if all content that it needs is stored.

use std::{fs, io};

use hyper::StatusCode;
use hyper::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderName, LOCATION};
use serde_json::{Value, json};

use super::super::answer::Answer;
use super::super::document::{Document, OCI_INDEX, accepts};
use super::super::names::Names;
use super::super::route::{Digest, Reference, field};
use super::super::store::{LONGEST_MANIFEST, digest_of, has_digest};
use super::{Ask, CONTENT_DIGEST, Server, refuse_missing, uploads};

/// The header that confirms a manifest's subject.
const SUBJECT: HeaderName = HeaderName::from_static("oci-subject");
/// The header that names the filters of a listing.
const FILTERS: HeaderName = HeaderName::from_static("oci-filters-applied");

impl Server {
    pub(super) fn manifest(
        &self,
        ask: &Ask,
        name: &str,
        reference: &Reference,
    ) -> io::Result<Answer> {
        let found = self.store.names(|names| {
            let (_, digest, manifest) = names.manifest(name, ask.registry(), reference)?;
            Ok((digest.clone(), manifest.media_type.clone()))
        });
        let (digest, kind) = match found {
            Ok(found) => found,
            Err(missing) => return Ok(refuse_missing(&missing, name, "MANIFEST_UNKNOWN")),
        };
        let wanted = ask.headers.get_all(ACCEPT).iter();
        if !accepts(wanted.filter_map(|value| value.to_str().ok()), &kind) {
            let said = format!("the manifest is of the type {kind}, which is not asked for");
            return Ok(Answer::refusal(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", &said));
        }
        let bytes = fs::read(self.store.blob_path(&digest))?;
        Ok(Answer::bytes(&kind, bytes)
            .with(CONTENT_DIGEST, digest.as_str())
            .with(ETAG, &format!("\"{digest}\"")))
    }

    pub(super) async fn put_manifest(
        &self,
        ask: Ask,
        name: &str,
        reference: &Reference,
    ) -> io::Result<Answer> {
        let said = ask.header(&CONTENT_TYPE).map(str::to_owned);
        let keep = Names::for_push(name, ask.registry());
        let bytes = match uploads::read_all(ask.body, LONGEST_MANIFEST).await {
            Ok(bytes) => bytes,
            Err(refusal) => return Ok(refusal),
        };
        let bad = |code, said: &str| Ok(Answer::refusal(StatusCode::BAD_REQUEST, code, said));
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
        let kind = said.unwrap_or_else(|| document.kind().to_owned());
        let missing = document.blobs().find(|blob| {
            let digest = blob.digest.parse();
            !digest.is_ok_and(|digest: Digest| self.store.blob_size(&digest).is_some())
        });
        if let Some(blob) = missing {
            let said = format!("push the blob {} first", blob.digest);
            return bad("MANIFEST_BLOB_UNKNOWN", &said);
        }
        self.store.put_manifest(&keep, tag, &digest, &kind, &bytes, &document)?;
        self.store.write_index()?;
        let answer = Answer::empty(StatusCode::CREATED)
            .with(LOCATION, &format!("/v2/{name}/manifests/{digest}"))
            .with(CONTENT_DIGEST, digest.as_str());
        Ok(match document.subject() {
            Some(subject) => answer.with(SUBJECT, subject.as_str()),
            None => answer,
        })
    }

    pub(super) fn delete_manifest(
        &self,
        ask: &Ask,
        name: &str,
        reference: &Reference,
    ) -> io::Result<Answer> {
        let removed = self.store.names(|names| {
            let (full, ..) = names.manifest(name, ask.registry(), reference)?;
            let full = full.to_owned();
            names.remove(&full, reference);
            Ok(())
        });
        if let Err(missing) = removed {
            return Ok(refuse_missing(&missing, name, "MANIFEST_UNKNOWN"));
        }
        self.store.write_index()?;
        Ok(Answer::empty(StatusCode::ACCEPTED))
    }

    pub(super) fn referrers(&self, ask: &Ask, name: &str, subject: &Digest) -> Answer {
        let wanted = field(&ask.fields, "artifactType");
        let manifests: Vec<Value> = self.store.names(|names| {
            let all = names.referrers(name, ask.registry(), subject);
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
        let answer = Answer::bytes(OCI_INDEX, index.to_string());
        match wanted {
            Some(_) => answer.with(FILTERS, "artifactType"),
            None => answer,
        }
    }
}
