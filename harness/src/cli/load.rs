//! `crib load`: brings images from archives and layouts into a runtime, which knows no other way than to pull: they are
//! served on this machine for as long as that takes.

use std::path::Path;

use clap::Args;
use harness::registry::{LoadError, Registry};

use super::call::output::print;
use super::call::{CallError, Connection, each, finish, with_codes};
use super::pull::pull;
use super::registry::path_and_name;
use super::report::chain;
use super::signals::Signals;
use crate::exit::Exit;

/// Bring images from archives into the runtime
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib load app.tar
  crib load layouts/ app.tar=registry.example.com/team/app:1

A PATH is an OCI layout, an OCI or docker archive, or a directory of them. The images are served on the loopback \
interface while the runtime pulls them, and have the name that they were pulled by, which is printed: the interface has \
no call to give them another."))]
pub(crate) struct LoadArgs {
    /// What to load
    #[arg(required = true, value_name = "PATH[=NAME:TAG]")]
    paths: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

/// Loads them.
pub(crate) fn run(args: &LoadArgs) -> Exit {
    finish(async {
        let mut signals = Signals::listen().map_err(|source| CallError::Io {
            doing: "listen for signals".to_owned(),
            source,
        })?;
        let registry = Registry::start().await.map_err(|error| CallError::Io {
            doing: "serve the images".to_owned(),
            source: std::io::Error::other(error),
        })?;
        let exit = tokio::select! {
            result = load_all(args, &registry) => result,
            _ = signals.next() => Ok(Exit::Interrupted),
        };
        registry.stop().await;
        exit
    })
}

async fn load_all(args: &LoadArgs, registry: &Registry) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let mut names = Vec::new();
    // All are read before the first is pulled: a bad one changes nothing.
    for path in &args.paths {
        let (path, name) = path_and_name(path);
        let loaded = registry.load(path, name).map_err(|error| {
            if let LoadError::Io { path, source } = error {
                unreadable(&path, source)
            } else {
                CallError::Usage(chain(&error))
            }
        })?;
        names.extend(loaded);
    }
    each(&names, async |name: &String| {
        let name = format!("{}/{name}", registry.host());
        let id = pull(&cri, &name, None).await?;
        print(&format!("{name} {id}"))
    })
    .await
}

fn unreadable(path: &Path, source: std::io::Error) -> CallError {
    CallError::Io {
        doing: format!("read the image {}", path.display()),
        source,
    }
}
