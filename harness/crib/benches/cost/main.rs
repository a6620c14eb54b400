//! Measures the cost of the agent: `cargo bench --bench cost [-- PODS ...]`, and `cargo bench --bench cost -- --probes 500`. With
//! `--timeline`, prints the calls that start one more pod, and the time before each.
//!
//! The agent runs in this process, as `crib agent` starts it. The runtime runs in another process: a scripted runtime whose calls
//! take no time, or the one at `CRI_ENDPOINT`. CPU time and the number of calls do not depend on the load of the machine; elapsed
//! times do. Each row runs in a separate process.

mod counted;
#[path = "../../src/heap.rs"]
mod heap;
mod node;
mod pods;
mod probes;
mod runtime;
mod server;
mod usage;

use std::process::Command;
use std::time::Duration;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The numbers of pods in the table.
const PODS: [usize; 5] = [10, 30, 100, 300, 1000];
/// The duration of the idle measurement; it includes what the agent does once a minute.
const IDLE: Duration = Duration::from_secs(60);
/// Makes this process measure one row.
const ROW: &str = "--row";
/// Prints the timeline of a pod's start.
const TIMELINE: &str = "--timeline";

fn main() -> Result<(), Failed> {
    server::become_server();
    // Cargo passes --bench.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let has = |name: &str| arguments.iter().any(|a| a == name);
    let numbers: Vec<usize> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    if has(ROW) {
        let number = numbers.first().copied().ok_or("a row has a number")?;
        heap::share();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        return tokio.block_on(async {
            match arguments.iter().find_map(|a| probes::Kind::named(a)) {
                Some(kind) => probes::measure(number, kind).await,
                None => pods::measure(number, has(TIMELINE)).await,
            }
        });
    }
    if has("--probes") {
        let number = numbers.first().copied().unwrap_or(500);
        probes::print_head(number)?;
        for kind in probes::Kind::ALL {
            row(number, Some(kind.name()))?;
        }
        return Ok(());
    }
    pods::print_head()?;
    let numbers = if numbers.is_empty() { &PODS[..] } else { &numbers };
    for &number in numbers {
        row(number, has(TIMELINE).then_some(TIMELINE))?;
    }
    Ok(())
}

/// Measures a row in a separate process, so that no row includes another row's memory.
fn row(number: usize, further: Option<&str>) -> Result<(), Failed> {
    let status = Command::new(std::env::current_exe()?)
        .args([ROW, &number.to_string()])
        .args(further)
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("the row of {number} pods failed: {status}").into())
    }
}
