//! Rules of images: pull, status, list, remove, with images from the check's own registry.

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-IMG-001": "A pulled image has an id, a size and the pulled tag in ImageStatus, and is not pinned.",
        CRITEST, tags ["kubelet"], calls [PullImage, ImageStatus],
        pulled_image_has_status, faults [
            "ImageStatus drop image.id",
            "ImageStatus drop image.size",
            "ImageStatus drop image.repo_tags",
            "ImageStatus set image.pinned true",
            "PullImage swallow",
        ];
    Must "CRI-IMG-002": "ImageStatus of a missing image returns no image and no error.",
        API, tags ["kubelet", "codes"], calls [ImageStatus],
        missing_image_has_no_status, faults [
            "ImageStatus set image {\"id\": \"x\", \"size\": 1}",
            "ImageStatus answer NOT_FOUND",
        ];
    Must "CRI-IMG-003": "ListImages returns a pulled image with the same fields as ImageStatus.",
        CRITEST, tags ["kubelet", "agreement"], calls [PullImage, ListImages, ImageStatus],
        pulled_image_is_listed, faults [
            "ListImages drop images",
            "ListImages drop images.repo_digests",
            "ListImages set images.size 1",
            "ListImages drop images.uid.value",
            "ListImages drop images.username",
        ];
    Must "CRI-IMG-004": "ImageStatus returns the same image for the image's id, tag and digest.",
        CRITEST, tags ["kubelet", "names"], calls [ImageStatus],
        every_name_has_the_same_status, faults [
            "ImageStatus after 1 drop image",
            "ImageStatus after 2 drop image",
        ];
    Must "CRI-IMG-005": "PullImage returns a reference with which ImageStatus finds the image.",
        KUBELET, tags ["kubelet", "names"], calls [PullImage, ImageStatus],
        pull_returns_name_of_image, faults [
            "PullImage set image_ref \"sha256:none\"",
            "PullImage drop image_ref",
        ];
    Must "CRI-IMG-006": "ListImages omits a removed image, and ImageStatus returns no image for any of its names.",
        CRITEST, tags ["kubelet"], calls [RemoveImage, ImageStatus, ListImages],
        removed_image_is_gone, faults ["RemoveImage swallow"];
    Must "CRI-IMG-007": "RemoveImage of a missing image succeeds.",
        API, tags ["kubelet", "idempotence"], calls [RemoveImage],
        remove_of_missing_image_succeeds, faults ["RemoveImage answer NOT_FOUND"];
    Must "CRI-IMG-008": "An image pulled by digest has the requested digest and no tag.",
        CRITEST, tags ["kubelet", "names"], calls [PullImage, ImageStatus],
        image_pulled_by_digest_has_no_tag, faults [
            "ImageStatus drop image.repo_digests",
            "ImageStatus set image.repo_tags [\"a:b\"]",
        ];
    Must "CRI-IMG-009": "An image pulled without a tag has the tag latest.",
        CRITEST, tags ["names"], calls [PullImage, ImageStatus],
        image_without_tag_is_latest, faults [
            "ImageStatus set image.repo_tags [\"a:1\"]",
            "PullImage swallow",
        ];
    Must "CRI-IMG-010": "PullImage of an image that the registry does not have returns an error.",
        KUBELET, tags ["kubelet", "codes"], calls [PullImage],
        pull_of_missing_image_fails, faults ["PullImage swallow"];
    Must "CRI-IMG-011": "ImageStatus reports the user of the image's configuration as a uid or as a username.",
        CRITEST, tags ["kubelet", "user"], calls [ImageStatus],
        status_has_user_of_image, faults [
            "ImageStatus drop image.uid",
            "ImageStatus drop image.username",
            "ImageStatus set image.username \"www-data:group\"",
        ];
    Must "CRI-IMG-012": "An image with several tags is listed once, with all of its tags.",
        CRITEST, tags ["names"], calls [ListImages],
        several_tags_are_one_image, faults [
            "ListImages set images.repo_tags [\"a:1\"]",
            "ListImages drop images.repo_tags",
        ];
    Should "CRI-IMG-013": "ListImages filtered by an image's name, id or digest returns only that image, and returns no image once that image is removed.",
        API, tags ["filter"], calls [ListImages],
        images_are_filtered_by_name, faults [
            "ListImages request drop filter",
            "ListImages drop images",
            "ListImages if request.filter.image.image prefix \"sha256:\" drop images",
            "ListImages stale",
        ];
    Must "CRI-IMG-014": "Concurrent RemoveImage calls for one image all succeed and remove it.",
        CRITEST, tags ["concurrency", "idempotence"], calls [RemoveImage, ImageStatus],
        concurrent_removals_succeed, faults ["RemoveImage after 2 answer NOT_FOUND", "RemoveImage swallow"];
    Must "CRI-IMG-015": "PullImage of an image that is already present succeeds and returns the same reference.",
        KUBELET, tags ["kubelet", "idempotence"], calls [PullImage],
        second_pull_returns_the_same, faults [
            "PullImage after 1 answer ALREADY_EXISTS",
            "PullImage after 1 set image_ref \"x\"",
        ];
};

