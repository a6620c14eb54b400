//! Rules for pulls from registries that misbehave, move tags or require credentials: a pull fails, or its image is correct.

pub(crate) mod concurrency;
pub(crate) mod credentials;

use harness::fixture_image::Packing;
use registry::{Auth, Fault, Registry};
use sha2::{Digest as _, Sha256};

use crate::prelude::*;
use crate::rules::image::{add, pull, refusal, status};

/// Faults that violate rules of failing pulls.
pub(crate) const SUCCESS: &[&str] =
    &["PullImage swallow", "ImageStatus set image {\"id\": \"sha256:none\", \"size\": 1}"];

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-PUL-001": "PullImage returns the id of the image, not its name.",
        KUBELET, tags ["kubelet", "names"], calls [PullImage, ImageStatus],
        pull_returns_id, faults [
            "PullImage set image_ref \"docker.io/library/busybox:latest\"",
            "PullImage set image_ref \"sha256:none\"",
            "ImageStatus set image.id \"sha256:none\"",
        ];
    Must "CRI-PUL-002": "PullImage and ImageStatus accept an image reference with both a tag and a digest.",
        KUBELET, tags ["kubelet", "names"], calls [PullImage, ImageStatus],
        tag_and_digest_are_one_name, faults ["PullImage swallow", "ImageStatus drop image.repo_digests"];
    Must "CRI-PUL-003": "PullImage of a tag that was moved in the registry pulls the new image, and the old image loses the tag.",
        KUBELET, tags ["kubelet", "names"], calls [PullImage, ImageStatus],
        moved_tag_is_pulled_again, faults [
            "PullImage after 1 swallow",
            "PullImage after 1 answer ALREADY_EXISTS",
            "PullImage after 1 set image_ref \"sha256:none\"",
        ];
    Must "CRI-PUL-004": "Concurrent PullImage calls for one image all succeed and return the same image_ref.",
        KUBELET, tags ["kubelet", "concurrency"], calls [PullImage],
        concurrent_pulls_return_the_same, faults [
            "PullImage after 2 set image_ref \"sha256:none\"",
            "PullImage after 3 answer UNKNOWN",
        ];
    Must "CRI-PUL-005": "PullImage follows a registry's redirects for blobs.",
        KUBELET, tags ["kubelet", "registry"], calls [PullImage, ImageStatus],
        redirects_are_followed, faults ["PullImage swallow", "PullImage answer UNKNOWN"];
    Must "CRI-PUL-006": "PullImage fails and leaves no image if a blob does not match its digest.",
        API, tags ["kubelet", "registry", "security"], calls [PullImage, ImageStatus, ListImages],
        pull_fails(|blobs| Fault::corrupt().method("GET").on(blobs)), faults SUCCESS;
    Must "CRI-PUL-007": "PullImage fails and leaves no image if a blob is shorter than its size in the manifest.",
        API, tags ["kubelet", "registry"], calls [PullImage, ImageStatus, ListImages],
        pull_fails(|blobs| Fault::shorten(7).method("GET").on(blobs)), faults SUCCESS;
    Must "CRI-PUL-008": "PullImage fails and leaves no image if the registry returns 404 for a blob.",
        KUBELET, tags ["kubelet", "registry"], calls [PullImage, ImageStatus, ListImages],
        pull_fails(|blobs| Fault::status(404).on(blobs)), faults SUCCESS;
    Must "CRI-PUL-009": "PullImage by digest fails and leaves no image if the manifest does not match the digest.",
        API, tags ["kubelet", "registry", "security"], calls [PullImage, ImageStatus],
        manifest_is_compared_with_digest, faults SUCCESS;
    Must "CRI-PUL-010": "PullImage fails and leaves no image if a layer is truncated or is not a tar archive.",
        API, tags ["kubelet", "registry"], calls [PullImage, ImageStatus],
        broken_layers_are_refused, faults SUCCESS;
    Must "CRI-PUL-011": "No entry of a layer is written outside the image, whatever its path or link target.",
        CRIO, tags ["registry", "security"], calls [PullImage, ImageStatus],
        layers_stay_inside, faults ["PullImage swallow"];
    Must "CRI-PUL-012": "PullImage sends the request's credentials to the registry. If the registry requires credentials, a pull without credentials or with a wrong password fails.",
        KUBELET, tags ["kubelet", "registry", "security"], calls [PullImage],
        credentials_are_sent, faults [
            "PullImage request drop auth",
            "PullImage request drop auth.password",
            "PullImage swallow",
        ];
    Must "CRI-PUL-013": "After PullImage fails, a later PullImage succeeds once the registry works again.",
        KUBELET, tags ["kubelet", "registry"], calls [PullImage, ImageStatus],
        failed_pull_is_repeated, faults [
            "PullImage swallow",
            "PullImage answer UNKNOWN",
            "ImageStatus drop image",
        ];
    Must "CRI-PUL-014": "RemoveImage by id or by digest removes the image with its tags.",
        CRITEST, tags ["kubelet", "names"], calls [RemoveImage, ImageStatus, ListImages],
        image_is_removed_by_id, faults ["RemoveImage swallow", "RemoveImage after 1 swallow"];
};

