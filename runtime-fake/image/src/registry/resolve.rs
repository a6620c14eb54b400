//! Fetches the documents of an image from a registry and verifies them.

use image_reference::Reference;

use crate::error::{ContentError, PullError};
use crate::formats::Descriptor;
use crate::formats::digest::Digest;
use crate::formats::limits::Limits;
use crate::formats::platform::Platform;
use crate::formats::resolve::{self, Next, Resolved, Walk};

use super::peer::Window;
use super::session::{Document, Session, blob_doing};

/// The document that the reference names, and its digest.
pub(crate) async fn named(
    session: &Session,
    reference: &Reference,
    limits: &Limits,
) -> Result<(Document, Digest), PullError> {
    let wanted = match (&reference.digest, &reference.tag) {
        (Some(digest), _) => digest.as_str(),
        (None, Some(tag)) => tag.as_str(),
        (None, None) => "latest",
    };
    // Check the digest before any request: content with another algorithm could not be verified.
    let expected = reference.digest.as_deref().map(|digest| {
        digest.parse::<Digest>().map_err(|source| {
            let what = "the reference".to_owned();
            session.peer.content(ContentError::Digest { what, source })
        })
    });
    let expected = expected.transpose()?;
    let document = session.manifest(wanted, limits.document_bytes).await?;
    let actual = Digest::of(&document.bytes);
    ContentError::same_digest(format!("manifest {wanted}"), expected.unwrap_or(actual), actual)
        .map_err(|problem| session.peer.content(problem))?;
    Ok((document, actual))
}

/// Resolves the document to the image for this machine, verifying each document.
pub(crate) async fn image(
    session: &Session,
    mut document: Document,
    mut digest: Digest,
    limits: &Limits,
) -> Result<Resolved, PullError> {
    let refuse = |problem| session.peer.content(problem);
    let platform = Platform::here();
    let mut walk = Walk::new(&platform);
    loop {
        let next = walk.read(digest, &document.media_type, document.bytes);
        match next.map_err(refuse)? {
            Next::Document(chosen) => {
                digest = resolve::wanted(&chosen, limits).map_err(refuse)?;
                let name = digest.to_string();
                document = session.manifest(&name, limits.document_bytes).await?;
                resolve::verify(&document.bytes, &chosen).map_err(refuse)?;
            }
            Next::Image(manifest) => {
                let config = config(session, manifest.config(), limits).await?;
                return manifest.image(config, limits).map_err(refuse);
            }
        }
    }
}

async fn config(
    session: &Session,
    descriptor: &Descriptor,
    limits: &Limits,
) -> Result<Vec<u8>, PullError> {
    let refuse = |problem| session.peer.content(problem);
    let id = resolve::wanted(descriptor, limits).map_err(refuse)?;
    let mut failures = 0;
    let bytes = loop {
        // The stream ends soon after the promised size: more bytes prove that the blob is wrong.
        match small_blob(session, &id, descriptor.size).await {
            Ok(bytes) => break bytes,
            Err(error) => session.again(&mut failures, error).await?,
        }
    };
    resolve::verify(&bytes, descriptor).map_err(refuse)?;
    Ok(bytes)
}

/// Reads a blob, at most one chunk beyond `limit`.
async fn small_blob(session: &Session, id: &Digest, limit: u64) -> Result<Vec<u8>, PullError> {
    let doing = blob_doing(&id.to_string());
    let (_, mut response) = session.blob(id, 0).await?;
    let mut bytes = Vec::new();
    let mut window = Window::begin();
    while bytes.len() as u64 <= limit {
        match response.chunk().await.map_err(|error| session.peer.broken(&error, &doing))? {
            Some(chunk) => bytes.extend_from_slice(&chunk),
            None => break,
        }
        session.peer.check_speed(&mut window, bytes.len() as u64, &doing)?;
    }
    Ok(bytes)
}
