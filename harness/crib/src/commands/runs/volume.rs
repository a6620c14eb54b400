//! `crib volume`: lists and removes PersistentVolumeClaim volumes.

use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

use agent::storage::claim_directories::{ClaimDirectories, ClaimDirectory, DirectoryError};
use api::claims::ClaimName;
use clap::{Args, Subcommand};
use crib_base::dirs::VolumesDirArgs;
use crib_base::exit::Exit;
use runtime_fake::IsolationRequest;
use serde_json::{Value, json};

use crate::client::output::{Columns, Document, Form, now, print, print_value};
use crate::client::{CallError, each, finish, human};

const CODES: &str = "Exit codes:
    0  success
    1  an operation failed
    2  bad usage";

/// List and remove the volumes of PersistentVolumeClaims, which `crib run` keeps after pods end
#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  crib volume ls
  crib volume rm data-postgres-0

A PersistentVolumeClaim without a matching PersistentVolume gets a directory as its volume, unless the claim has a selector \
or an empty storageClassName. Later runs reuse the directory of a claim.\n\n{CODES}"))]
pub(crate) struct VolumeArgs {
    #[command(subcommand)]
    command: VolumeCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
enum VolumeCommand {
    #[command(alias = "list")]
    Ls(LsArgs),
    #[command(alias = "remove")]
    Rm(RmArgs),
}

/// List the volumes of PersistentVolumeClaims
#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  crib volume ls
  crib volume ls -o json | jq -r '.volumes[].path'\n\n{CODES}"))]
struct LsArgs {
    /// Print names only
    #[arg(short, long)]
    quiet: bool,
    /// Output format: table, json or yaml
    #[arg(short, long, value_enum, default_value_t, hide_possible_values = true)]
    output: Form,
    #[command(flatten)]
    volumes: VolumesDirArgs,
}

/// Remove volumes of PersistentVolumeClaims with their data
#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  crib volume rm data
  crib volume rm test/data-db-0
  crib volume rm --all

A volume that a pod uses is not removed. If a file system is mounted below a volume, `crib volume rm` fails, and leaves the \
contents of that file system in place.\n\n{CODES}"))]
struct RmArgs {
    /// Names of PersistentVolumeClaims; NAMESPACE/NAME for namespaces other than default
    #[arg(required_unless_present = "all", value_name = "[NAMESPACE/]NAME")]
    names: Vec<String>,
    /// Remove all volumes that no pod uses
    #[arg(short, long, conflicts_with = "names")]
    all: bool,
    /// Ignore volumes that do not exist
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    volumes: VolumesDirArgs,
}

/// Executes the subcommand. Must be called while the process has a single thread.
pub(crate) fn run(args: &VolumeArgs) -> Exit {
    match &args.command {
        VolumeCommand::Ls(args) => {
            let base = args.volumes.directory();
            finish(async { list(args, directories(base)?) })
        }
        VolumeCommand::Rm(args) => {
            let base = args.volumes.directory();
            let entered = enter();
            finish(async {
                entered?;
                remove(args, &directories(base)?).await
            })
        }
    }
}

fn directories(base: Result<std::path::PathBuf, String>) -> Result<ClaimDirectories, CallError> {
    base.map(ClaimDirectories::new).map_err(CallError::Usage)
}

/// Only inside the pods' user namespace can a user other than root remove files that pods created with other user ids.
fn enter() -> Result<(), CallError> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let entered = runtime_fake::enter(IsolationRequest::Auto, None::<&Path>);
    entered.map(drop).map_err(|error| CallError::Io {
        doing: "enter a user namespace".to_owned(),
        source: io::Error::other(error),
    })
}

fn list(args: &LsArgs, directories: ClaimDirectories) -> Result<Exit, CallError> {
    let all = directories.list().map_err(failed("list the volumes"))?;
    match args.output {
        _ if args.quiet => all.iter().try_for_each(|volume| print(&volume.claim.to_string()))?,
        Form::Json => print_value(&document(&all), Document::Json)?,
        Form::Yaml => print_value(&document(&all), Document::Yaml)?,
        Form::Table => table(&all)?,
    }
    Ok(Exit::Success)
}

fn document(all: &[ClaimDirectory]) -> Value {
    let volumes = all.iter().map(|volume| {
        let created = created(volume).map(human::timestamp);
        json!({
            "namespace": volume.claim.namespace,
            "name": volume.claim.name,
            "path": volume.path,
            "created": created,
            "inUse": volume.is_in_use,
        })
    });
    json!({"volumes": volumes.collect::<Vec<_>>()})
}

/// The creation time of a volume in nanoseconds since 1970.
fn created(volume: &ClaimDirectory) -> Option<i64> {
    let since = volume.created?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_nanos()).ok()
}

fn table(all: &[ClaimDirectory]) -> Result<(), CallError> {
    let mut columns = Columns::new(&["VOLUME NAME", "CREATED", "IN USE", "PATH"]);
    let now = now();
    for volume in all {
        let created = created(volume).map_or_else(String::new, |then| human::ago(then, now));
        columns.row([
            volume.claim.to_string(),
            created,
            if volume.is_in_use { "yes" } else { "no" }.to_owned(),
            volume.path.display().to_string(),
        ]);
    }
    columns.print()
}

async fn remove(args: &RmArgs, directories: &ClaimDirectories) -> Result<Exit, CallError> {
    let claims: Vec<ClaimName> = match args.all {
        true => {
            let all = directories.list().map_err(failed("list the volumes"))?;
            let free = all.into_iter().filter(|volume| !volume.is_in_use);
            free.map(|volume| volume.claim).collect()
        }
        false => args.names.iter().map(|name| claim_name(name)).collect(),
    };
    each(claims, async |claim: ClaimName| match directories.remove(&claim) {
        Err(DirectoryError::NotFound(_)) if args.force => Ok(()),
        Err(DirectoryError::NotFound(claim)) => {
            Err(CallError::NotFound { what: "volume", name: claim.to_string() })
        }
        removed => {
            removed.map_err(failed(&format!("remove volume {claim}")))?;
            print(&claim.to_string())
        }
    })
    .await
}

/// The name of a claim in the format of the command line and of the list.
fn claim_name(text: &str) -> ClaimName {
    match text.split_once('/') {
        Some((namespace, name)) => ClaimName::new(namespace, name),
        None => ClaimName::new("default", text),
    }
}

fn failed(doing: &str) -> impl FnOnce(DirectoryError) -> CallError {
    let doing = doing.to_owned();
    move |error| CallError::Io { doing, source: io::Error::other(error) }
}
