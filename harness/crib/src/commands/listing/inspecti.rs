//! `crib inspecti`: the status of images.

use clap::Args;
use crib_base::exit::Exit;

use crate::client::document::{DocumentArgs, Shown};
use crate::client::images::{self, ImageFilterArgs};
use crate::client::{CallError, Connection, Cri, status, with_codes};

/// Show details of images
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib inspecti busybox
  crib inspecti -o go-template --template '{{index .status.repoDigests 0}}' busybox

Without ids, shows the images that fit the filters. `crib inspect --help` says what templates can do."))]
pub(crate) struct InspectiArgs {
    /// References or ids of images
    #[arg(value_name = "IMAGE")]
    images: Vec<String>,
    /// Leave out what the runtime knows beyond the CRI
    #[arg(short, long)]
    quiet: bool,
    /// Filter by image name
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    filter: ImageFilterArgs,
    #[command(flatten)]
    document: DocumentArgs,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Shows them.
pub(crate) async fn run(args: &InspectiArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let mut ids = args.images.clone();
    if ids.is_empty() {
        let found = images::list(&cri, &args.filter, args.name.as_deref()).await?;
        ids.extend(found.into_iter().map(|image| image.id));
    }
    let shown = async |id: &str| look_up(&cri, id, !args.quiet).await;
    args.document.print_each("image", &ids, shown).await
}

/// The status of an image that is given by a name, an id or the beginning of one.
pub(crate) async fn look_up(cri: &Cri, name: &str, verbose: bool) -> Result<Shown, CallError> {
    let images = cri.call("ListImages", cri.images.list_images()).await?;
    let found = crate::commands::image_store::rmi::find(cri, &images, name).await?;
    let shown = status::image(cri, &found.id, verbose).await?;
    shown.ok_or_else(|| CallError::NotFound { what: "image", name: name.to_owned() })
}
