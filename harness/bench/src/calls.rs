//! The calls of a pod's lifecycle: alone, with several pods concurrently, and while many other pods run.

use std::time::{Duration, Instant};

use cri::v1;
use harness::pod::Pod;
use tokio::task::JoinSet;

use super::BenchError;
use super::floor::Floor;
use super::rows::{Key, Rows, Section, Unit};
use super::target::Target;
use super::target::{alternate, rotation};

/// The first three calls of a lifecycle together, which are compared with the floor.
const TO_RUNNING: &str = "from nothing to a running container";

/// The durations of a lifecycle's calls, in order.
#[derive(Debug, Default)]
struct Lifecycle(Vec<(&'static str, Duration)>);

impl Lifecycle {
    async fn call<T>(
        &mut self,
        target: &Target,
        name: &'static str,
        answer: impl Future<Output = harness::client::CallResult<T>>,
    ) -> Result<T, BenchError> {
        let began = Instant::now();
        let answer = target.call(name, answer).await?;
        self.0.push((name, began.elapsed()));
        Ok(answer)
    }

    /// The total duration of the first calls.
    fn first(&self, calls: usize) -> Duration {
        self.0.iter().take(calls).map(|(_, time)| *time).sum()
    }

    /// Adds the durations to the rows of a section.
    fn record(&self, rows: &mut Rows, subject: usize, key: impl Fn(&'static str) -> Key<'static>) {
        for (name, time) in &self.0 {
            rows.add(key(name), subject, milliseconds(*time));
        }
        rows.add(key(TO_RUNNING), subject, milliseconds(self.first(3)));
        let whole = milliseconds(self.first(self.0.len()));
        rows.add(key("whole pod lifecycle"), subject, whole);
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Runs a pod with a container, gets its status, and removes it.
async fn lifecycle(target: &Target) -> Result<Lifecycle, BenchError> {
    let client = &target.client;
    let config = target.sandbox()?;
    let mut lifecycle = Lifecycle::default();
    let pod = Pod::run(client, config);
    let pod = lifecycle.call(target, "RunPodSandbox", pod).await?;
    let created = pod.create(target.forever());
    let container = lifecycle.call(target, "CreateContainer", created).await?;
    lifecycle.call(target, "StartContainer", client.start(&container)).await?;
    lifecycle.call(target, "PodSandboxStatus", client.pod(&pod.id)).await?;
    lifecycle.call(target, "ContainerStatus", client.container(&container)).await?;
    let pods = client.pods(v1::PodSandboxFilter::default());
    lifecycle.call(target, "ListPodSandbox", pods).await?;
    let containers = client.containers(v1::ContainerFilter::default());
    lifecycle.call(target, "ListContainers", containers).await?;
    lifecycle.call(target, "ImageStatus", client.image(target.image())).await?;
    let exec = client.exec(&container, ["/bin/sh", "-c", ":"], 60);
    lifecycle.call(target, "ExecSync", exec).await?;
    lifecycle.call(target, "StopContainer", client.stop(&container, 0)).await?;
    lifecycle.call(target, "RemoveContainer", client.remove(&container)).await?;
    lifecycle.call(target, "StopPodSandbox", client.stop_pod(&pod.id)).await?;
    lifecycle.call(target, "RemovePodSandbox", client.remove_pod(&pod.id)).await?;
    Ok(lifecycle)
}

/// Measures one lifecycle after the other, and the floor once a round.
pub(super) async fn measure_sequential(
    targets: &[Target],
    rounds: usize,
    mut floor: Option<&mut Floor>,
    rows: &mut Rows,
) -> Result<(), BenchError> {
    let key = |name| Key::time(Section::Calls, name);
    // The first round is a warm-up.
    for round in 0..=rounds {
        for subject in rotation(targets.len(), round) {
            let lifecycle = lifecycle(&targets[subject]).await?;
            if round > 0 {
                lifecycle.record(rows, subject, key);
            }
        }
        if let Some(floor) = floor.as_deref_mut() {
            let time = floor.measure().map_err(|source| BenchError::Io {
                doing: "measure what the kernel alone takes".to_owned(),
                source,
            })?;
            if round > 0 {
                rows.add_floor(key(TO_RUNNING), milliseconds(time));
            }
        }
    }
    Ok(())
}

/// Measures whole lifecycles a second at each concurrency level. Each concurrent worker runs `lifecycles` lifecycles, one after the
/// other.
pub(super) async fn measure_concurrent(
    targets: &[Target],
    levels: &[u32],
    lifecycles: u32,
    rounds: usize,
    rows: &mut Rows,
) -> Result<(), BenchError> {
    for level in levels {
        let key = Key::new(Section::Throughput, "pod lifecycles", Unit::PodsPerSecond);
        let key = key.at(u64::from(*level));
        let measure = async |_, target: &Target| {
            let mut workers = JoinSet::new();
            let began = Instant::now();
            for _ in 0..*level {
                let target = target.clone();
                workers.spawn(tasks::boxed(async move {
                    for _ in 0..lifecycles {
                        lifecycle(&target).await?;
                    }
                    Ok::<_, BenchError>(())
                }));
            }
            // Wait for every worker, even after a failure: an abandoned call may leave a pod.
            let ended = workers.join_all().await;
            let seconds = began.elapsed().as_secs_f64();
            ended.into_iter().collect::<Result<(), _>>()?;
            Ok(f64::from(level * lifecycles) / seconds)
        };
        alternate(targets, rounds, measure, |subject, sample| {
            rows.add(key, subject, sample);
        })
        .await?;
    }
    Ok(())
}

/// Measures lifecycles while different numbers of other pods run. The others stay until the last number is measured.
pub(super) async fn measure_beside_pods(
    targets: &[Target],
    sizes: &[usize],
    rounds: usize,
    rows: &mut Rows,
    mut say: impl FnMut(&str),
) -> Result<(), BenchError> {
    let mut others: Vec<Vec<Pod>> = targets.iter().map(|_| Vec::new()).collect();
    for size in sizes {
        say(&format!("{}: {size} pods", Section::Growth.title()));
        for (target, others) in targets.iter().zip(&mut others) {
            while others.len() < *size {
                others.push(target.start_pod().await?);
            }
        }
        let key = |name| Key::time(Section::Growth, name).at(*size as u64);
        let measure = async |_, target: &Target| lifecycle(target).await;
        alternate(targets, rounds, measure, |subject, lifecycle: Lifecycle| {
            lifecycle.record(rows, subject, key);
        })
        .await?;
    }
    for (target, others) in targets.iter().zip(&others) {
        target.remove(others).await?;
    }
    Ok(())
}
