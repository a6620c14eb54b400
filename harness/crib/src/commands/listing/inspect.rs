//! `crib inspect`: the verbose status of containers, pods or images. `crib inspectp`: of pods. `crib inspecti`: of images.

use clap::{Args, ValueEnum};
use crib_base::exit::Exit;
use tonic::Code;

use crate::client::containers::{self, ContainerFilterArgs, Listed};
use crate::client::document::{DocumentArgs, Rendered};
use crate::client::images::{self, ImageFilterArgs};
use crate::client::pods::{self, PodFilterArgs};
use crate::client::{CallError, Connection, Cri, find, status, with_codes};
use crate::template;

/// The kind of object that an id belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Container,
    Pod,
    Image,
}

/// Show details of containers, pods or images
#[derive(Debug, Args)]
#[command(after_help = with_codes(&format!("\
Examples:
  crib inspect 3f1c
  crib inspect --kind image busybox | jq .info
  crib inspect -o go-template --template '{{{{.info.pid}}}}' web
  crib inspect -o yaml $(crib pods --latest -q)

Without ids, `crib inspect` shows the running containers that match the filters. If there are several results, the JSON or \
YAML output is one list, and --template applies to this list.

{}", template::SUPPORTED)))]
pub(crate) struct InspectArgs {
    /// Ids, id prefixes or names
    ids: Vec<String>,
    /// Kind of object [default: the first kind with a match: container, pod, image]
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// Omit the runtime's additional information (verbose info)
    #[arg(short, long)]
    quiet: bool,
    /// Include containers that are not running
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    filter: ContainerFilterArgs,
    #[command(flatten)]
    document: DocumentArgs,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Prints the statuses.
pub(crate) async fn run(args: &InspectArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    let mut ids = args.ids.clone();
    if ids.is_empty() {
        let listed = if args.all { Listed::All } else { Listed::Running };
        let (found, _) = containers::list(&all, &args.filter, listed, None).await?;
        ids.extend(found.into_iter().map(|container| container.id));
    }
    let shown = async |id: &str| look_up(&all, id, args.kind, !args.quiet).await;
    args.document.print_each("container", &ids, shown).await
}

async fn look_up(
    all: &[Cri],
    id: &str,
    kind: Option<Kind>,
    verbose: bool,
) -> Result<Rendered, CallError> {
    let is = |wanted| kind.is_none_or(|kind| kind == wanted);
    // Tries the text as a full id first, which needs no listing.
    for cri in all {
        if is(Kind::Container)
            && let Some(found) = there(status::container(cri, id, verbose).await)?
        {
            return Ok(found);
        }
        if is(Kind::Pod)
            && let Some(found) = there(status::pod(cri, id, verbose).await)?
        {
            return Ok(found);
        }
    }
    if is(Kind::Pod)
        && let Some((cri, pod)) = known(find::pod(all, id).await)?
        && (kind.is_some() || known(find::container_named(all, id).await)?.is_none())
    {
        return status::pod(cri, &pod.id, verbose).await;
    }
    if is(Kind::Container)
        && let Some((cri, container)) = known(find::container_named(all, id).await)?
    {
        return status::container(cri, &container.id, verbose).await;
    }
    for cri in all.iter().filter(|_| is(Kind::Image)) {
        if let Some(found) =
            known(crate::commands::listing::inspect::look_up_image(cri, id, verbose).await)?
        {
            return Ok(found);
        }
    }
    Err(CallError::NotFound {
        what: match kind {
            Some(Kind::Container) => "container",
            Some(Kind::Pod) => "pod",
            Some(Kind::Image) => "image",
            None => "container, pod or image",
        },
        name: id.to_owned(),
    })
}

/// Maps "not found" to `None`.
fn known<T>(found: Result<T, CallError>) -> Result<Option<T>, CallError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(CallError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Maps NOT_FOUND to `None`; and INVALID_ARGUMENT, because the text may be a name or the id of another kind of object.
fn there(answer: Result<Rendered, CallError>) -> Result<Option<Rendered>, CallError> {
    match answer {
        Ok(shown) => Ok(Some(shown)),
        Err(CallError::Refused { status, .. })
            if matches!(status.code(), Code::NotFound | Code::InvalidArgument) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Show details of images
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib inspecti busybox
  crib inspecti -o go-template --template '{{index .status.repoDigests 0}}' busybox

Without ids, `crib inspecti` shows the images that match the filters. `crib inspect --help` describes the syntax of \
--template."))]
pub(crate) struct InspectiArgs {
    /// References or ids of images
    #[arg(value_name = "IMAGE")]
    images: Vec<String>,
    /// Omit the runtime's additional information (verbose info)
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

/// Prints the statuses of images.
pub(crate) async fn inspect_images(args: &InspectiArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let mut ids = args.images.clone();
    if ids.is_empty() {
        let found = images::list(&cri, &args.filter, args.name.as_deref()).await?;
        ids.extend(found.into_iter().map(|image| image.id));
    }
    let shown = async |id: &str| look_up_image(&cri, id, !args.quiet).await;
    args.document.print_each("image", &ids, shown).await
}

/// The status of the image with this name, id or id prefix.
pub(crate) async fn look_up_image(
    cri: &Cri,
    name: &str,
    verbose: bool,
) -> Result<Rendered, CallError> {
    let images = cri.call("ListImages", cri.images.list_images()).await?;
    let found = crate::commands::image_store::rmi::find(cri, &images, name).await?;
    let shown = status::image(cri, &found.id, verbose).await?;
    shown.ok_or_else(|| CallError::NotFound { what: "image", name: name.to_owned() })
}

/// Show details of pods
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib inspectp web
  crib inspectp -o go-template --template '{{.status.network.ip}}' web

Without ids, `crib inspectp` shows the pods that match the filters. `crib inspect --help` describes the syntax of --template."))]
pub(crate) struct InspectpArgs {
    /// Ids, id prefixes or names of pods
    #[arg(value_name = "POD")]
    pods: Vec<String>,
    /// Omit the runtime's additional information (verbose info)
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    filter: PodFilterArgs,
    #[command(flatten)]
    document: DocumentArgs,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Prints the statuses of pods.
pub(crate) async fn inspect_pods(args: &InspectpArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    let mut ids = args.pods.clone();
    if ids.is_empty() {
        let found = pods::list(&all, &args.filter, None).await?;
        ids.extend(found.into_iter().map(|pod| pod.id));
    }
    let shown = async |id: &str| {
        let (cri, pod) = find::pod(&all, id).await?;
        status::pod(cri, &pod.id, !args.quiet).await
    };
    args.document.print_each("pod", &ids, shown).await
}
