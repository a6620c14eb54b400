//! Rules of image formats: several architectures, several compressions, repeated, shared and many layers.

use harness::fixture_image::Packing;

use crate::images::programs;
use crate::prelude::*;
use crate::rules::content::script;
use crate::rules::image::{add, pull};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-FMT-001": "From an OCI index or a Docker manifest list, PullImage selects the manifest for the host's architecture, even if that manifest is listed last.",
        CONTAINERD, tags ["kubelet", "pull"], calls [PullImage, CreateContainer],
        image_is_that_of_machine given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo other; echo other\"]",
            "PullImage answer UNKNOWN",
        ];
    Must "CRI-FMT-002": "PullImage unpacks OCI layers in gzip (one or more members), zstd and plain tar, and Docker layers in gzip and plain tar.",
        CRIO, tags ["kubelet", "pull", "files"], calls [PullImage, CreateContainer],
        layers_are_packed_in_several_ways given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"cat /gzip\"]",
            "PullImage after 1 answer UNKNOWN",
        ];
    Must "CRI-FMT-003": "A layer that occurs twice in an image is applied twice, each time in its position.",
        API, tags ["kubelet", "pull", "files"], calls [PullImage, CreateContainer],
        layer_counts_each_time given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"cat /kept\"]",
            "PullImage answer ALREADY_EXISTS",
        ];
    Must "CRI-FMT-004": "RemoveImage keeps layers that other images share, and the removed image can be pulled again.",
        API, tags ["kubelet", "pull", "files"], calls [RemoveImage, PullImage, CreateContainer],
        shared_layers_stay given [namespaces], faults [
            "CreateContainer answer NOT_FOUND",
            "CreateContainer after 1 request set config.command [\"/bin/sh\", \"-c\", \"cat /shared\"]",
            "PullImage after 2 answer UNKNOWN",
        ];
    Must "CRI-FMT-005": "The container has all files of its image that have long names or paths, and the links to these files.",
        API, tags ["pull", "files"], calls [CreateContainer],
        long_paths_are_kept given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo long\"]",
        ];
    Should "CRI-FMT-006": "An image with 100 layers runs; builders create images with up to 127 layers.",
        CONTAINERD, tags ["pull", "files"], calls [PullImage, CreateContainer],
        many_layers_are_stacked given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"cat /1 /50\"]",
            "PullImage answer UNKNOWN",
        ];
};

/// A layer with a shell and cat.
fn shell() -> Verdict<Layer> {
    programs(&["sh", "cat"]).map_err(|error| Outcome::Skipped(error.to_string()))
}

fn text(path: &str, text: &str) -> Layer {
    Layer::new().file(path, 0o644, format!("{text}\n"))
}

/// Pulls an image, runs a script in a container of it, and returns the output.
async fn output(x: &Context, image: &str, text: &str) -> Verdict<String> {
    pull(x, image).await?;
    x.output(script(x, image, text)).await
}

async fn image_is_that_of_machine(x: &Context) -> Verdict {
    let programs = shell()?;
    let mut seen = Vec::new();
    for tag in ["oci", "docker"] {
        let (name, _) = add(x, tag, |image| {
            let image = match tag {
                "docker" => image.of_docker(),
                _ => image,
            };
            let other = |architecture: &str| {
                let image = image.clone().layer(programs.clone());
                let image = image.layer(text("platform", architecture));
                image.for_architecture(architecture)
            };
            let others = [other("s390x"), other("riscv64")];
            let own = image.clone().layer(programs.clone());
            let own = own.layer(text("platform", "own"));
            others.into_iter().fold(own, ImageBuilder::after)
        })?;
        seen.push(output(x, &name, "cat /platform").await?);
    }
    let what = "the platform in the images of an OCI index and a Docker manifest list";
    equal(what, &seen, &vec!["own\n".to_owned(); 2])
}

