//! The memory of pods: the proportional share (PSS) of all processes that the runtime started for them, and the growth of its
//! daemon.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use super::BenchError;
use super::processes::{Process, started};
use super::rows::{Key, Rows, Section, Unit};
use super::target::Target;
use super::target::rotation;

/// Runs pods of one container each, and measures their memory. The other endpoint runs no such pods at the same time.
pub(super) async fn measure(
    targets: &[Target],
    pods: usize,
    rounds: usize,
    rows: &mut Rows,
    notes: &mut Vec<String>,
) -> Result<(), BenchError> {
    // There is no warm-up round: each round starts with an uncounted pod, which starts the processes that all pods share.
    for round in 0..rounds {
        for subject in rotation(targets.len(), round) {
            let target = &targets[subject];
            let daemon = match daemon(target) {
                Ok(daemon) => daemon,
                Err(why) if round == 0 => {
                    let (name, endpoint) = (&target.name, target.socket.display());
                    notes.push(format!("memory of {name} ({endpoint}) is not measured: {why}"));
                    continue;
                }
                Err(_) => continue,
            };
            let memory = memory(target, daemon, pods).await?;
            let key = |name| Key::new(Section::Density, name, Unit::Kibibytes).at(pods as u64);
            let of_each = |kibibytes: u64| kibibytes as f64 / pods.max(1) as f64;
            rows.add(key("processes of a pod"), subject, of_each(memory.processes));
            rows.add(key("growth of the daemon per pod"), subject, of_each(memory.growth));
            rows.add(key("the daemon"), subject, memory.daemon as f64);
        }
    }
    Ok(())
}

/// Memory in KiB.
struct Memory {
    /// The memory of the processes of all pods.
    processes: u64,
    /// The daemon's growth since the uncounted pod.
    growth: u64,
    /// The daemon's memory, with all pods.
    daemon: u64,
}

/// The process id of the daemon, whose memory can be read.
fn daemon(target: &Target) -> Result<u32, String> {
    let pid = target.daemon().map_err(|error| error.to_string())?;
    let pid = pid.ok_or("the process that serves the socket is not in this process namespace")?;
    match pss(pid) {
        Ok(_) => Ok(pid),
        Err(error) => {
            Err(format!("failed to read the memory of its daemon, process {pid}: {error}"))
        }
    }
}

async fn memory(target: &Target, daemon: u32, pods: usize) -> Result<Memory, BenchError> {
    let first = target.start_pod().await?;
    let before: BTreeSet<u32> = processes().iter().map(|process| process.pid).collect();
    let of_daemon = |pid| {
        pss(pid).map_err(|source| BenchError::Io {
            doing: format!("read the memory of the daemon, process {pid}"),
            source,
        })
    };
    let at_first = of_daemon(daemon)?;
    let mut all = vec![first];
    for _ in 0..pods {
        all.push(target.start_pod().await?);
    }
    let new = started(&before, &processes(), daemon);
    // A process that has exited in the meantime uses no memory.
    let of_pods = new.iter().map(|pid| pss(*pid).unwrap_or(0)).sum();
    let now = of_daemon(daemon)?;
    target.remove(&all).await?;
    Ok(Memory { processes: of_pods, growth: now.saturating_sub(at_first), daemon: now })
}

/// All processes. The mount namespaces of other users' processes are not readable; these count as not contained.
fn processes() -> Vec<Process> {
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        Some(Process {
            pid,
            parent: parent(&stat)?,
            contained: namespace.is_some() && namespace != own,
        })
    })
    .collect()
}

/// The parent process id in `/proc/PID/stat`, whose second field may contain spaces and parentheses (proc(5)).
fn parent(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// The proportional set size (PSS) of a process, in KiB.
fn pss(pid: u32) -> io::Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("7 (sh) S 3 7 7 0", Some(3))]
    #[case::hostile_name("7 (a b) S 9) S 3 7 7 0", Some(3))]
    #[case::cut("7 (sh", None)]
    fn parent_follows_name(#[case] stat: &str, #[case] expected: Option<u32>) {
        assert_eq!(parent(stat), expected);
    }

    #[test]
    fn this_process_is_found_with_its_memory() {
        let own = std::process::id();
        let all = processes();
        let this = all.iter().find(|process| process.pid == own).unwrap();
        assert_eq!(this.parent, std::os::unix::process::parent_id());
        assert!(!this.contained);
        assert!(pss(own).unwrap() > 0);
    }
}
