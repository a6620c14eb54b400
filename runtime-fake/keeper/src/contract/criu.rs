//! criu dumps processes to files and restores them (<https://criu.org>). Here are its mounts and error messages; `rpc` has its
//! requests.

mod rpc;

use std::collections::BTreeSet;
use std::path::Path;

use file_tree::mountinfo::mounts;

pub use rpc::{Dump, DumpError, dump};

/// Errors that do not stop criu, and errors that only report that criu gave up.
const NO_REASON: [&str; 3] = ["rlimit: Can't setup", "Dumping FAILED", "Restoring FAILED"];

/// The first error in criu's log: later ones follow from it.
pub fn first_error(log: &str) -> Option<String> {
    // `(00.012345) Error (criu/mount.c:123): mnt: Can't …`: the source line helps when reporting a bug to criu.
    let errors = log.lines().filter_map(|line| {
        let (_, rest) = line.split_once("Error ")?;
        Some(rest.trim())
    });
    let mut reasons = errors.filter(|error| !NO_REASON.iter().any(|no| error.contains(no)));
    reasons.find(|error| !error.is_empty()).map(str::to_owned)
}

/// The first error in a log file of criu.
pub fn first_error_in(log: &Path) -> Option<String> {
    let bytes = std::fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(20)..].join("\n");
    tracing::info!(log = %last, "criu failed");
    first_error(&text)
}

// A container's mounts, as passed to criu.
//
// On a restore the keeper makes the container's mounts again, as for any other container, and criu puts them where
// they were: for criu they are external. criu itself makes the mounts that show or hold the container's own processes:
// `/proc`, `/dev` with its contents, and its terminals.

/// Why a container's mounts cannot be passed to criu.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExternalMountsError {
    /// criu identifies a mount by its mount point.
    #[error("two mounts have the mount point {0}")]
    Twice(String),
    /// criu's syntax puts mount points in brackets.
    #[error("the mount point {0:?} cannot be passed to criu")]
    Name(String),
}

/// The mount points that criu must not dump, from a container's `/proc/PID/mountinfo`.
pub fn external_mounts(table: &str) -> Result<Vec<String>, ExternalMountsError> {
    let mut seen = BTreeSet::new();
    let mut external = Vec::new();
    for mount in mounts(table) {
        if !seen.insert(mount.at.clone()) {
            return Err(ExternalMountsError::Twice(mount.at));
        }
        if is_criu_s(&mount.at, mount.kind) {
            continue;
        }
        if mount.at.contains(['[', ']', ':']) || mount.at.chars().any(char::is_control) {
            return Err(ExternalMountsError::Name(mount.at));
        }
        external.push(mount.at);
    }
    Ok(external)
}

/// The mount points that criu does not make, in the root assembled at `root`; `table` is the `/proc/PID/mountinfo` of the process
/// that assembled it.
pub fn assembled(table: &str, root: &str) -> BTreeSet<String> {
    mounts(table)
        .filter_map(|mount| {
            let at = mount.at.strip_prefix(root)?;
            let at = if at.is_empty() { "/" } else { at };
            (at.starts_with('/') && !is_criu_s(at, mount.kind)).then(|| at.to_owned())
        })
        .collect()
}

/// The `--external` argument for the mount with this number in a dump.
pub fn dumped(number: usize, at: &str) -> String {
    format!("mnt[{at}]:crib{number}")
}

/// The `--external` argument for the mount with this number in a restore, with the path of its replacement.
pub fn restored(number: usize, path: &str) -> String {
    format!("mnt[crib{number}]:{path}")
}

/// Whether criu makes a mount itself.
fn is_criu_s(at: &str, kind: &str) -> bool {
    matches!(kind, "proc" | "devpts") || matches!(at, "/" | "/dev")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing("", None)]
    #[case::no_error("(00.1) Running pre-dump scripts\n", None)]
    #[case::the_first(
        "(00.1) Warn  (a.c:1): x\n(00.2)     1: Error (b.c:2): y\n(00.3) Error (c.c:3): z",
        Some("(b.c:2): y")
    )]
    #[case::one_that_matters(
        "Error (u.c:1): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\nError (d.c:2): tty: no\nError (d.c:3): Dumping FAILED.",
        Some("(d.c:2): tty: no")
    )]
    #[case::just_the_end("Error (d.c:3): Dumping FAILED.", None)]
    fn first_error_is_that_of_criu_log(#[case] log: &str, #[case] expected: Option<&str>) {
        assert_eq!(first_error(log).as_deref(), expected);
    }

    const ROOT: &str = "89 65 0:41 / / rw,relatime - overlay overlay rw\n";

    #[rstest]
    #[case::the_root("", Ok(vec![]))]
    #[case::what_is_criu_s(
        "90 89 0:43 / /proc rw - proc proc rw\n91 89 0:44 / /dev rw - tmpfs dev rw\n92 91 0:45 / /dev/pts rw - devpts d rw\n101 90 0:43 /sys /proc/sys ro - proc proc rw",
        Ok(vec![])
    )]
    #[case::what_is_not(
        "93 91 0:40 / /dev/shm rw shared:4 master:2 - tmpfs shm rw\n99 90 0:6 /null /proc/kcore rw - devtmpfs d rw",
        Ok(vec!["/dev/shm", "/proc/kcore"])
    )]
    #[case::a_blank("93 89 0:40 / /a\\040b rw - tmpfs shm rw", Ok(vec!["/a b"]))]
    #[case::one_over_the_other(
        "93 89 0:40 / /a rw - tmpfs a rw\n94 93 0:41 / /a rw - tmpfs b rw",
        Err("two mounts have the mount point /a")
    )]
    #[case::brackets(
        "93 89 0:40 / /a]:b rw - tmpfs a rw",
        Err("the mount point \"/a]:b\" cannot be passed to criu")
    )]
    fn external_mounts_are_listed_or_refused(
        #[case] table: &str,
        #[case] expected: Result<Vec<&str>, &str>,
    ) {
        let found = external_mounts(&format!("{ROOT}{table}"));
        let found = found.map_err(|unfit| unfit.to_string());
        let expected = expected.map(|e| e.into_iter().map(str::to_owned).collect());
        assert_eq!(found, expected.map_err(str::to_owned));
    }

    #[test]
    fn assembled_lists_mounts_criu_does_not_make() {
        let table = "1 0 254:0 / / rw - ext4 /dev/vda rw\n\
                     2 1 0:41 / /s/c/rootfs rw - overlay overlay rw\n\
                     3 2 0:43 / /s/c/rootfs/proc rw - proc proc rw\n\
                     4 2 0:44 / /s/c/rootfs/sys ro - sysfs sysfs rw\n\
                     5 1 0:45 / /s/c/rootfs2 rw - tmpfs t rw";
        let found = assembled(table, "/s/c/rootfs");
        assert_eq!(found, BTreeSet::from(["/sys".to_owned()]));
    }
}