async fn layers_are_packed_in_several_ways(x: &Context) -> Verdict {
    let programs = shell()?;
    let packings = [
        ("gzip", Packing::Gzip),
        ("members", Packing::GzipMembers),
        ("zstd", Packing::Zstd),
        ("plain", Packing::Plain),
    ];
    let packed = |image: ImageBuilder| {
        packings.iter().fold(image.layer(programs.clone()), |image, (name, packing)| {
            // The file comes after the first member of a multi-member layer.
            let layer = Layer::new().file("large", 0o644, vec![0; 20_000]);
            let layer = layer.file(name, 0o644, format!("{name}\n"));
            image.layer(layer.packed(*packing))
        })
    };
    let (oci, _) = add(x, "oci", packed)?;
    // Docker has no media type for zstd.
    let (docker, _) = add(x, "docker", |image| {
        let gzip = text("gzip", "gzip");
        let plain = text("plain", "plain").packed(Packing::Plain);
        let image = image.of_docker().layer(programs.clone());
        image.layer(gzip).layer(plain)
    })?;
    let of_oci = output(x, &oci, "cat /gzip /members /zstd /plain").await?;
    equal("the files of the OCI layers", of_oci.as_str(), "gzip\nmembers\nzstd\nplain\n")?;
    let of_docker = output(x, &docker, "cat /gzip /plain").await?;
    equal("the files of the Docker layers", of_docker.as_str(), "gzip\nplain\n")
}

async fn layer_counts_each_time(x: &Context) -> Verdict {
    let programs = shell()?;
    let repeated = Layer::new().file("kept", 0o644, "first\n").file("back", 0o644, "again\n");
    let between = Layer::new().file("kept", 0o644, "between\n").whiteout("back");
    let last = Layer::new().file("last", 0o644, "last\n");
    let (name, _) = add(x, "1", |image| {
        let image = image.layer(programs).layer(repeated.clone());
        let image = image.layer(between).layer(repeated);
        image.layer(last.clone()).layer(last)
    })?;
    let seen = output(x, &name, "cat /kept /back /last").await?;
    equal("the files", seen.as_str(), "first\nagain\nlast\n")
}

async fn shared_layers_stay(x: &Context) -> Verdict {
    let programs = shell()?;
    let mut names = Vec::new();
    for tag in ["first", "second"] {
        let shared = text("shared", "shared");
        let (name, _) = add(x, tag, |image| {
            let image = image.layer(programs.clone()).layer(shared);
            image.layer(text("own", tag))
        })?;
        pull(x, &name).await?;
        names.push(name);
    }
    x.client.remove_image(&names[0]).await?;
    let pod = x.pod().await?;
    let reads = script(x, &names[1], "cat /shared /own");
    x.prints_in(&pod, reads, "the files of the other image", "shared\nsecond\n").await?;
    let seen = output(x, &names[0], "cat /shared /own").await?;
    equal("the files of the image that was pulled again", seen.as_str(), "shared\nfirst\n")
}

async fn long_paths_are_kept(x: &Context) -> Verdict {
    let programs = shell()?;
    // Names of up to 100 bytes fit into the header of an entry, and names of up to 255 are allowed.
    let (part, name) = ("d".repeat(90), "n".repeat(200));
    let directory = format!("{part}/{part}/{part}");
    let layer = Layer::new()
        .directory(&directory, 0o755)
        .file(&format!("{directory}/{name}"), 0o644, "long\n")
        .symlink("link", &format!("/{directory}/{name}"))
        .hard_link("same", &format!("{directory}/{name}"));
    let (image, _) = add(x, "1", |image| image.layer(programs).layer(layer))?;
    let reads = format!("cat /{directory}/{name} /link /same");
    let seen = output(x, &image, &reads).await?;
    equal("the file under three names", seen.as_str(), "long\nlong\nlong\n")
}

/// The number of layers beside the two that every image has.
const LAYERS: usize = 98;

async fn many_layers_are_stacked(x: &Context) -> Verdict {
    let programs = shell()?;
    let (image, _) = add(x, "1", |image| {
        (1..=LAYERS).fold(image.layer(programs), |image, number| {
            image.layer(text(&number.to_string(), &number.to_string()))
        })
    })?;
    let seen = output(x, &image, "cat /1 /50 /98").await?;
    equal("the files of three layers", seen.as_str(), "1\n50\n98\n")
}
