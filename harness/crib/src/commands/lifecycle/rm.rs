//! `crib rm`: removes containers and their logs.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::commands::prelude::*;

/// Remove containers and their logs
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib rm 3f1c
  crib rm -f web
  crib rm --all --force

`crib rm` prints the id of each container."))]
pub(crate) struct RmArgs {
    /// Containers: ids, id prefixes or names
    #[arg(required_unless_present = "all", value_name = "CONTAINER")]
    containers: Vec<String>,
    /// Stop running containers first
    #[arg(short, long)]
    force: bool,
    /// Keep the log files
    #[arg(short, long)]
    keep_logs: bool,
    /// Remove all containers
    #[arg(short, long, conflicts_with = "containers")]
    all: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Removes the containers.
pub(crate) async fn run(args: &RmArgs) -> Result<Exit, CallError> {
    let all = match args.all {
        true => vec![args.connection.open()?],
        false => args.connection.open_all()?,
    };
    let mut ids = args.containers.clone();
    if let Some(cri) = all.first().filter(|_| args.all) {
        let found = cri.runtime.containers(v1::ContainerFilter::default());
        let found = cri.call("ListContainers", found).await?;
        ids.extend(found.into_iter().map(|container| container.id));
    }
    each(&ids, async |name: &String| remove(&all, name, args).await).await
}

async fn remove(all: &[Cri], name: &str, args: &RmArgs) -> Result<(), CallError> {
    let (cri, container) = find::container(all, name).await?;
    let id = container.id;
    let status = cri.call("ContainerStatus", cri.runtime.container(&id)).await?;
    if status.state() == v1::ContainerState::ContainerRunning {
        if !args.force {
            return Err(CallError::StillRunning { what: "container", name: id });
        }
        cri.call("StopContainer", cri.runtime.stop(&id, 0)).await?;
    }
    cri.call("RemoveContainer", cri.runtime.remove(&id)).await?;
    print(&id)?;
    match args.keep_logs || status.log_path.is_empty() {
        true => Ok(()),
        false => remove_logs(Path::new(&status.log_path)),
    }
}

/// Removes a log file and its rotated files, unless the runtime has removed them.
fn remove_logs(log: &Path) -> Result<(), CallError> {
    for file in rotations(log).into_iter().chain([log.to_owned()]) {
        match std::fs::remove_file(&file) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                return Err(CallError::Io {
                    doing: format!("remove the log {}", file.display()),
                    source,
                });
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// The rotated files of a log: their names start with the log's name.
fn rotations(log: &Path) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name()) else {
        return Vec::new();
    };
    let prefix = format!("{}.", name.to_string_lossy());
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    files
        .filter(|file| file.file_name().to_string_lossy().starts_with(&prefix))
        .map(|file| file.path())
        .collect()
}
