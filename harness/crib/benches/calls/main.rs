//! How long the calls take, and how much memory a pod: `cargo bench --bench calls [-- ROUNDS]`; and how much longer with many
//! pods: `cargo bench --bench calls -- --pods 1000`.
//!
//! A figure by itself says little on a shared machine: beside them stands what the kernel alone takes for a container, with
//! and without a network, in the same run (see [`floor`]).

mod crowd;
mod floor;
mod table;
mod veth;

use std::io::Write as _;

use floor::Floor;
use harness::{Client, Pod, Runtime, fixture};
use table::Table;

type Failed = Box<dyn std::error::Error>;

/// The pods that memory is measured with.
const PODS: usize = 50;
const ROUNDS: usize = 100;
const STARTS: usize = 20;

fn main() -> Result<(), Failed> {
    floor::become_helper();
    tokio::runtime::Runtime::new()?.block_on(measure())
}

async fn measure() -> Result<(), Failed> {
    // Cargo passes --bench.
    let number = std::env::args().find_map(|a| a.parse().ok());
    if std::env::args().any(|a| a == "--pods") {
        return crowd::measure(number.unwrap_or(crowd::MANY)).await;
    }
    let rounds = number.unwrap_or(ROUNDS);
    let (mut alone, mut connected) = (Floor::start(false)?, Floor::start(true)?);
    let mut table = Table::default();
    for _ in 0..STARTS {
        let runtime = table.time(
            "(start of the daemon, and a first answer)",
            Runtime::start().into_future(),
        );
        drop(runtime.await?);
    }
    let runtime = Runtime::start().await?;
    for number in 0..rounds {
        table.add("(floor of a container)", alone.measure()?);
        table.add(
            "(floor of a container with a network)",
            connected.measure()?,
        );
        round(&mut table, &runtime, &format!("bench-{number}")).await?;
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

/// A pod's whole life, call by call.
async fn round(table: &mut Table, runtime: &Runtime, name: &str) -> Result<(), Failed> {
    let client: &Client = &runtime.client;
    let pod = table.time("RunPodSandbox", runtime.pod(name)).await?;
    let container = pod.create(fixture::forever("main"));
    let container = table.time("CreateContainer", container).await?;
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
    Ok(())
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
