//! Rules of images beside their content: what is left of one that was removed, its size, its tags.

use std::io::Read as _;

use cri::v1;

use super::image::{add, pull};
use super::image_content::{image, script};
use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, ensure, equal};
use crate::check::rule::sources::{CONTAINERD, CRITEST, KUBELET};
use crate::check::rule::{Rule, Severity};
use crate::fixture_image::{ImageBuilder, Layer};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-CNT-012",
        severity: Severity::Must,
        says: "The status of a container goes on when its image was removed, and the container too.",
        source: CONTAINERD,
        tags: &["kubelet", "image", "state"],
        calls: &["RemoveImage", "ContainerStatus"],
        faults: &[
            "ContainerStatus answer NOT_FOUND",
            "ContainerStatus set status.state \"CONTAINER_EXITED\"",
            "ContainerStatus drop status.image",
            "ContainerStatus drop status.image_ref",
        ],
        body: |x| Box::pin(container_outlives_image(x)),
    },
    Rule {
        id: "CRI-CNT-013",
        severity: Severity::Must,
        says: "The size of an image is that of its content, in bytes.",
        source: KUBELET,
        tags: &["kubelet", "statistics"],
        calls: &["ImageStatus", "ListImages"],
        faults: &[
            "ImageStatus set image.size 1024",
            "ImageStatus set image.size 1000000000",
            "ListImages set images.size 1024",
        ],
        body: |x| Box::pin(size_is_in_bytes(x)),
    },
    Rule {
        id: "CRI-CNT-014",
        severity: Severity::Must,
        says: "RemoveImage by one tag removes the image with its other tags.",
        source: CRITEST,
        tags: &["kubelet", "names"],
        calls: &["RemoveImage", "ImageStatus", "ListImages"],
        faults: &["RemoveImage swallow"],
        body: |x| Box::pin(one_tag_removes_all(x)),
    },
];

async fn container_outlives_image(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let image = image(x, "1", |image| image).await?;
    let pod = x.pod().await?;
    let id = pod
        .start(script(x, &image, "echo ready; sleep 1000"))
        .await?;
    x.logged(&pod, &id, "ready").await?;
    if let Err(status) = x.client.remove_image(&image).await {
        let why = format!("RemoveImage of an image in use: {}", status.message());
        return Err(Outcome::Diverges(why));
    }
    let status = x.client.container(&id).await?;
    equal(
        "the state",
        &status.state(),
        &v1::ContainerState::ContainerRunning,
    )?;
    let image = status.image.unwrap_or_default().image;
    ensure(
        !image.is_empty(),
        "the image in ContainerStatus",
        "named",
        &image,
    )?;
    // Without a repository's digest it is the id.
    let reference = status.image_ref;
    ensure(
        !reference.is_empty(),
        "image_ref in ContainerStatus",
        "set",
        &reference,
    )?;
    let output = x.client.sh(&id, "echo runs").await?;
    equal("the output of a command", output.as_str(), "runs\n")
}

/// How many random bytes the image of a size has: they cannot be compressed.
const RANDOM: u64 = 2_000_000;

async fn size_is_in_bytes(x: &Context) -> Verdict {
    let mut noise = Vec::new();
    std::fs::File::open("/dev/urandom")
        .and_then(|file| file.take(RANDOM).read_to_end(&mut noise))
        .map_err(|error| Outcome::Skipped(format!("no random bytes: {error}")))?;
    let (name, _) = add(x, "1", |image| {
        image.layer(Layer::new().file("noise", 0o644, noise))
    })?;
    pull(x, &name).await?;
    let image = x.client.image(&name).await?.unwrap_or_default();
    let all = x.client.list_images().await?.into_iter();
    let listed = all
        .filter(|one| one.id == image.id)
        .map(|one| one.size)
        .next();
    for (call, size) in [("ImageStatus", Some(image.size)), ("ListImages", listed)] {
        // Runtimes count layers as they were pulled, as they are on disk, or both.
        let plausible = size.is_some_and(|size| (RANDOM..3 * RANDOM).contains(&size));
        let what = format!("the size in {call} of an image with {RANDOM} random bytes");
        ensure(plausible, &what, "about as many bytes", size)?;
    }
    Ok(())
}

async fn one_tag_removes_all(x: &Context) -> Verdict {
    let (first, _) = add(x, "1", |image| image.env(["SAME=yes"]))?;
    let layer = |image: ImageBuilder| image.env(["SAME=yes"]);
    let name = x.rule.to_lowercase();
    let images = x.images()?;
    // The same content under another tag is the same image.
    images
        .add(&format!("{name}:2"), &format!("{name} 1"), layer)
        .map_err(|error| Outcome::Skipped(error.to_string()))?;
    let second = format!("{}:2", images.name(&name));
    pull(x, &first).await?;
    let id = pull(x, &second).await?;
    let tags = x.client.image(&id).await?.unwrap_or_default().repo_tags;
    equal("how many tags the image has", &tags.len(), &2)?;
    x.client.remove_image(&first).await?;
    for name in [&first, &second, &id] {
        let what = format!("ImageStatus of {name}");
        equal(&what, &x.client.image(name).await?, &None)?;
    }
    let listed = x
        .client
        .list_images()
        .await?
        .into_iter()
        .find(|one| one.id == id);
    equal("the removed image in ListImages", &listed, &None)
}
