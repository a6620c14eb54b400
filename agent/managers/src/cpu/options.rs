//! ◆ `cpuManagerPolicyOptions`. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/cpumanager/policy_options.go.

use std::collections::BTreeMap;

use super::layout::Layout;
use super::take::Order;

const FULL_CORES: &str = "full-pcpus-only";
const ACROSS_NODES: &str = "distribute-cpus-across-numa";
const BY_SOCKET: &str = "align-by-socket";
const ACROSS_CORES: &str = "distribute-cpus-across-cores";
const STRICT: &str = "strict-cpu-reservation";
const BY_CACHE: &str = "prefer-align-cpus-by-uncorecache";

/// The options of the policy `static`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Containers never share a physical core.
    pub(crate) full_cores: bool,
    /// Distribute evenly over NUMA nodes, if one does not have enough.
    pub(crate) across_nodes: bool,
    /// Align to sockets instead of NUMA nodes.
    pub(crate) by_socket: bool,
    /// Take one CPU of each core first.
    pub(crate) across_cores: bool,
    /// Containers never run on reserved CPUs.
    pub(crate) strict: bool,
    /// Take whole caches first.
    pub(crate) by_cache: bool,
    /// Pods with pod-level resources get their own CPUs, instead of sharing the node's (gate PodLevelResourceManagers).
    pub(crate) pod_level: bool,
}

/// The gates that decide which options are allowed, and whether pods with pod-level resources get CPUs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gates {
    pub(crate) alpha: bool,
    pub(crate) beta: bool,
    pub(crate) pod_level: bool,
}

/// Parses a boolean like Go's strconv.ParseBool.
pub(crate) fn go_bool(name: &str, text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(format!(
            "bad value for option {name:?}: strconv.ParseBool: parsing {text:?}: invalid syntax"
        )),
    }
}

impl Options {
    /// Parses the options of a configuration.
    ///
    /// # Errors
    /// The kubelet's error if an option is unknown, requires a gate, or conflicts with another.
    pub(crate) fn parse(given: &BTreeMap<String, String>, gates: Gates) -> Result<Self, String> {
        let mut options = Self { pod_level: gates.pod_level, ..Self::default() };
        for (name, value) in given {
            let (field, is_allowed, level) = match name.as_str() {
                FULL_CORES => (&mut options.full_cores, true, ""),
                STRICT => (&mut options.strict, true, ""),
                BY_CACHE => (&mut options.by_cache, true, ""),
                ACROSS_NODES => (&mut options.across_nodes, gates.beta, "Beta"),
                BY_SOCKET => (&mut options.by_socket, gates.alpha, "Alpha"),
                ACROSS_CORES => (&mut options.across_cores, gates.alpha, "Alpha"),
                _ => return Err(format!("unknown CPU Manager Policy option: {name:?}")),
            };
            if !is_allowed {
                return Err(format!(
                    "CPU Manager Policy {level}-level Options not enabled, but option {name:?} provided"
                ));
            }
            *field = go_bool(name, value)?;
        }
        let exclusive = [
            (options.full_cores && options.across_cores, FULL_CORES, ACROSS_CORES),
            (options.across_nodes && options.across_cores, ACROSS_NODES, ACROSS_CORES),
            (options.by_cache && options.across_cores, BY_CACHE, ACROSS_CORES),
            (options.by_cache && options.across_nodes, BY_CACHE, ACROSS_NODES),
        ];
        match exclusive.into_iter().find(|(both, _, _)| *both) {
            Some((_, one, other)) => Err(format!(
                "static policy options {one} and {other} can not be used at the same time"
            )),
            None => Ok(options),
        }
    }

    /// Checks that the machine supports the options.
    ///
    /// # Errors
    /// The kubelet's error.
    pub(crate) fn check(&self, layout: &Layout, single_node: bool) -> Result<(), String> {
        if self.by_socket && single_node {
            return Err(format!(
                "Topolgy manager single-numa-node policy is incompatible with CPUManager {BY_SOCKET} policy option"
            ));
        }
        if self.by_socket && layout.sockets > layout.nodes {
            return Err("Align by socket is not compatible with hardware where number of sockets are more than number of NUMA".to_owned());
        }
        Ok(())
    }

    pub(super) fn order(&self) -> Order {
        if self.across_cores { Order::Spread } else { Order::Packed }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::stable(&[(FULL_CORES, "true"), (STRICT, "1"), (BY_CACHE, "f")], "")]
    #[case::beta(&[(ACROSS_NODES, "true")], "")]
    #[case::alpha(&[(BY_SOCKET, "true")], "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided")]
    #[case::unknown(&[("x", "true")], "unknown CPU Manager Policy option: \"x\"")]
    #[case::no_boolean(&[(STRICT, "yes")], "bad value for option \"strict-cpu-reservation\": strconv.ParseBool: parsing \"yes\": invalid syntax")]
    #[case::exclusive(&[(ACROSS_NODES, "true"), (BY_CACHE, "true")], "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used at the same time")]
    fn options_are_checked_as_by_a_kubelet(#[case] given: &[(&str, &str)], #[case] problem: &str) {
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let gates = Gates { beta: true, ..Gates::default() };
        let parsed = Options::parse(&given.collect(), gates);
        assert_eq!(parsed.err().unwrap_or_default(), problem);
    }
}
