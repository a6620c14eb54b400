//! `crib rmi`: removes images from a runtime.

use std::collections::HashSet;

use crate::client::select;
use crate::commands::prelude::*;

/// Remove images
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib rmi busybox
  crib rmi --prune

`crib rmi` removes an image with all its names, even if only one name is given."))]
pub(crate) struct RmiArgs {
    /// Image references or ids
    #[arg(required_unless_present_any = ["all", "prune"], value_name = "IMAGE")]
    images: Vec<String>,
    /// Remove all images except pinned ones
    #[arg(short, long, conflicts_with_all = ["images", "prune"])]
    all: bool,
    /// Remove all unused images except pinned ones
    #[arg(short = 'q', long, conflicts_with = "images")]
    prune: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Removes the images.
pub(crate) async fn run(args: &RmiArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let images = cri.call("ListImages", cri.images.list_images()).await?;
    if args.images.is_empty() {
        let used = match args.prune {
            true => used(&cri).await?,
            false => HashSet::new(),
        };
        let free = images.iter().filter(|image| !image.pinned && !is_used(image, &used));
        return each(free, async |image: &v1::Image| {
            remove(&cri, &image.id).await?;
            deleted(image)
        })
        .await;
    }
    each(&args.images, async |name: &String| {
        let image = find(&cri, &images, name).await?;
        remove(&cri, &image.id).await?;
        deleted(&image)
    })
    .await
}

/// The image with this name, id or id prefix.
pub(crate) async fn find(
    cri: &Cri,
    images: &[v1::Image],
    name: &str,
) -> Result<v1::Image, CallError> {
    let status = cri.call("ImageStatus", cri.images.image(name)).await;
    // A runtime that does not accept id prefixes may return an error.
    if let Ok(Some(image)) = status {
        return Ok(image);
    }
    let not_found = || CallError::NotFound { what: "image", name: name.to_owned() };
    match select::by_id(images, name, |image| &image.id) {
        Ok(Some(image)) => Ok(image.clone()),
        Ok(None) => status?.ok_or_else(not_found),
        Err(()) => Err(CallError::Ambiguous {
            what: "image",
            name: name.to_owned(),
            candidates: Vec::new(),
        }),
    }
}

async fn remove(cri: &Cri, id: &str) -> Result<(), CallError> {
    cri.call("RemoveImage", cri.images.remove_image(id)).await
}

/// The images of all containers, with all names that the containers list.
async fn used(cri: &Cri) -> Result<HashSet<String>, CallError> {
    let all = cri.runtime.containers(v1::ContainerFilter::default());
    let containers = cri.call("ListContainers", all).await?;
    Ok(containers
        .into_iter()
        .flat_map(|container| {
            let named = container.image.unwrap_or_default().image;
            [container.image_id, container.image_ref, named]
        })
        .filter(|name| !name.is_empty())
        .collect())
}

fn is_used(image: &v1::Image, used: &HashSet<String>) -> bool {
    let mut names = image.repo_tags.iter().chain(&image.repo_digests);
    used.contains(&image.id) || names.any(|name| used.contains(name))
}

/// Prints the names of a removed image: its tags, or else its digests, or else its id.
fn deleted(image: &v1::Image) -> Result<(), CallError> {
    let id = std::slice::from_ref(&image.id);
    let names = [image.repo_tags.as_slice(), &image.repo_digests, id];
    let names = names.into_iter().find(|names| !names.is_empty());
    let mut names = names.unwrap_or_default().iter();
    names.try_for_each(|name| print(&format!("Deleted: {name}")))
}
