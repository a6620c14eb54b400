//! An endpoint to measure, with configurations of pods and containers that have the labels of the run; and the order in which
//! endpoints take turns.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use check::{RUN_LABEL, RunDirectory, mark};
use cri::v1;
use harness::client::{CallResult, Client};
use harness::fixture;
use harness::pod::Pod;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::BenchError;

/// The namespace of the pods of a benchmark.
const NAMESPACE: &str = "crib-bench";

/// An endpoint to measure.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) client: Client,
    /// The runtime's name.
    pub(super) name: String,
    pub(super) socket: PathBuf,
    /// The containers' image.
    image: String,
    run: String,
    directory: PathBuf,
    deadline: Duration,
    interrupt: CancellationToken,
}

impl Target {
    pub(super) fn new(
        client: Client,
        name: &str,
        socket: &Path,
        image: String,
        run: &RunDirectory,
        deadline: Duration,
        interrupt: CancellationToken,
    ) -> Self {
        Self {
            client,
            name: name.to_owned(),
            socket: socket.to_owned(),
            image,
            run: run.name(),
            directory: run.path().to_owned(),
            deadline,
            interrupt,
        }
    }

    /// Waits for the response to a call, within the deadline.
    pub(super) async fn call<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = CallResult<T>>,
    ) -> Result<T, BenchError> {
        let answer = timeout(self.deadline, answer).await.unwrap_or_else(|_| {
            let limit = self.deadline;
            Err(Status::deadline_exceeded(format!("no answer within {limit:?}")))
        });
        answer.map_err(|status| BenchError::Refused {
            call,
            endpoint: self.socket.display().to_string(),
            status: Box::new(status),
        })
    }

    /// Fails once the benchmark is interrupted. Then nothing new is created, and pending calls are completed: a pod that a runtime
    /// creates for a disconnected client would be left.
    pub(super) fn check_interrupt(&self) -> Result<(), BenchError> {
        match self.interrupt.is_cancelled() {
            true => Err(BenchError::Interrupted),
            false => Ok(()),
        }
    }

    /// The configuration of a new pod. Creates its log directory.
    pub(super) fn sandbox(&self) -> Result<v1::PodSandboxConfig, BenchError> {
        self.check_interrupt()?;
        let name = fixture::unique("bench");
        let mut config = fixture::sandbox(&name);
        if let Some(metadata) = &mut config.metadata {
            NAMESPACE.clone_into(&mut metadata.namespace);
        }
        config.hostname = "bench".to_owned();
        let logs = self.directory.join("logs").join(&name);
        config.log_directory = logs.display().to_string();
        mark(&mut config, &self.run, &self.directory);
        std::fs::create_dir_all(&logs).map_err(|source| BenchError::Io {
            doing: format!("make {}", logs.display()),
            source,
        })?;
        Ok(config)
    }

    /// Runs a pod of a configuration.
    pub(super) async fn run(&self, config: v1::PodSandboxConfig) -> Result<Pod, BenchError> {
        self.call("RunPodSandbox", Pod::run(&self.client, config)).await
    }

    /// Runs a pod.
    pub(super) async fn pod(&self) -> Result<Pod, BenchError> {
        let config = self.sandbox()?;
        self.run(config).await
    }

    /// A container that runs this script, with the label of the run.
    pub(super) fn script(&self, script: &str) -> v1::ContainerConfig {
        self.marked(fixture::script("main", script))
    }

    /// A container that runs until it is stopped, with the label of the run.
    pub(super) fn forever(&self) -> v1::ContainerConfig {
        self.marked(fixture::forever("main"))
    }

    fn marked(&self, mut config: v1::ContainerConfig) -> v1::ContainerConfig {
        let image = config.image.get_or_insert_default();
        image.image.clone_from(&self.image);
        let label = (RUN_LABEL.to_owned(), self.run.clone());
        config.labels.extend([label]);
        config
    }

    /// The containers' image.
    pub(super) fn image(&self) -> &str {
        &self.image
    }

    /// Runs a pod with a container that runs until it is stopped.
    pub(super) async fn start_pod(&self) -> Result<Pod, BenchError> {
        let pod = self.pod().await?;
        let container = self.call("CreateContainer", pod.create(self.forever())).await?;
        self.call("StartContainer", self.client.start(&container)).await?;
        Ok(pod)
    }

    /// Removes pods with their containers.
    pub(super) async fn remove(&self, pods: &[Pod]) -> Result<(), BenchError> {
        for pod in pods {
            self.call("StopPodSandbox", self.client.stop_pod(&pod.id)).await?;
            self.call("RemovePodSandbox", self.client.remove_pod(&pod.id)).await?;
            // The logs of all pods together could fill the disk.
            let logs = pod.log_directory();
            file_tree::remove(&logs).map_err(|error| BenchError::Io {
                doing: format!("remove {}", logs.display()),
                source: error.into(),
            })?;
        }
        Ok(())
    }

    /// The process that serves the socket. `None` if it is in another PID namespace, or if it is init, which listens on behalf of
    /// others.
    pub(super) fn daemon(&self) -> std::io::Result<Option<u32>> {
        let stream = UnixStream::connect(&self.socket)?;
        let pid = getsockopt(&stream, PeerCredentials)?.pid().unsigned_abs();
        Ok((pid > 1).then_some(pid))
    }
}

/// The order of the endpoints in a round: the first place rotates.
pub(super) fn rotation(endpoints: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..endpoints).map(move |place| (place + round) % endpoints.max(1))
}

/// Measures each endpoint once a round, and records the samples. One round before is a warm-up, and is not recorded.
pub(super) async fn alternate<T>(
    targets: &[Target],
    rounds: usize,
    mut measure: impl AsyncFnMut(usize, &Target) -> Result<T, BenchError>,
    mut record: impl FnMut(usize, T),
) -> Result<(), BenchError> {
    for round in 0..=rounds {
        for subject in rotation(targets.len(), round) {
            let target = &targets[subject];
            target.check_interrupt()?;
            let sample = measure(subject, target).await?;
            if round > 0 {
                record(subject, sample);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::rotation;

    #[rstest]
    #[case::one(1, 7, &[0])]
    #[case::first_round(2, 0, &[0, 1])]
    #[case::second_round(2, 1, &[1, 0])]
    #[case::none(0, 3, &[])]
    fn endpoints_rotate_each_round(
        #[case] endpoints: usize,
        #[case] round: usize,
        #[case] expected: &[usize],
    ) {
        assert_eq!(rotation(endpoints, round).collect::<Vec<_>>(), expected);
    }
}
