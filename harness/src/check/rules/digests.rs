//! Rules of the digests that a manifest has of an image's parts.

use sha2::{Digest as _, Sha256};

use super::image::add;
use super::image_pull::{SUCCESS, is_absent, repository, said};
use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, refused};
use crate::check::rule::sources::API;
use crate::check::rule::{Rule, Severity};
use crate::fixture_image::{Layer, Packing};
use crate::registry::Fault;

pub(super) const RULES: &[Rule] = &[Rule {
    id: "CRI-PUL-028",
    severity: Severity::Must,
    says: "PullImage fails when a layer is not what its digest says though it can be unpacked, and there is no image.",
    source: API,
    tags: &["kubelet", "registry", "security"],
    calls: &["PullImage", "ImageStatus", "ListImages"],
    faults: SUCCESS,
    body: |x| Box::pin(altered_layer_is_refused(x)),
}];

async fn altered_layer_is_refused(x: &Context) -> Verdict {
    let no_layer = |error| Outcome::Skipped(format!("no layer: {error}"));
    let layer = Layer::new().file("a", 0o644, vec![b'a'; 5000]);
    let layer = layer.packed(Packing::Plain);
    let tar = layer.tar().map_err(no_layer)?;
    let digest = Sha256::digest(&tar);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let (name, _) = add(x, "1", |image| image.layer(layer))?;
    let blob = format!("{}/blobs/sha256:{digest}", repository(x)?);
    // What is altered is behind the end of the archive.
    x.images()?
        .fail(Fault::corrupt_end().method("GET").on(&blob));
    said(&refused("PullImage", x.client.pull(&name).await)?)?;
    is_absent(x, &name).await
}