pub(crate) fn repository(x: &Context) -> Verdict<String> {
    Ok(x.images()?.repository(&x.rule.to_lowercase()))
}

fn blobs(x: &Context) -> Verdict<String> {
    Ok(format!("{}/blobs/", repository(x)?))
}

/// Fails if ImageStatus or ListImages has an image of this name.
pub(crate) async fn is_absent(x: &Context, name: &str) -> Verdict {
    equal("ImageStatus", &x.client.image(name).await?, &None)?;
    let all = x.client.list_images().await?;
    let names = |image: &v1::Image| [image.repo_tags.as_slice(), &image.repo_digests].concat();
    let listed = all.into_iter().find(|one| names(one).iter().any(|one| one == name));
    equal("the image in ListImages", &listed, &None)
}

async fn pull_returns_id(x: &Context) -> Verdict {
    let (name, _) = add(x, "1", |image| image)?;
    let reference = pull(x, &name).await?;
    let id = status(x, &name).await?.id;
    match reference.contains('@') && reference != id {
        true => diverges(format!("PullImage returns a digest of the repository: {reference}")),
        false => equal("the image_ref of PullImage", &reference, &id),
    }
}

async fn tag_and_digest_are_one_name(x: &Context) -> Verdict {
    let (name, digest) = add(x, "1", |image| image)?;
    let both = format!("{name}@{digest}");
    let by_digest = format!("{}@{digest}", name.strip_suffix(":1").unwrap_or(&name));
    pull(x, &both).await?;
    let image = status(x, &both).await?;
    equal("repo_digests", &image.repo_digests, &vec![by_digest.clone()])?;
    let same = status(x, &by_digest).await?;
    equal("ImageStatus by the digest alone", &same, &image)
}

/// Replaces the image behind a tag in the registry.
fn move_tag(x: &Context) -> Verdict<String> {
    add(x, "1", |image| image.env(["MOVED=yes"])).map(|(_, digest)| digest)
}

async fn moved_tag_is_pulled_again(x: &Context) -> Verdict {
    let (name, _) = add(x, "1", |image| image)?;
    let first = pull(x, &name).await?;
    move_tag(x)?;
    let second = pull(x, &name).await?;
    let what = "the image_ref of a moved tag";
    ensure(second != first, what, "another image", (&first, &second))?;
    let image = status(x, &name).await?;
    let by_reference = status(x, &second).await?;
    equal("ImageStatus by the tag", &image, &by_reference)?;
    equal("repo_tags of the new image", &image.repo_tags, &vec![name])?;
    // A runtime may keep the old image without a tag, or remove it.
    let old = x.client.image(&first).await?.unwrap_or_default().repo_tags;
    equal("repo_tags of the old image", &old, &Vec::<String>::new())
}

async fn concurrent_pulls_return_the_same(x: &Context) -> Verdict {
    let (name, _) = add(x, "1", |image| image)?;
    let mut pulls: tokio::task::JoinSet<_> = (0..5)
        .map(|_| {
            let (client, name) = (x.client.clone(), name.clone());
            async move { client.pull(&name).await }
        })
        .collect();
    let mut references = compact::Set::new();
    while let Some(ended) = pulls.join_next().await {
        references.insert(joined("PullImage", ended)?.map_err(refusal)?);
    }
    equal("the number of images that PullImage returned", &references.len(), &1)
}

