//! Rules of the forms in which registries have images: for several machines, packed in several ways, with layers that are alike.

use harness::fixture_image::Packing;

use crate::images::programs;
use crate::prelude::*;
use crate::rules::content::script;
use crate::rules::image::{add, pull};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-FMT-001": "Of an image for several architectures, PullImage gets the one for this machine, wherever it is in the index.",
        CONTAINERD, tags ["kubelet", "pull"], calls [PullImage, CreateContainer],
        image_is_that_of_machine given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo other; echo other\"]",
            "PullImage answer UNKNOWN",
        ];
    Must "CRI-FMT-002": "Layers are unpacked that are packed with gzip (in one member or in several), with zstd or not at all, of images of OCI and of docker.",
        CRIO, tags ["kubelet", "pull", "files"], calls [PullImage, CreateContainer],
        layers_are_packed_in_several_ways given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"cat /gzip\"]",
            "PullImage after 1 answer UNKNOWN",
        ];
    Must "CRI-FMT-003": "A layer that is in an image twice counts each time, in its place.",
        API, tags ["kubelet", "pull", "files"], calls [PullImage, CreateContainer],
        layer_counts_each_time given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"cat /kept\"]",
            "PullImage answer ALREADY_EXISTS",
        ];
    Must "CRI-FMT-004": "RemoveImage leaves other images whole that have layers of the removed one, which can be pulled anew.",
        API, tags ["kubelet", "pull", "files"], calls [RemoveImage, PullImage, CreateContainer],
        shared_layers_stay given [namespaces], faults [
            "CreateContainer answer NOT_FOUND",
            "CreateContainer after 1 request set config.command [\"/bin/sh\", \"-c\", \"cat /shared\"]",
            "PullImage after 2 answer UNKNOWN",
        ];
    Must "CRI-FMT-005": "Files with long names, below long paths, and links to such are in the container.",
        API, tags ["pull", "files"], calls [CreateContainer],
        long_paths_are_kept given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo long\"]",
        ];
    Should "CRI-FMT-006": "An image of 100 layers runs: builders make images of up to 127.",
        CONTAINERD, tags ["pull", "files"], calls [PullImage, CreateContainer],
        many_layers_are_stacked given [namespaces], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"cat /1 /50\"]",
            "PullImage answer UNKNOWN",
        ];
};

/// A layer with a shell and what reads files.
fn shell() -> Verdict<Layer> {
    programs(&["sh", "cat"]).map_err(|error| Outcome::Skipped(error.to_string()))
}

fn text(path: &str, text: &str) -> Layer {
    Layer::new().file(path, 0o644, format!("{text}\n"))
}

/// Pulls an image, and has a container of it run a script. Returns the output.
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
    let what = "what tells the image of an index of OCI, and of a list of docker";
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
            // The file is behind the first member of a layer of several.
            let layer = Layer::new().file("large", 0o644, vec![0; 20_000]);
            let layer = layer.file(name, 0o644, format!("{name}\n"));
            image.layer(layer.packed(*packing))
        })
    };
    let (oci, _) = add(x, "oci", packed)?;
    // Docker's media types have none for zstd.
    let (docker, _) = add(x, "docker", |image| {
        let gzip = text("gzip", "gzip");
        let plain = text("plain", "plain").packed(Packing::Plain);
        let image = image.of_docker().layer(programs.clone());
        image.layer(gzip).layer(plain)
    })?;
    let of_oci = output(x, &oci, "cat /gzip /members /zstd /plain").await?;
    equal("files of OCI's layers", of_oci.as_str(), "gzip\nmembers\nzstd\nplain\n")?;
    let of_docker = output(x, &docker, "cat /gzip /plain").await?;
    equal("files of docker's layers", of_docker.as_str(), "gzip\nplain\n")
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
    x.prints_in(&pod, reads, "files of the image that stays", "shared\nsecond\n").await?;
    let seen = output(x, &names[0], "cat /shared /own").await?;
    equal("files of the image that is back", seen.as_str(), "shared\nfirst\n")
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
    equal("the file by three names", seen.as_str(), "long\nlong\nlong\n")
}

/// How many layers an image has beside the two that all have.
const LAYERS: usize = 98;

async fn many_layers_are_stacked(x: &Context) -> Verdict {
    let programs = shell()?;
    let (image, _) = add(x, "1", |image| {
        (1..=LAYERS).fold(image.layer(programs), |image, number| {
            image.layer(text(&number.to_string(), &number.to_string()))
        })
    })?;
    let seen = output(x, &image, "cat /1 /50 /98").await?;
    equal("files of three layers", seen.as_str(), "1\n50\n98\n")
}
