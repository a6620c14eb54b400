//! The cost of many pods: start, idle, a restart of the agent, and end.

use std::io::{self, Write as _};
use std::time::Duration;

use crate::counted::Step;
use crate::node::Node;
use crate::usage::memory;
use crate::{Failed, IDLE};

/// The number of pods that are started one by one in addition to the others, to measure the agent's share of a pod's start.
const ALONE: usize = 100;
/// The time after which no work is left for pods that have just become ready.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// The time after which log rotation, which runs every 10 s, has queried each container once.
const LOGS_SEEN: Duration = Duration::from_secs(12);

pub(crate) fn print_head() -> io::Result<()> {
    writeln!(
        io::stdout(),
        "\
An init and an app container each; ms of processor time and CRI calls a pod; own: the time of one more pod from its manifest
to ready outside of calls, ms; idle for {} s
      |        start        |     own     |            idle             |    adopt    |     end
 pods |    ms  calls  s all |   p50   p99 | % core calls/s wakes/s   MB |    ms calls |    ms calls",
        IDLE.as_secs()
    )
}

pub(crate) async fn measure(pods: usize, timeline: bool) -> Result<(), Failed> {
    let mut node = Node::start().await?;
    let begun = node.used()?;
    node.each(0..pods, Node::write)?;
    node.until_ready(pods).await?;
    let started = node.used()?;
    tokio::time::sleep(SETTLE_TIME).await;

    let names: Vec<String> = (0..ALONE).map(|number| format!("alone-{number}")).collect();
    let mut own = Vec::new();
    for name in &names {
        own.push(alone(&mut node, name).await?);
    }
    if timeline {
        print_timeline(&own)?;
    }
    let mut own: Vec<Duration> = own.iter().map(|steps| sum(steps)).collect();
    for name in &names {
        node.delete(name)?;
    }
    node.until_removed(ALONE).await?;
    own.sort_unstable();
    let at = |share: usize| own[(own.len() * share / 100).min(own.len() - 1)].as_secs_f64() * 1e3;
    tokio::time::sleep(LOGS_SEEN).await;

    let rested = node.used()?;
    tokio::time::sleep(IDLE).await;
    let idle = node.used()?;
    let megabytes = memory()?;

    node.restart_agent().await;
    let stopped = node.used()?;
    node.until_ready(pods).await?;
    tokio::time::sleep(SETTLE_TIME).await;
    let adopted = node.used()?;

    node.each(0..pods, Node::delete)?;
    node.until_removed(pods).await?;
    let ended = node.used()?;
    writeln!(
        io::stdout(),
        "{pods:5} | {:5.2} {:6.1} {:6.2} | {:5.2} {:5.2} | {:6.2} {:7.1} {:7.1} {:4.0} | {:5.2} {:5.1} | {:5.2} {:5.1}",
        started.cpu(&begun, pods),
        started.calls(&begun, pods),
        started.seconds(&begun),
        at(50),
        at(99),
        idle.share(&rested),
        idle.calls(&rested, 1) / idle.seconds(&rested),
        idle.wakes(&rested),
        megabytes,
        adopted.cpu(&stopped, pods),
        adopted.calls(&stopped, pods),
        ended.cpu(&adopted, pods),
        ended.calls(&adopted, pods),
    )?;
    Ok(())
}

/// The calls that make one more pod ready, each with the time before it.
async fn alone(node: &mut Node, name: &str) -> Result<Vec<Step>, Failed> {
    node.cri.time();
    node.write(name)?;
    node.until_ready(1).await?;
    Ok(node.cri.timed())
}

fn sum(steps: &[Step]) -> Duration {
    steps.iter().map(|step| step.own).sum()
}

/// Prints the steps of the pod with the median time.
fn print_timeline(own: &[Vec<Step>]) -> io::Result<()> {
    let mut sorted: Vec<&Vec<Step>> = own.iter().collect();
    sorted.sort_by_key(|steps| sum(steps));
    let mut out = io::stdout();
    for step in sorted.get(own.len() / 2).copied().into_iter().flatten() {
        let call = match step.call {
            "" => "ready",
            call => call,
        };
        writeln!(out, "{:7.3} ms, then {call}", step.own.as_secs_f64() * 1e3)?;
    }
    Ok(())
}