async fn redirects_are_followed(x: &Context) -> Verdict {
    let (name, _) = add(x, "1", |image| image)?;
    let images = x.images()?;
    // Each request is redirected once: for the configuration and for the layer.
    let elsewhere = Fault::redirect(images.url()).method("GET").on(&blobs(x)?);
    images.fail(elsewhere.times(2));
    pull(x, &name).await?;
    let image = status(x, &name).await?;
    ensure(image.size > 0, "the size", "not 0", &image)
}

async fn pull_fails(x: &Context, fault: fn(&str) -> Fault) -> Verdict {
    let (name, _) = add(x, "1", |image| image)?;
    x.images()?.fail(fault(&blobs(x)?));
    let refusal = refused("PullImage", x.client.pull(&name).await)?;
    skip_on_connection_error(&refusal)?;
    is_absent(x, &name).await
}

/// Skips the rule if the error is about the connection, so that the pull did not reach the fault.
pub(crate) fn skip_on_connection_error(status: &Status) -> Verdict {
    let outcome = refusal(status.clone());
    match matches!(outcome, Outcome::Skipped(_)) {
        true => Err(outcome),
        false => Ok(()),
    }
}

async fn manifest_is_compared_with_digest(x: &Context) -> Verdict {
    let (name, digest) = add(x, "1", |image| image)?;
    let by_digest = format!("{}@{digest}", name.strip_suffix(":1").unwrap_or(&name));
    let manifests = format!("{}/manifests/", repository(x)?);
    // A corrupt manifest, and a valid one of the same image with another digest.
    for fault in [Fault::corrupt(), Fault::lengthen()] {
        x.images()?.fail(fault.method("GET").on(&manifests).times(1));
        skip_on_connection_error(&refused("PullImage", x.client.pull(&by_digest).await)?)?;
        is_absent(x, &by_digest).await?;
    }
    Ok(())
}

async fn broken_layers_are_refused(x: &Context) -> Verdict {
    let whole = harness::fixture_image::Layer::new()
        .file("a", 0o644, vec![b'a'; 5000])
        .tar()
        .map_err(|error| Outcome::Skipped(format!("no layer: {error}")))?;
    let middle = whole.get(..3000).unwrap_or_default().to_vec();
    for (tag, stream) in [("noise", vec![b'x'; 5000]), ("middle", middle)] {
        let layer = harness::fixture_image::Layer::of_stream(stream);
        let (name, _) = add(x, tag, |image| image.layer(layer))?;
        let what = format!("PullImage of an image whose layer is broken ({tag})");
        skip_on_connection_error(&refused(&what, x.client.pull(&name).await)?)?;
        is_absent(x, &name).await?;
    }
    Ok(())
}

