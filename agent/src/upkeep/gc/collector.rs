//! Removes dead containers: a single one, or in a task those of the whole node beyond its limits.

use std::sync::Arc;
use std::time::Duration;

use super::limits::excess;
use crate::clock::{Clock, after};
use crate::config::Config;
use crate::cri::{Cri, CriError, ListedContainer, ListedState};
use crate::decide::plan::terminate::MIN_STOP_SECONDS;
use crate::observed::ContainerId;
use crate::upkeep::logs::files;
use tasks::blocking;

/// Removes dead containers.
pub(crate) struct ContainerCollector {
    pub(crate) cri: Arc<dyn Cri>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: Config,
}

impl ContainerCollector {
    /// Collects in each period, and retries failures in the next one. If the runtime cannot be listed, the sync loop, which lists
    /// it in each period too, records the event.
    pub(crate) async fn run(self) {
        loop {
            self.clock.sleep_until(after(self.clock.now(), self.config.gc_period)).await;
            if let Err(error) = self.collect().await {
                tracing::warn!(%error, "failed to list dead containers");
            }
        }
    }

    async fn collect(&self) -> Result<(), CriError> {
        let listed = self.cri.list_containers(None).await?;
        let own = listed.iter().filter(|seen| self.config.owns(seen.pod.agent.as_deref()));
        for container in excess(own, self.config.dead_containers, self.clock.now()) {
            if let Err(error) = remove_with_log(self.cri.as_ref(), container).await {
                tracing::warn!(container = %container.id, %error, "failed to remove dead container");
            }
        }
        Ok(())
    }
}

/// Removes a dead container and its log.
pub(crate) async fn remove_with_log(
    cri: &dyn Cri,
    container: &ListedContainer,
) -> Result<(), CriError> {
    let log = cri.container_status(container).await?.log_path;
    let is_unknown = container.state == ListedState::Unknown;
    remove_dead(cri, &container.id, is_unknown).await?;
    if let Some(log) = log {
        blocking(move || files::remove(&log)).await;
    }
    Ok(())
}

/// Removes a dead container. One in an unknown state may be running, so it is stopped first (Kubernetes 1.36,
/// pkg/kubelet/kuberuntime/kuberuntime_gc.go removeOldestN).
pub(crate) async fn remove_dead(
    cri: &dyn Cri,
    id: &ContainerId,
    state_is_unknown: bool,
) -> Result<(), CriError> {
    if state_is_unknown {
        let grace = Duration::from_secs(MIN_STOP_SECONDS.unsigned_abs());
        cri.stop_container(id, grace).await?;
    }
    cri.remove_container(id).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;
    use crate::clock::TokioClock;
    use crate::cri::fake::{Behaviour, FakeCri};
    use crate::pod_spec::spec::{ContainerSpec, SandboxSpec};
    use crate::upkeep::gc::limits::DeadContainerLimits;

    #[tokio::test(start_paused = true)]
    async fn dead_containers_beyond_the_limit_are_removed_with_their_logs() {
        let root = tempfile::tempdir().unwrap();
        let clock = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
        let fake = FakeCri::new(Arc::clone(&clock) as Arc<dyn Clock>);
        fake.write_logs();
        let second = Duration::from_secs(1);
        fake.image("job", Behaviour::ends(second, 0));
        fake.image("app", Behaviour::forever());
        let sandbox =
            SandboxSpec { log_directory: root.path().join("logs"), ..SandboxSpec::default() };
        let id = fake.run_sandbox(&sandbox).await.unwrap();
        for (name, image) in [("a", "job"), ("b", "job"), ("c", "app")] {
            let mut spec = ContainerSpec {
                name: name.to_owned(),
                log_path: format!("{name}.log").into(),
                ..ContainerSpec::default()
            };
            image.clone_into(&mut spec.image.image);
            let container = fake.create_container(&id, &spec, &sandbox).await.unwrap();
            fake.start_container(&container).await.unwrap();
            tokio::time::sleep(2 * second).await;
        }
        let dead_containers = DeadContainerLimits { in_all: 1, ..DeadContainerLimits::default() };
        let collector = ContainerCollector {
            cri: Arc::new(fake.clone()),
            clock,
            config: Config {
                dead_containers,
                ..Config::new(root.path().join("root"), root.path().join("logs"))
            },
        };
        let task = tasks::spawn(collector.run());
        tokio::time::sleep(59 * second).await;
        assert_eq!(fake.contents().0.len(), 3, "it collects once a minute");
        tokio::time::sleep(2 * second).await;
        let left: Vec<String> = fake.contents().0.into_iter().map(|(name, _)| name).collect();
        assert_eq!(left, ["b", "c"]);
        assert!(!root.path().join("logs/a.log").exists());
        assert!(root.path().join("logs/b.log").exists());
        task.abort();
    }
}
