//! `crib load`: loads images from archives and layouts into a runtime. The CRI has no call for this, so a local registry serves the
//! images, and the runtime pulls them.

use std::path::Path;

use crib_base::report::chain;
use crib_base::signals::Signals;
use registry::{LoadError, Registry};
use runtime_fake::PULL_FROM;
use tonic::Request;
use tonic::metadata::AsciiMetadataValue;

use crate::commands::prelude::*;
use crate::commands::servers::registry::path_and_name;

/// Load images from archives into the runtime
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib load app.tar
  crib load layouts/ app.tar=registry.example.com/team/app:1

A PATH is an OCI layout, an OCI or docker archive, or a directory of archives and layouts. NAME:TAG names the image; the \
default is the name in the layout or archive. `crib load` serves an image registry on the loopback interface, and the \
runtime pulls the images from this registry. In crib's runtime, loaded images keep their names; in other runtimes, each name \
begins with the address of the registry of `crib load`. `crib load` prints the name and the id of each image in the \
runtime."))]
pub(crate) struct LoadArgs {
    /// Image archives or OCI layouts to load
    #[arg(required = true, value_name = "PATH[=NAME:TAG]")]
    paths: Vec<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Loads the images.
pub(crate) async fn run(args: &LoadArgs) -> Result<Exit, CallError> {
    // Before the registry creates a directory that needs cleaning up.
    let mut signals = Signals::listen()
        .map_err(|source| CallError::Io { doing: "listen for signals".to_owned(), source })?;
    let registry = Registry::start().await.map_err(|error| CallError::Io {
        doing: "serve the images".to_owned(),
        source: std::io::Error::other(error),
    })?;
    let exit = tokio::select! {
        exit = load_all(args, &registry) => exit,
        _ = signals.next() => Ok(Exit::Interrupted),
    };
    registry.stop().await;
    exit
}

async fn load_all(args: &LoadArgs, registry: &Registry) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let version = cri.call("Version", cri.runtime.version()).await?;
    let own_names = version.runtime_name == "crib";
    let mut names = Vec::new();
    // Reads all archives before the first pull, so that an invalid one changes nothing.
    for path in &args.paths {
        let (path, name) = path_and_name(path);
        let loaded = registry.load_interruptibly(path, name).await.map_err(|error| {
            if let LoadError::Io { path, source } = error {
                unreadable(&path, source)
            } else {
                CallError::Usage(chain(&error))
            }
        })?;
        names.extend(loaded);
    }
    each(&names, async |name: &String| {
        let from = format!("{}/{name}", registry.host());
        let (name, from) = match own_names {
            true => (name.clone(), Some(registry.url())),
            false => (from, None),
        };
        let id = pull(&cri, &name, from).await?;
        print(&format!("{name} {id}"))
    })
    .await
}

fn unreadable(path: &Path, source: std::io::Error) -> CallError {
    CallError::Io { doing: format!("read the image {}", path.display()), source }
}

async fn pull(cri: &Cri, name: &str, from: Option<&str>) -> Result<String, CallError> {
    let mut request = Request::new(v1::PullImageRequest {
        image: Some(v1::ImageSpec {
            image: name.to_owned(),
            user_specified_image: name.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    });
    // A URL is always ASCII.
    if let Some(from) = from.and_then(|from| AsciiMetadataValue::try_from(from).ok()) {
        request.metadata_mut().insert(PULL_FROM, from);
    }
    let mut client = cri.images.images.clone();
    let answer = cri.call_with_user_timeout("PullImage", client.pull_image(request));
    Ok(answer.await?.into_inner().image_ref)
}