/// An entry of a tar archive, with a path that no builder would write.
fn entry(kind: tar::EntryType, path: &str, link: &str, body: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(body.len() as u64);
    let gnu = header.as_old_mut();
    for (field, text) in [(&mut gnu.name, path), (&mut gnu.linkname, link)] {
        for (to, from) in field.iter_mut().zip(text.as_bytes()) {
            *to = *from;
        }
    }
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

async fn layers_stay_inside(x: &Context) -> Verdict {
    use tar::EntryType::{Link, Regular, Symlink};
    let outside = x.shared.directory.join(x.unique("o"));
    std::fs::create_dir(&outside)
        .map_err(|error| Outcome::Skipped(format!("no directory: {error}")))?;
    let target = outside.display().to_string();
    let up = "../".repeat(12);
    let cases = [
        ("absolute", vec![entry(Regular, &format!("{target}/f"), "", b"out")]),
        ("up", vec![entry(Regular, &format!("{up}{}/f", &target[1..]), "", b"out")]),
        (
            "symbolic",
            vec![entry(Symlink, "way", &target, b""), entry(Regular, "way/f", "", b"out")],
        ),
        ("hard", vec![entry(Symlink, "way", &target, b""), entry(Link, "way/f", "content", b"")]),
    ];
    for (tag, entries) in cases {
        let mut stream = entries.concat();
        stream.resize(stream.len() + 1024, 0);
        let layer = harness::fixture_image::Layer::of_stream(stream);
        let (name, _) = add(x, tag, |image| image.layer(layer))?;
        match x.client.pull(&name).await {
            Ok(_) => drop(status(x, &name).await?),
            answer => skip_on_connection_error(&refused("PullImage", answer)?)?,
        }
        let written: Vec<_> = std::fs::read_dir(&outside).into_iter().flatten().collect();
        let what = format!("files that PullImage wrote outside the image ({tag})");
        ensure(written.is_empty(), &what, "nothing", &written)?;
    }
    Ok(())
}

async fn pull_with(x: &Context, name: &str, password: &str) -> Result<String, Status> {
    let request = v1::PullImageRequest {
        image: Some(v1::ImageSpec { image: name.to_owned(), ..Default::default() }),
        auth: Some(v1::AuthConfig {
            username: "checker".to_owned(),
            password: password.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let answer = x.client.images.clone().pull_image(request).await?;
    Ok(answer.into_inner().image_ref)
}

async fn credentials_are_sent(x: &Context) -> Verdict {
    let auth = Auth::Basic { user: "checker".to_owned(), password: "secret".to_owned() };
    let skipped = |error: &dyn std::fmt::Display| Outcome::Skipped(error.to_string());
    // A runtime that cannot reach the registry of all rules cannot reach this one, either.
    x.images()?;
    let registry = Registry::with().auth(auth).start().await;
    let registry = registry.map_err(|error| skipped(&error))?;
    let repository = format!("{}/{}", x.shared.run, x.rule.to_lowercase());
    let image = ImageBuilder::new(&format!("{repository}:1"));
    let layer = harness::fixture_image::Layer::new().file("content", 0o644, repository.clone());
    registry.add(&image.layer(layer)).map_err(|error| skipped(&error))?;
    let name = format!("{}/{repository}:1", registry.host());
    let verdict = async {
        let anonymous = x.client.pull(&name).await;
        skip_on_connection_error(&refused("PullImage without credentials", anonymous)?)?;
        let wrong = pull_with(x, &name, "guessed").await;
        skip_on_connection_error(&refused("PullImage with a wrong password", wrong)?)?;
        is_absent(x, &name).await?;
        pull_with(x, &name, "secret").await.map_err(refusal)?;
        status(x, &name).await.map(drop)
    };
    let verdict = verdict.await;
    registry.stop().await;
    verdict
}

async fn failed_pull_is_repeated(x: &Context) -> Verdict {
    let (name, _) = add(x, "1", |image| image)?;
    let images = x.images()?;
    // More failures than a runtime retries by itself, and fewer than the kubelet does.
    let fault = Fault::corrupt().method("GET").on(&blobs(x)?);
    images.fail(fault.times(8));
    let pulled = x.until("PullImage to succeed once the registry works again", async || {
        match x.client.pull(&name).await {
            Ok(reference) => Ok(Ok(reference)),
            Err(status) if skip_on_connection_error(&status).is_err() => Ok(Err(refusal(status))),
            Err(status) => Err(status),
        }
    });
    let reference = pulled.await??;
    let image = status(x, &name).await?;
    ensure(image.size > 0, "the size", "not 0", (&image, &reference))
}

async fn image_is_removed_by_id(x: &Context) -> Verdict {
    for (tag, by_id) in [("1", true), ("2", false)] {
        let (name, _) = add(x, tag, |image| image)?;
        pull(x, &name).await?;
        let image = status(x, &name).await?;
        let by = match image.repo_digests.first() {
            Some(digest) if !by_id => digest.clone(),
            _ => image.id.clone(),
        };
        x.client.remove_image(&by).await?;
        is_absent(x, &name).await?;
        let left = x.client.image(&image.id).await?;
        equal(&format!("ImageStatus after RemoveImage of {by}"), &left, &None)?;
    }
    Ok(())
}

pub(crate) const DIGESTS: &[Rule] = rules! {
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
    skip_on_connection_error(&refused("PullImage", x.client.pull(&name).await)?)?;
    is_absent(x, &name).await
}
