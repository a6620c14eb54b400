//! Rules of the removal of images, and of their sizes and tags.

use std::io::Read as _;

use compact::Set;

use crate::prelude::*;
use crate::rules::content::{image, script};
use crate::rules::image::{add, pull, status};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-CNT-012": "A container keeps running after its image is removed, and keeps its status and the files of every layer.",
        CONTAINERD, tags ["kubelet", "image", "state"], calls [RemoveImage, ContainerStatus, ExecSync],
        container_outlives_image given [namespaces], faults [
            "ExecSync drop stdout",
            "ContainerStatus answer NOT_FOUND",
            "ContainerStatus set status.state \"CONTAINER_EXITED\"",
            "ContainerStatus drop status.image",
            "ContainerStatus drop status.image_ref",
        ];
    Must "CRI-CNT-013": "ImageStatus and ListImages report an image's size in bytes.",
        KUBELET, tags ["kubelet", "statistics"], calls [ImageStatus, ListImages],
        size_is_in_bytes, faults [
            "ImageStatus set image.size 1024",
            "ImageStatus set image.size 1000000000",
            "ListImages set images.size 1024",
        ];
    Must "CRI-CNT-014": "RemoveImage by one tag removes the image with all its tags.",
        CRITEST, tags ["kubelet", "names"], calls [RemoveImage, ImageStatus, ListImages],
        one_tag_removes_all, faults ["RemoveImage swallow"];
    Must "CRI-CNT-017": "An image that was pulled from two registries is one image with all tags and digests; RemoveImage by one tag removes the image.",
        CRITEST, tags ["kubelet", "names", "pull"], calls [PullImage, ImageStatus, ListImages, RemoveImage],
        image_of_two_registries_is_shared, faults [
            "RemoveImage swallow",
            "ImageStatus drop image.repo_tags",
            "ImageStatus drop image.repo_digests",
            "ListImages drop images.repo_tags",
        ];
};

/// The number of layers of the removed image, and of unread files in each.
const LAYERS: usize = 5;
const UNREAD: usize = 4;

async fn container_outlives_image(x: &Context) -> Verdict {
    let unread = (0..LAYERS).map(|layer| {
        (0..UNREAD).fold(Layer::new(), |all, file| {
            let number = layer * UNREAD + file;
            let path = format!("work/unread{number}");
            all.file(&path, 0o644, format!("there {number}\n"))
        })
    });
    let image = image(x, "1", |image| unread.fold(image, ImageBuilder::layer)).await?;
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, script(x, &image, "echo ready; sleep 1000")).await?;
    if let Err(status) = x.client.remove_image(&image).await {
        let why = format!("RemoveImage refuses an image in use: {}", status.message());
        return Err(Outcome::Diverges(why));
    }
    let status = x.client.container(&id).await?;
    equal("the state", &status.state(), &ContainerState::ContainerRunning)?;
    let image = status.image.unwrap_or_default().image;
    ensure(!image.is_empty(), "the image in ContainerStatus", "a name", &image)?;
    // Without a repository digest, image_ref is the id.
    let reference = status.image_ref;
    ensure(!reference.is_empty(), "image_ref in ContainerStatus", "not empty", &reference)?;
    // Runtimes remove layers in the background: the last file is read two seconds after the first one.
    let text = format!(
        "echo runs; n=0; while [ $n -lt {} ]; do cat /work/unread$n || exit; n=$((n + 1)); sleep 0.1; done",
        LAYERS * UNREAD
    );
    let output = x.client.sh(&id, &text).await?;
    let files = (0..LAYERS * UNREAD).map(|number| format!("there {number}\n"));
    let expected = format!("runs\n{}", files.collect::<String>());
    equal("the output of a command", output.as_str(), expected.as_str())
}

/// The number of random bytes in the image: they cannot be compressed.
const RANDOM: u64 = 2_000_000;

async fn size_is_in_bytes(x: &Context) -> Verdict {
    let mut noise = Vec::new();
    std::fs::File::open("/dev/urandom")
        .and_then(|file| file.take(RANDOM).read_to_end(&mut noise))
        .map_err(|error| Outcome::Skipped(format!("no random bytes: {error}")))?;
    let (name, _) = add(x, "1", |image| image.layer(Layer::new().file("noise", 0o644, noise)))?;
    pull(x, &name).await?;
    let image = x.client.image(&name).await?.unwrap_or_default();
    let all = x.client.list_images().await?.into_iter();
    let listed = all.filter(|one| one.id == image.id).map(|one| one.size).next();
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
    equal("the number of tags", &tags.len(), &2)?;
    x.client.remove_image(&first).await?;
    for name in [&first, &second, &id] {
        let what = format!("ImageStatus of {name}");
        equal(&what, &x.client.image(name).await?, &None)?;
    }
    let listed = x.client.list_images().await?.into_iter().find(|one| one.id == id);
    equal("the removed image in ListImages", &listed, &None)
}

async fn image_of_two_registries_is_shared(x: &Context) -> Verdict {
    let (first, _) = add(x, "1", |image| image)?;
    // The check's registry has two names.
    let (here, other) = ("127.0.0.1:", "localhost:");
    let second = first.replacen(here, other, 1);
    pull(x, &first).await?;
    if let Err(status) = x.client.pull(&second).await {
        let why = format!("PullImage of {second}: {}", status.message());
        return Err(Outcome::Skipped(why));
    }
    let image = status(x, &first).await?;
    let again = status(x, &second).await?;
    equal("the id of the image from the other registry", &again.id, &image.id)?;
    let names = |names: &[String]| -> Set<String> { names.iter().cloned().collect() };
    let both = Set::from([first.clone(), second.clone()]);
    let all = x.client.list_images().await?;
    let listed = all.into_iter().filter(|one| one.id == image.id);
    let listed: Vec<v1::Image> = listed.collect();
    let [listed] = listed.as_slice() else {
        return failed("ListImages", "one image with the id", format!("{listed:?}"));
    };
    equal("the tags in ImageStatus", &names(&again.repo_tags), &both)?;
    equal("the tags in ListImages", &names(&listed.repo_tags), &both)?;
    for host in [here, other] {
        let of_host = |digest: &String| digest.starts_with(host);
        let digests = &again.repo_digests;
        let what = format!("the digests of {host} in ImageStatus");
        ensure(digests.iter().any(of_host), &what, "some", digests)?;
    }
    x.client.remove_image(&first).await?;
    for name in [&first, &second, &image.id] {
        let what = format!("ImageStatus of {name}");
        equal(&what, &x.client.image(name).await?, &None)?;
    }
    Ok(())
}
