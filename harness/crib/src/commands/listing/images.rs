//! `crib images`: lists images. `crib imagefsinfo`: shows the disk usage of images and writable layers.

use serde_json::json;

use crate::client::document::{DocumentArgs, Rendered};
use crate::client::images::{self, ImageFilterArgs};
use crate::client::output::{Columns, Listing, json as as_json};
use crate::client::status::escaped;
use crate::commands::prelude::*;

/// List images
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib images
  crib images --digests registry.k8s.io/pause
  crib images -q | xargs crib rmi"))]
pub(crate) struct ImagesArgs {
    /// Show only the image with this name or id
    #[arg(value_name = "IMAGE")]
    image: Option<String>,
    /// Show digests
    #[arg(long)]
    digests: bool,
    /// Show whether an image is pinned (exempt from garbage collection)
    #[arg(long)]
    pinned: bool,
    /// Show all information from the runtime
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    filter: ImageFilterArgs,
    #[command(flatten)]
    listing: Listing,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Lists the images.
pub(crate) async fn run(args: &ImagesArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let images = images::list(&cri, &args.filter, args.image.as_deref()).await?;
    let answer = v1::ListImagesResponse { images };
    let ids = answer.images.iter().map(|image| &image.id);
    let shown = || match args.verbose {
        true => answer.images.iter().flat_map(lines).try_for_each(|line| print(&line)),
        false => table(args, &answer.images),
    };
    args.listing.show("ListImagesResponse", &answer, ids, shown)
}

/// The lines of an image for `--verbose`.
fn lines(image: &v1::Image) -> Vec<String> {
    let mut lines = vec![format!("ID: {}", image.id)];
    lines.extend(image.repo_tags.iter().map(|tag| format!("RepoTags: {tag}")));
    let digests = image.repo_digests.iter();
    lines.extend(digests.map(|name| format!("RepoDigests: {name}")));
    lines.extend((image.size != 0).then(|| format!("Size: {}", image.size)));
    lines.extend(image.uid.as_ref().map(|uid| format!("Uid: value:{}", uid.value)));
    lines.extend((!image.username.is_empty()).then(|| format!("Username: {}", image.username)));
    lines.extend(image.pinned.then(|| "Pinned: true".to_owned()));
    lines.push(String::new());
    escaped(lines)
}

fn table(args: &ImagesArgs, images: &[v1::Image]) -> Result<(), CallError> {
    let mut headings = vec!["IMAGE", "TAG"];
    headings.extend(args.digests.then_some("DIGEST"));
    headings.extend(["IMAGE ID", "SIZE"]);
    headings.extend(args.pinned.then_some("PINNED"));
    let mut columns = Columns::new(&headings);
    for image in images {
        for (name, tag, digest) in names(image) {
            let mut row = vec![name, tag];
            if args.digests {
                row.push(human::id(&digest, args.listing.no_trunc).to_owned());
            }
            row.push(human::id(&image.id, args.listing.no_trunc).to_owned());
            row.push(human::size(image.size));
            if args.pinned {
                row.push(image.pinned.to_string());
            }
            columns.row(row);
        }
    }
    columns.print()
}

/// The names of an image with tags and digests; one row if it has no name.
fn names(image: &v1::Image) -> Vec<(String, String, String)> {
    let none = || "<none>".to_owned();
    let digests = image.repo_digests.iter().filter_map(|name| name.split_once('@'));
    let digest_of = |repository: &str| {
        let mut all = digests.clone();
        let same = all.find(|(name, _)| *name == repository);
        same.map_or_else(none, |(_, digest)| digest.to_owned())
    };
    let mut rows: Vec<(String, String, String)> = image
        .repo_tags
        .iter()
        .map(|name| {
            let (repository, tag) = name.rsplit_once(':').unwrap_or((name, "<none>"));
            (repository.to_owned(), tag.to_owned(), digest_of(repository))
        })
        .collect();
    // Repositories of which the image has a digest but no tag.
    for (repository, digest) in digests.clone() {
        if !rows.iter().any(|(name, ..)| name == repository) {
            rows.push((repository.to_owned(), none(), digest.to_owned()));
        }
    }
    if rows.is_empty() {
        rows.push((none(), none(), none()));
    }
    rows
}

/// Show the disk usage of images and writable layers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib imagefsinfo
  crib imagefsinfo -o table"))]
pub(crate) struct ImagefsinfoArgs {
    #[command(flatten)]
    document: DocumentArgs,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Prints the disk usage.
pub(crate) async fn filesystems(args: &ImagefsinfoArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let mut client = cri.images.images.clone();
    let answer = cri.call("ImageFsInfo", client.image_fs_info(v1::ImageFsInfoRequest {}));
    let answer = answer.await?.into_inner();
    let mut lines = Vec::new();
    for (name, all) in
        [("Container", &answer.container_filesystems), ("Image", &answer.image_filesystems)]
    {
        lines.push(format!("{name} Filesystem"));
        for (i, usage) in all.iter().enumerate() {
            let bytes = usage.used_bytes.as_ref().map_or(0, |of| of.value);
            let inodes = usage.inodes_used.as_ref().map_or(0, |of| of.value);
            let place = usage.fs_id.clone().unwrap_or_default().mountpoint;
            lines.push(format!("TimeStamp[{i}]: {}", usage.timestamp));
            lines.push(format!("Disk[{i}]: {}", human::usage(bytes)));
            lines.push(format!("Inodes[{i}]: {inodes}"));
            lines.push(format!("Mountpoint[{i}]: {place}"));
        }
    }
    let status = as_json("ImageFsInfoResponse", &answer)?;
    let document = json!({"status": status});
    args.document.print(vec![Rendered { document, lines }])?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_list_one_row_per_name() {
        let owned = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
        let image = v1::Image {
            repo_tags: owned(&["a.io/x:1", "localhost:5000/y:2"]),
            repo_digests: owned(&["a.io/x@sha256:1", "b.io/z@sha256:3"]),
            ..Default::default()
        };
        let row = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        let expected = [
            row("a.io/x", "1", "sha256:1"),
            row("localhost:5000/y", "2", "<none>"),
            row("b.io/z", "<none>", "sha256:3"),
        ];
        assert_eq!(names(&image), expected);
        let nameless = [row("<none>", "<none>", "<none>")];
        assert_eq!(names(&v1::Image::default()), nameless);
    }
}
