//! ◆ Checks whether a configuration allows the agent to run on this machine. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/apis/config/validation/validation_linux.go, pkg/kubelet/cm/container_manager_linux.go,
//! cmd/kubelet/app/server.go run.

use crate::local_node::kubelet_config::{FieldProblem, KubeletConfiguration};

/// Settings of the kernel that a kubelet relies on, with their values (k8s.io/kubernetes/pkg/util/sysctl).
pub const KERNEL_DEFAULTS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Properties of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Whether its cgroups are in the unified hierarchy.
    pub unified_cgroups: bool,
    /// Whether it has swap enabled.
    pub swaps: bool,
    /// The [`KERNEL_DEFAULTS`] that differ: name and value.
    pub kernel: Vec<(&'static str, String)>,
}

/// Why the configuration does not allow the agent on this machine; unset fields are not checked.
#[must_use]
pub fn host_problems(config: &KubeletConfiguration, host: &Host) -> Vec<FieldProblem> {
    let mut problems = Vec::new();
    let mut add = |field: &str, problem: String| {
        problems.push(FieldProblem { field: field.to_owned(), problem });
    };
    if !host.unified_cgroups {
        if config.fail_cgroup_v1 == Some(true) {
            let problem = "this machine has cgroup v1: boot it with the unified hierarchy, or set failCgroupV1: false";
            add("failCgroupV1", problem.to_owned());
        }
        if config.single_process_oom_kill == Some(false) {
            add("singleProcessOOMKill", "false needs the unified hierarchy (cgroup v2)".to_owned());
        }
        let swap = config.memory_swap.as_ref().and_then(|swap| swap.swap_behavior.as_deref());
        if swap == Some("LimitedSwap") {
            let problem = "LimitedSwap needs the unified hierarchy (cgroup v2): boot this machine with it, or set NoSwap";
            add("memorySwap.swapBehavior", problem.to_owned());
        }
    }
    if host.swaps && config.fail_swap_on == Some(true) {
        let problem = "swap is enabled on this machine: run swapoff, or set failSwapOn: false";
        add("failSwapOn", problem.to_owned());
    }
    if config.protect_kernel_defaults == Some(true) {
        for (name, value) in &host.kernel {
            let wanted = KERNEL_DEFAULTS.iter().find(|(known, _)| known == name);
            let (_, wanted) = wanted.copied().unwrap_or_default();
            let name = name.replace('/', ".");
            let problem = format!("{name} is {value}: run sysctl -w {name}={wanted}");
            add("protectKernelDefaults", problem);
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::local_node::kubelet_config::{Document, check, normalized};

    #[rstest]
    #[case("{}", "")]
    #[case("{\"failCgroupV1\": true}", "failCgroupV1: this machine has cgroup v1")]
    #[case("{\"singleProcessOOMKill\": false}", "singleProcessOOMKill: false needs")]
    #[case("{\"failSwapOn\": true}", "failSwapOn: swap is enabled")]
    #[case("{\"memorySwap\": {\"swapBehavior\": \"NoSwap\"}}", "")]
    #[case(
        "{\"memorySwap\": {\"swapBehavior\": \"LimitedSwap\"}}",
        "memorySwap.swapBehavior: LimitedSwap needs"
    )]
    #[case(
        "{\"protectKernelDefaults\": true}",
        "protectKernelDefaults: kernel.panic is 0: run sysctl -w kernel.panic=10"
    )]
    fn host_settings_must_match_configuration(#[case] fields: &str, #[case] expected: &str) {
        let document: Document = serde_json::from_str(fields).unwrap();
        let config = check(&normalized(&document).unwrap()).unwrap().config;
        let host = Host {
            unified_cgroups: false,
            swaps: true,
            kernel: vec![("kernel/panic", "0".to_owned())],
        };
        let problems: Vec<String> =
            host_problems(&config, &host).iter().map(ToString::to_string).collect();
        let problems = problems.join("; ");
        assert_eq!(problems.is_empty(), expected.is_empty(), "{problems}");
        assert!(problems.contains(expected), "{problems}");
        let good = Host { unified_cgroups: true, ..Host::default() };
        assert_eq!(host_problems(&config, &good), []);
    }
}