/// Adds an image of this rule to the registry; returns its name with the tag, and its digest.
pub(crate) fn add(
    x: &Context,
    tag: &str,
    change: impl FnOnce(ImageBuilder) -> ImageBuilder,
) -> Verdict<(String, String)> {
    let images = x.images()?;
    let name = x.rule.to_lowercase();
    match images.add(&format!("{name}:{tag}"), &format!("{name} {tag}"), change) {
        Ok(digest) => Ok((format!("{}:{tag}", images.name(&name)), digest)),
        Err(error) => Err(Outcome::Skipped(error.to_string())),
    }
}

/// Adds an image and pulls it.
pub(crate) async fn pulled(x: &Context) -> Verdict<(String, v1::Image)> {
    let (name, _) = add(x, "1", |image| image)?;
    pull(x, &name).await?;
    Ok((name.clone(), status(x, &name).await?))
}

/// Pulls from the check's own registry.
pub(crate) async fn pull(x: &Context, name: &str) -> Verdict<String> {
    x.client.pull(name).await.map_err(refusal)
}

/// The outcome of a refused pull: some endpoints are not configured for the check's own registry.
pub(crate) fn refusal(status: Status) -> Outcome {
    match status.message().contains("HTTP response to HTTPS client") {
        true => Outcome::Skipped(format!(
            "the endpoint needs 127.0.0.1 as an insecure registry: {}",
            status.message()
        )),
        false => Outcome::from(status),
    }
}

pub(crate) async fn status(x: &Context, name: &str) -> Verdict<v1::Image> {
    present(x.client.image(name).await?, format!("ImageStatus of {name}"), "an image", "none")
}

async fn pulled_image_has_status(x: &Context) -> Verdict {
    let (name, image) = pulled(x).await?;
    ensure(!image.id.is_empty(), "the id", "not empty", &image)?;
    ensure(image.size > 0, "the size", "not 0", &image)?;
    ensure(!image.pinned, "pinned", "false: the kubelet never removes a pinned image", &image)?;
    equal("repo_tags", &image.repo_tags, &vec![name])
}

async fn missing_image_has_no_status(x: &Context) -> Verdict {
    let name = "127.0.0.1:1/crib-check/no/such/image:1";
    equal("ImageStatus", &x.client.image(name).await?, &None)
}

async fn pulled_image_is_listed(x: &Context) -> Verdict {
    for (tag, user) in [("none", ""), ("number", "1002"), ("name", "www-data")] {
        let (name, _) = add(x, tag, |image| image.user(user))?;
        pull(x, &name).await?;
        let image = status(x, &name).await?;
        let all = x.client.list_images().await?;
        let listed = all.into_iter().find(|one| one.repo_tags.contains(&name));
        equal("the image in ListImages", &listed, &Some(image))?;
    }
    Ok(())
}

async fn every_name_has_the_same_status(x: &Context) -> Verdict {
    let (name, image) = pulled(x).await?;
    let names = [&image.id].into_iter().chain(&image.repo_digests).chain([&name]);
    for name in names {
        let same = x.client.image(name).await?;
        equal(&format!("ImageStatus of {name}"), &same.as_ref(), &Some(&image))?;
    }
    Ok(())
}

async fn pull_returns_name_of_image(x: &Context) -> Verdict {
    let (name, _) = add(x, "1", |image| image)?;
    let reference = pull(x, &name).await?;
    ensure(!reference.is_empty(), "image_ref", "not empty", &reference)?;
    let (by_reference, by_name) = (status(x, &reference).await?, status(x, &name).await?);
    equal("the id in ImageStatus of the returned image_ref", &by_reference.id, &by_name.id)
}

async fn removed_image_is_gone(x: &Context) -> Verdict {
    let (name, image) = pulled(x).await?;
    x.client.remove_image(&name).await?;
    for name in [&name, &image.id].into_iter().chain(&image.repo_digests) {
        equal(&format!("ImageStatus of {name}"), &x.client.image(name).await?, &None)?;
    }
    let all = x.client.list_images().await?;
    let listed = all.iter().find(|one| one.id == image.id);
    equal("the removed image in ListImages", &listed, &None)
}

