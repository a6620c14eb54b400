//! How long the calls take, and how much memory a pod: `cargo bench --bench calls [-- ROUNDS]`.
//!
//! A figure by itself says little on a shared machine: beside them stands what the kernel alone takes for a container, with
//! and without a network, in the same run (see [`floor`]).

mod floor;

use std::{
    collections::BTreeMap,
    future::Future,
    io::Write as _,
    time::{Duration, Instant},
};

use floor::Floor;
use harness::{Client, Pod, Runtime, fixture};

type Failed = Box<dyn std::error::Error>;

/// The pods that memory is measured with.
const PODS: usize = 50;
const ROUNDS: usize = 100;

fn main() -> Result<(), Failed> {
    floor::become_helper();
    tokio::runtime::Runtime::new()?.block_on(measure())
}

async fn measure() -> Result<(), Failed> {
    // Cargo passes --bench.
    let rounds = std::env::args()
        .find_map(|a| a.parse().ok())
        .unwrap_or(ROUNDS);
    let (mut alone, mut connected) = (Floor::start(false)?, Floor::start(true)?);
    let runtime = Runtime::start().await?;
    let client: &Client = &runtime.client;
    let mut table = Table::default();
    for round in 0..rounds {
        table.add("(floor of a container)", alone.measure()?);
        table.add(
            "(floor of a container with a network)",
            connected.measure()?,
        );
        let pod = table
            .time("RunPodSandbox", runtime.pod(&format!("bench-{round}")))
            .await?;
        let container = table
            .time("CreateContainer", pod.create(fixture::forever("main")))
            .await?;
        table
            .time("StartContainer", client.start(&container))
            .await?;
        table
            .time("ContainerStatus", client.container(&container))
            .await?;
        table
            .time("ExecSync (true)", client.exec(&container, ["true"], 10))
            .await?;
        table
            .time("StopContainer (no grace)", client.stop(&container, 0))
            .await?;
        table
            .time("RemoveContainer", client.remove(&container))
            .await?;
        table
            .time("StopPodSandbox", client.stop_pod(&pod.id))
            .await?;
        table
            .time("RemovePodSandbox", client.remove_pod(&pod.id))
            .await?;
    }
    let memory = memory(&runtime).await?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{} isolation, {rounds} rounds, one after the other",
        runtime.isolation().await?
    )?;
    table.print(&mut out)?;
    writeln!(out, "\nPSS with {PODS} pods of one container: {memory}")?;
    Ok(())
}

/// Times by name, in the order of their first appearance.
#[derive(Default)]
struct Table {
    order: Vec<&'static str>,
    times: BTreeMap<&'static str, Vec<Duration>>,
}

impl Table {
    fn add(&mut self, name: &'static str, time: Duration) {
        if !self.order.contains(&name) {
            self.order.push(name);
        }
        self.times.entry(name).or_default().push(time);
    }

    async fn time<T>(&mut self, name: &'static str, work: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let result = work.await;
        self.add(name, began.elapsed());
        result
    }

    fn print(&mut self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(out, "{:>9} {:>9} {:>9}  ms", "p50", "p90", "p99")?;
        for name in &self.order {
            let times = self.times.entry(name).or_default();
            times.sort_unstable();
            let at = |share: usize| {
                times
                    .get((times.len() * share / 100).min(times.len() - 1))
                    .map_or(0.0, |t| t.as_secs_f64() * 1e3)
            };
            writeln!(out, "{:9.2} {:9.2} {:9.2}  {name}", at(50), at(90), at(99))?;
        }
        Ok(())
    }
}

/// What the daemon and the keepers take while many pods run.
async fn memory(runtime: &Runtime) -> Result<String, Failed> {
    let mut pods: Vec<Pod> = Vec::new();
    for number in 0..PODS {
        let pod = runtime.pod(&format!("memory-{number}")).await?;
        pod.start(fixture::forever("main")).await?;
        pods.push(pod);
    }
    let mut keepers = Vec::new();
    for pod in &pods {
        let pid = std::fs::read_to_string(
            runtime
                .state_dir()
                .join("sandboxes")
                .join(&pod.id)
                .join("keeper.pid"),
        )?;
        keepers.push(pss(pid.trim())?);
    }
    keepers.sort_unstable();
    let daemon = runtime
        .pid()
        .map(|pid| pss(&pid.to_string()))
        .transpose()?
        .unwrap_or(0);
    for pod in pods {
        runtime.client.remove_pod(&pod.id).await?;
    }
    let keeper = keepers.get(keepers.len() / 2).copied().unwrap_or(0);
    Ok(format!(
        "daemon {daemon} kB, a keeper {keeper} kB, together {} kB",
        daemon + keepers.iter().sum::<u64>()
    ))
}

/// A process's proportional share of memory, in kB.
fn pss(pid: &str) -> Result<u64, Failed> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .ok_or("no Pss in smaps_rollup")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
