//! Checkpoints, and why there are none: what a checkpoint needs, in the order in which a client can do something about it.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use cri::v1;

use super::{Error, Runtime, containers::wrong_state};
use crate::{
    container::ContainerState,
    launch::{Invalid, Rung},
    sandbox::SandboxState,
    store::Refused,
};

/// How long criu may take to look at the kernel.
const CHECK: Duration = Duration::from_secs(20);
/// Where criu is looked for besides the daemon's `PATH`.
const SYSTEM: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

impl Runtime {
    /// Why there is no checkpoint of a container.
    pub(crate) async fn no_container_checkpoint(
        &self,
        request: &v1::CheckpointContainerRequest,
    ) -> Error {
        let checked = || {
            let container = self.store.state().container(&request.container_id)?.clone();
            if container.state != ContainerState::Running {
                return Err(wrong_state(
                    &container,
                    "only a running container can be checkpointed",
                ));
            }
            archive_path("location", &request.location)
        };
        match checked() {
            Err(error) => error,
            Ok(()) => self.what_is_missing().await,
        }
    }

    /// Why there is no checkpoint of a pod.
    pub(crate) async fn no_pod_checkpoint(&self, request: &v1::CheckpointPodRequest) -> Error {
        let checked = || {
            let state = self.store.state();
            let sandbox = state.sandbox(&request.pod_sandbox_id)?;
            if sandbox.state != SandboxState::Ready {
                return Err(Refused::SandboxNotReady {
                    id: sandbox.id.clone(),
                    wanted: "a checkpoint",
                }
                .into());
            }
            for id in &request.container_ids {
                let container = state.container(id)?;
                if container.sandbox != sandbox.id {
                    let message = format!("container {id} is in another pod sandbox");
                    return Err(Invalid(message).into());
                }
            }
            archive_path("output_path", &request.output_path)
        };
        match checked() {
            Err(error) => error,
            Ok(()) => self.what_is_missing().await,
        }
    }

    /// Why no pod is made from a checkpoint.
    pub(crate) async fn no_restore(&self, request: &v1::RestorePodRequest) -> Error {
        let path = &request.checkpoint_path;
        match archive_path("checkpoint_path", path) {
            Err(error) => error,
            Ok(()) if !Path::new(path).exists() => {
                Invalid(format!("there is no checkpoint at {path}")).into()
            }
            Ok(()) => self.what_is_missing().await,
        }
    }

    async fn what_is_missing(&self) -> Error {
        let reason = if self.config.isolation.rung() == Rung::Root {
            match criu() {
                None => "criu is not installed: on Debian, apt-get install criu".to_owned(),
                Some(path) => match check(&path).await {
                    Err(reason) => format!(
                        "{} does not work on this kernel (criu check): {reason}",
                        path.display()
                    ),
                    Ok(()) => "criu works here, but this version of crib does not tell it of a container's mounts, \
                               pipes and namespaces, without which it dumps none"
                        .to_owned(),
                },
            }
        } else {
            format!(
                "isolation is `{}`, and criu needs root",
                self.config.isolation
            )
        };
        Error::Unable(format!("checkpoints cannot be had: {reason}"))
    }
}

fn archive_path(field: &str, path: &str) -> Result<(), Error> {
    if Path::new(path).is_absolute() && !path.contains('\0') {
        return Ok(());
    }
    Err(Invalid(format!("{field} {path:?} is not an absolute path")).into())
}

fn criu() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM.map(PathBuf::from))
        .map(|directory| directory.join("criu"))
        .find(|program| program.is_file())
}

/// Asks criu whether this kernel will do. The error is its own.
async fn check(program: &Path) -> Result<(), String> {
    let running = tokio::process::Command::new(program)
        .arg("check")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = match tokio::time::timeout(CHECK, running).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no answer within {} s", CHECK.as_secs())),
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().find_map(|line| {
        let (_, rest) = line.split_once("Error ")?;
        Some(rest.trim().to_owned())
    });
    Err(first.unwrap_or_else(|| output.status.to_string()))
}
