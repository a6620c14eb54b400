//! What the agent costs: `cargo bench --bench cost [-- PODS ...]`, and `cargo bench --bench cost -- --probes 500`. With
//! `--timeline`, the calls that start one more pod, and the time before each.
//!
//! The agent runs in this process, as `crib agent` starts it, and the runtime in another one: a scripted one, whose calls
//! take no time, or the one that `CRI_ENDPOINT` names. Processor time and calls say the same on a busy machine as on an
//! idle one; times that passed do not. Each row is a process of its own.

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

/// The numbers of pods of the table.
const PODS: [usize; 5] = [10, 30, 100, 300, 1000];
/// How long pods are left alone: what the agent does once a minute is in it.
const IDLE: Duration = Duration::from_secs(60);
/// Makes this process measure one row.
const ROW: &str = "--row";
/// Prints what a pod waits for.
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

/// Measures a row in a process of its own, so that no row has the memory of another one.
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
