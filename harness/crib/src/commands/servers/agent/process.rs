//! What a KubeletConfiguration says of the agent's own process, and of the machine it may run on.

use std::fs;
use std::path::Path;

use agent::local_node::kubelet_config::{
    Host, KERNEL_DEFAULTS, KubeletConfiguration, host_problems,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Fails, in words, if the configuration does not allow this machine.
pub(super) fn check(file: &KubeletConfiguration) -> Result<(), String> {
    let problems = host_problems(file, &host(Path::new("/")));
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

/// What the machine whose files are below `root` is like.
fn host(root: &Path) -> Host {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let differs = |(name, wanted): &(&'static str, &'static str)| {
        let value = read(&format!("proc/sys/{name}")).trim().to_owned();
        (value != *wanted).then_some((*name, value))
    };
    Host {
        unified_cgroups: root.join("sys/fs/cgroup/cgroup.controllers").exists(),
        // A heading, and a line for each.
        swaps: read("proc/swaps").lines().count() > 1,
        kernel: KERNEL_DEFAULTS.iter().filter_map(differs).collect(),
    }
}

/// Sets what the configuration says of this process. What cannot be set is a warning, as for a kubelet.
pub(super) fn set(file: &KubeletConfiguration) {
    if let Some(score) = file.oom_score_adj
        && let Err(error) = fs::write("/proc/self/oom_score_adj", score.to_string())
    {
        tracing::warn!(%error, score, "failed to set oomScoreAdj");
    }
    let files = file.max_open_files.and_then(|most| u64::try_from(most).ok());
    if let Some(most) = files
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, most, most)
    {
        tracing::warn!(%error, most, "failed to set maxOpenFiles");
    }
}

/// Shows what is true of this process, whatever the configuration says, and which machines it would have refused.
pub(super) fn show(file: &mut KubeletConfiguration) {
    file.fail_swap_on.get_or_insert(false);
    file.fail_cgroup_v1.get_or_insert(false);
    let score = fs::read_to_string("/proc/self/oom_score_adj").ok();
    file.oom_score_adj = score.and_then(|score| score.trim().parse().ok());
    let files = getrlimit(Resource::RLIMIT_NOFILE).ok();
    file.max_open_files = files.and_then(|(soft, _)| i64::try_from(soft).ok());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn machine_is_read_from_its_files() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (name, value) in KERNEL_DEFAULTS {
            write(&format!("proc/sys/{name}"), &format!("{value}\n"));
        }
        write("proc/swaps", "Filename Type\n");
        assert_eq!(host(root.path()), Host::default());
        write("proc/sys/kernel/panic", "0\n");
        write("proc/swaps", "Filename Type\n/swap file\n");
        write("sys/fs/cgroup/cgroup.controllers", "cpu\n");
        let expected = Host {
            unified_cgroups: true,
            swaps: true,
            kernel: vec![("kernel/panic", "0".to_owned())],
        };
        assert_eq!(host(root.path()), expected);
    }
}
