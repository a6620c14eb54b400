//! The KubeletConfiguration fields for the agent's own process and its machine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use agent::local_node::kubelet_config::{
    Host, KERNEL_DEFAULTS, KubeletConfiguration, host_problems,
};
use agent::machine::logind::Logind;
use agent::managers::claims::ClaimManager;
use agent::{Config, NodeParts};
use dra::NodeClaims;
use machine::cgroups::HostCgroups;
use machine::kmsg::{KMSG, oom_kills};
use machine::logind::SystemdLogind;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::cgroups;

/// Fails with a message if the configuration does not allow this machine.
pub(super) fn check(file: &KubeletConfiguration) -> Result<(), String> {
    let problems = host_problems(file, &host(Path::new("/")));
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

/// The properties of the machine whose files are below `root`.
fn host(root: &Path) -> Host {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let differs = |(name, wanted): &(&'static str, &'static str)| {
        let value = read(&format!("proc/sys/{name}")).trim().to_owned();
        (value != *wanted).then_some((*name, value))
    };
    Host {
        unified_cgroups: root.join("sys/fs/cgroup/cgroup.controllers").exists(),
        // A heading, and a line for each swap.
        swaps: read("proc/swaps").lines().count() > 1,
        kernel: KERNEL_DEFAULTS.iter().filter_map(differs).collect(),
    }
}

/// Applies the configuration to this process and the kernel. As in a kubelet, a failure is a warning.
pub(super) fn set(file: &KubeletConfiguration) {
    if let Err(error) = set_score(file) {
        let score = file.oom_score_adj;
        tracing::warn!(%error, score, "failed to set oomScoreAdj: run the agent as root or with CAP_SYS_RESOURCE");
    }
    let files = file.max_open_files.and_then(|most| u64::try_from(most).ok());
    if let Some(most) = files
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, most, most)
    {
        // Sets the highest allowed limit instead.
        let allowed = getrlimit(Resource::RLIMIT_NOFILE).map(|(_, hard)| hard.min(most));
        let allowed = allowed.and_then(|hard| {
            let kept = getrlimit(Resource::RLIMIT_NOFILE)?.1;
            setrlimit(Resource::RLIMIT_NOFILE, hard, kept).map(|()| hard)
        });
        let allowed = allowed.unwrap_or_default();
        tracing::warn!(%error, most, allowed, "failed to set maxOpenFiles: raise the hard limit (ulimit -Hn), or run the agent with CAP_SYS_RESOURCE");
    }
    tune(file, Path::new("/"));
}

fn set_score(file: &KubeletConfiguration) -> io::Result<()> {
    match file.oom_score_adj {
        Some(score) => fs::write("/proc/self/oom_score_adj", score.to_string()),
        None => Ok(()),
    }
}

/// Sets the sysctls below `root` that a kubelet relies on, if the configuration sets protectKernelDefaults. A kubelet sets them by
/// default; the agent does not, because other programs may share the machine.
fn tune(file: &KubeletConfiguration, root: &Path) {
    let differing = host(root).kernel;
    let Some(protected) = file.protect_kernel_defaults else {
        return;
    };
    // With protectKernelDefaults, `check` has rejected a machine with different values.
    for (name, value) in differing.iter().filter(|_| !protected) {
        let wanted = KERNEL_DEFAULTS.iter().find(|(known, _)| known == name);
        let Some((_, wanted)) = wanted else { continue };
        let path = root.join("proc/sys").join(name);
        // Without O_CREAT: if the kernel lacks the sysctl, the file does not exist.
        let opened = fs::File::options().write(true).truncate(true).open(&path);
        let written =
            opened.and_then(|mut file| io::Write::write_all(&mut file, wanted.as_bytes()));
        let name = name.replace('/', ".");
        match written {
            Ok(()) => tracing::info!(name, from = value, to = wanted, "set sysctl"),
            Err(error) => tracing::warn!(
                %error,
                "failed to set a sysctl: run sysctl -w {name}={wanted}, or leave protectKernelDefaults out"
            ),
        }
    }
}

/// The agent's interfaces to this machine. Warns about missing ones.
pub(super) fn node_parts(config: &Config, claims: Option<NodeClaims>) -> Result<NodeParts, String> {
    let oom_kills = oom_kills(Path::new(KMSG)).map_err(|error| {
        tracing::warn!(
            %error,
            "OOM kills are not reported: {KMSG} cannot be read; run the agent as root, or set sysctl kernel.dmesg_restrict=0"
        );
    });
    let logind = || Arc::new(SystemdLogind::default()) as Arc<dyn Logind>;
    Ok(NodeParts {
        cgroups: cgroups::cgroups(config)?,
        oom_kills: oom_kills.ok(),
        logind: (!config.shutdown.is_empty()).then(logind),
        claims: claims.map(|claims| Arc::new(claims) as Arc<dyn ClaimManager>),
    })
}

/// The interval at which cgroup and OOM score are restored, because other processes may change them
/// (pkg/kubelet/cm/container_manager_linux.go).
const PERIOD: Duration = Duration::from_secs(60);

/// The cgroup for this process in the configuration.
pub(super) fn own_cgroup(file: &KubeletConfiguration) -> Result<Option<HostCgroups>, String> {
    let named = file.kubelet_cgroups.as_deref().filter(|path| !path.is_empty());
    let cgroup = named.map(|path| HostCgroups::new(Path::new(cgroups::MOUNT), path)).transpose();
    cgroup.map_err(|error| format!("kubeletCgroups: {error}"))
}

/// Restores the configured cgroup and OOM score periodically. Never returns.
pub(super) async fn maintain_cgroup(file: &KubeletConfiguration, cgroup: Option<HostCgroups>) {
    let mut is_logged = false;
    loop {
        let entered = cgroup.as_ref().map(|cgroup| cgroup.enter(std::process::id()));
        if let Some(Err(error)) = entered
            && !std::mem::replace(&mut is_logged, true)
        {
            tracing::warn!(%error, "failed to move the agent into kubeletCgroups; will retry: run the agent as root");
        }
        tokio::time::sleep(PERIOD).await;
        // The first failure was reported.
        let _ = set_score(file);
    }
}

/// Sets the actual values of this process in the displayed configuration, and explicit values for the checks of the machine.
pub(super) fn fill_configz(file: &mut KubeletConfiguration) {
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
    fn kernel_is_set_only_if_that_is_asked_for() {
        let root = tempfile::tempdir().unwrap();
        let panics = root.path().join("proc/sys/kernel/panic");
        fs::create_dir_all(panics.parent().unwrap()).unwrap();
        fs::write(&panics, "0\n").unwrap();
        for (protects, expected) in [(None, "0\n"), (Some(true), "0\n"), (Some(false), "10")] {
            let file =
                KubeletConfiguration { protect_kernel_defaults: protects, ..Default::default() };
            tune(&file, root.path());
            assert_eq!(fs::read_to_string(&panics).unwrap(), expected, "{protects:?}");
        }
        // A sysctl that the kernel lacks is not created.
        assert!(!root.path().join("proc/sys/vm").exists());
    }

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
