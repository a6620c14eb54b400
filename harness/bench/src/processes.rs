//! ◆ Finds the processes that a runtime has started since a snapshot.
//!
//! The helper processes of a runtime (shims, keepers) are not always children of its daemon: most are reparented, so that they
//! outlive it. But each of them is the ancestor of a process in other namespaces.

use std::collections::{BTreeMap, BTreeSet};

/// A process in `/proc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) parent: u32,
    /// Whether its mount namespace differs from that of the benchmark.
    pub(super) contained: bool,
}

/// The processes that are not in `before` and belong to the runtime: descendants of its daemon, processes in other mount
/// namespaces, and the ancestors of the latter.
pub(super) fn started(before: &BTreeSet<u32>, now: &[Process], daemon: u32) -> BTreeSet<u32> {
    let new: BTreeMap<u32, Process> = now
        .iter()
        .filter(|process| !before.contains(&process.pid) && process.pid != daemon)
        .map(|process| (process.pid, *process))
        .collect();
    let parents: BTreeMap<u32, u32> = now.iter().map(|p| (p.pid, p.parent)).collect();
    let mut started = BTreeSet::new();
    for process in new.values() {
        let line = ancestry(process.pid, &parents);
        if line.contains(&daemon) || process.contained {
            started.insert(process.pid);
        }
        if process.contained {
            started.extend(line.into_iter().filter(|pid| new.contains_key(pid)));
        }
    }
    started
}

/// The ancestors of a process, beginning with its parent.
fn ancestry(pid: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut line: Vec<u32> = Vec::new();
    let mut at = pid;
    while let Some(parent) = parents.get(&at) {
        // The snapshot is not atomic: reused process ids could form a cycle.
        if *parent == 0 || line.contains(parent) {
            break;
        }
        line.push(*parent);
        at = *parent;
    }
    line
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn process(pid: u32, parent: u32, contained: bool) -> Process {
        Process { pid, parent, contained }
    }

    const DAEMON: u32 = 100;

    #[rstest]
    #[case::child_of_daemon(&[(200, DAEMON, false)], &[200])]
    #[case::shim_and_its_container(&[(200, 1, false), (201, 200, true)], &[200, 201])]
    #[case::container_whose_shim_is_in_its_namespace(&[(200, 1, true), (201, 200, true)], &[200, 201])]
    #[case::grandchild_of_daemon(&[(200, DAEMON, false), (201, 200, false)], &[200, 201])]
    #[case::process_of_others(&[(200, 1, false), (201, 200, false)], &[])]
    #[case::old_parent_of_new_container(&[(50, 1, false), (201, 50, true)], &[201])]
    #[case::circle(&[(200, 201, true), (201, 200, false)], &[200, 201])]
    fn new_processes_of_runtime_are_found(
        #[case] processes: &[(u32, u32, bool)],
        #[case] expected: &[u32],
    ) {
        let before = BTreeSet::from([1, 50, DAEMON]);
        let mut now = vec![process(1, 0, false), process(DAEMON, 1, false)];
        now.extend(
            processes.iter().map(|(pid, parent, contained)| process(*pid, *parent, *contained)),
        );
        let found = started(&before, &now, DAEMON);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
    }
}
