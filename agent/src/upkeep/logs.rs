//! Rotates the logs of running containers.
//!
//! The runtime writes a container's log and appends to its open file; only ReopenContainerLog makes it open another one. Source of
//! the rules: Kubernetes 1.36, pkg/kubelet/logs/container_log_manager.go. A kubelet lists the containers each time; here the
//! containers and their logs are taken from the reports of the pods' workers.

pub(crate) mod files;
pub(crate) mod links;
mod plan;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::watch;

use crate::clock::{Clock, after};
use crate::config::LogRotation;
use crate::cri::Cri;
use crate::observed::ContainerId;
use crate::reporting::report::{ContainerPhase, Reports};
use tasks::blocking;

/// Rotates logs periodically. Never returns.
pub(crate) async fn run(
    cri: Arc<dyn Cri>,
    clock: Arc<dyn Clock>,
    rotation: LogRotation,
    reports: watch::Receiver<Arc<Reports>>,
) {
    let manager = ContainerLogManager { cri, clock: Arc::clone(&clock), rotation };
    loop {
        clock.sleep_until(after(clock.now(), rotation.period)).await;
        let logs = running(&reports.borrow());
        manager.rotate_all(logs).await;
    }
}

/// The running containers with their logs, including those whose postStart hook runs.
fn running(reports: &Reports) -> Vec<(ContainerId, PathBuf)> {
    let present = reports.values().filter(|report| !report.removed);
    let containers = present.flat_map(|report| &report.containers);
    let with_log = containers.filter_map(|container| {
        let (id, log) = match container.state {
            ContainerPhase::Running => (&container.container_id, container.log_path.as_ref()?),
            ContainerPhase::Waiting | ContainerPhase::Terminated => {
                let (id, log) = container.in_hook.as_ref()?;
                (id, log)
            }
        };
        Some((ContainerId::new(id.as_str()), log.clone()))
    });
    with_log.collect()
}

struct ContainerLogManager {
    cri: Arc<dyn Cri>,
    clock: Arc<dyn Clock>,
    rotation: LogRotation,
}

impl ContainerLogManager {
    /// Rotates each log that is too large. A failed rotation is retried at the next check.
    async fn rotate_all(&self, mut logs: Vec<(ContainerId, PathBuf)>) {
        // Checks all of them in one blocking task; most checks find nothing to do.
        let max_size = self.rotation.max_size;
        let large = blocking(move || {
            logs.retain(|(_, log)| !is_smaller(log, max_size));
            logs
        });
        for (id, path) in large.await {
            if let Err(error) = self.rotate(&id, &path).await {
                tracing::warn!(container = %id, log = %path.display(), error = &error as &dyn std::error::Error, "failed to rotate log");
            }
        }
    }

    async fn rotate(&self, id: &ContainerId, log: &Path) -> Result<(), RotateError> {
        let size = |log: &Path| {
            let log = log.to_owned();
            blocking(move || std::fs::symlink_metadata(log).map(|file| file.len()))
        };
        let size = match size(log).await {
            // The file was removed by others; the runtime still writes into it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.cri.reopen_log(id).await?;
                size(log).await?
            }
            other => other?,
        };
        if size < self.rotation.max_size {
            return Ok(());
        }
        let (old, files) = (log.to_owned(), self.rotation.max_files);
        blocking(move || files::remove_excess(&old, files)).await?;
        let rotated = rotated_name(log, self.clock.now());
        let (from, to) = (log.to_owned(), rotated.clone());
        blocking(move || std::fs::rename(from, to)).await?;
        if let Err(error) = self.cri.reopen_log(id).await {
            // The runtime still writes into the renamed file.
            let (from, to) = (rotated, log.to_owned());
            blocking(move || std::fs::rename(from, to)).await?;
            return Err(error.into());
        }
        Ok(())
    }
}

/// Whether a log exists and is smaller than this size.
fn is_smaller(log: &Path, size: u64) -> bool {
    std::fs::symlink_metadata(log).is_ok_and(|file| file.len() < size)
}

/// `LOG.20060102-150405`, in UTC.
fn rotated_name(log: &Path, now: Timestamp) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(now.strftime(".%Y%m%d-%H%M%S").to_string());
    name.into()
}

/// Why a log was not rotated.
#[derive(Debug, thiserror::Error)]
enum RotateError {
    #[error("failed to change the log files")]
    Files(#[from] io::Error),
    #[error("failed to reopen the log")]
    Reopen(#[from] crate::cri::CriError),
}

#[cfg(test)]
mod tests;
