//! Rules for the digests of layers.

use harness::fixture_image::Packing;
use registry::Fault;
use sha2::{Digest as _, Sha256};

use crate::prelude::*;
use crate::rules::image::add;
use crate::rules::pull::{SUCCESS, is_absent, repository, said};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-PUL-028": "PullImage fails and leaves no image if a layer does not match its digest, even if it can be unpacked.",
        API, tags ["kubelet", "registry", "security"], calls [PullImage, ImageStatus, ListImages],
        altered_layer_is_refused, faults SUCCESS;
};

async fn altered_layer_is_refused(x: &Context) -> Verdict {
    let no_layer = |error| Outcome::Skipped(format!("no layer: {error}"));
    let layer = Layer::new().file("a", 0o644, vec![b'a'; 5000]);
    let layer = layer.packed(Packing::Plain);
    let tar = layer.tar().map_err(no_layer)?;
    let digest = Sha256::digest(&tar);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let (name, _) = add(x, "1", |image| image.layer(layer))?;
    let blob = format!("{}/blobs/sha256:{digest}", repository(x)?);
    // The altered byte is after the end of the archive.
    x.images()?.fail(Fault::corrupt_end().method("GET").on(&blob));
    said(&refused("PullImage", x.client.pull(&name).await)?)?;
    is_absent(x, &name).await
}