async fn remove_of_missing_image_succeeds(x: &Context) -> Verdict {
    let name = "127.0.0.1:1/crib-check/no/such/image:1";
    x.client.remove_image(name).await?;
    Ok(x.client.remove_image(name).await?)
}

async fn image_pulled_by_digest_has_no_tag(x: &Context) -> Verdict {
    let (name, digest) = add(x, "1", |image| image)?;
    let repository = name.strip_suffix(":1").unwrap_or(&name);
    let by_digest = format!("{repository}@{digest}");
    pull(x, &by_digest).await?;
    let image = status(x, &by_digest).await?;
    equal("repo_digests", &image.repo_digests, &vec![by_digest])?;
    equal("repo_tags", &image.repo_tags, &Vec::<String>::new())
}

async fn image_without_tag_is_latest(x: &Context) -> Verdict {
    let (name, _) = add(x, "latest", |image| image)?;
    let bare = name.strip_suffix(":latest").unwrap_or(&name);
    pull(x, bare).await?;
    equal("repo_tags", &status(x, bare).await?.repo_tags, &vec![name])
}

async fn pull_of_missing_image_fails(x: &Context) -> Verdict {
    let name = format!("{}:none", x.images()?.name("no-such-image"));
    refused("PullImage of a missing image", x.client.pull(&name).await).map(drop)
}

async fn status_has_user_of_image(x: &Context) -> Verdict {
    for (tag, user, expected) in [
        ("number", "1002", (Some(1002), "")),
        ("name", "www-data", (None, "www-data")),
        ("both", "1003:group", (Some(1003), "")),
        ("numbers", "1003:1004", (Some(1003), "")),
        ("names", "www-data:group", (None, "www-data")),
    ] {
        let (name, _) = add(x, tag, |image| image.user(user))?;
        pull(x, &name).await?;
        let image = status(x, &name).await?;
        let seen = (image.uid.map(|uid| uid.value), image.username.as_str());
        equal(&format!("uid and username of an image with USER {user}"), &seen, &expected)?;
    }
    Ok(())
}

async fn several_tags_are_one_image(x: &Context) -> Verdict {
    let images = x.images()?;
    let name = x.rule.to_lowercase();
    let mut tags = Vec::new();
    for tag in ["a", "b", "c"] {
        images
            .add(&format!("{name}:{tag}"), "the same", |image| image)
            .map_err(|error| Outcome::Skipped(error.to_string()))?;
        let full = format!("{}:{tag}", images.name(&name));
        pull(x, &full).await?;
        tags.push(full);
    }
    let all = x.client.list_images().await?;
    let ours = all.into_iter().filter(|image| image.repo_tags.iter().any(|tag| tags.contains(tag)));
    let seen: Vec<Vec<String>> = ours
        .map(|mut image| {
            image.repo_tags.sort();
            image.repo_tags
        })
        .collect();
    equal("repo_tags in ListImages", &seen, &vec![tags])
}

async fn images_are_filtered_by_name(x: &Context) -> Verdict {
    let (name, image) = pulled(x).await?;
    let by = async |name: &str| -> Verdict<Vec<String>> {
        let image = v1::ImageSpec { image: name.to_owned(), ..Default::default() };
        let filter = Some(v1::ImageFilter { image: Some(image) });
        let request = v1::ListImagesRequest { filter };
        let answer = x.client.images.clone().list_images(request).await?.into_inner();
        Ok(answer.images.into_iter().map(|image| image.id).collect())
    };
    let names: Vec<&String> = [&name, &image.id].into_iter().chain(&image.repo_digests).collect();
    for one in &names {
        equal(&format!("ListImages by {one}"), &by(one).await?, std::slice::from_ref(&image.id))?;
    }
    x.client.remove_image(&name).await?;
    for one in names {
        equal(&format!("ListImages by {one} after its removal"), &by(one).await?, &vec![""; 0])?;
    }
    Ok(())
}

async fn concurrent_removals_succeed(x: &Context) -> Verdict {
    let (_, image) = pulled(x).await?;
    let mut removals = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let (client, id) = (x.client.clone(), image.id.clone());
        removals.spawn(tasks::boxed(async move { client.remove_image(&id).await }));
    }
    while let Some(removal) = removals.join_next().await {
        joined("RemoveImage", removal)??;
    }
    equal("ImageStatus", &x.client.image(&image.id).await?, &None)
}

async fn second_pull_returns_the_same(x: &Context) -> Verdict {
    let (name, _) = add(x, "1", |image| image)?;
    let first = pull(x, &name).await?;
    equal("image_ref of the second PullImage", &pull(x, &name).await?, &first)
}
