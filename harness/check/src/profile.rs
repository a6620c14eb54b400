//! ◆ The rules that a client depends on, by source, tags and calls.

use crate::rule::{Rule, sources};

/// The calls that neither kubelet 1.36 (by default) nor crictl 1.36 makes: both use lists, and statistics of all objects.
const OF_NEITHER: &[&str] = &[
    "ContainerStats",
    "PodSandboxStats",
    "StreamContainerStats",
    "StreamContainers",
    "StreamImages",
    "StreamPodSandboxMetrics",
    "StreamPodSandboxStats",
    "StreamPodSandboxes",
];
/// The other calls that no command of crictl 1.36 makes.
const NOT_OF_CRICTL: &[&str] = &["CheckpointPod", "RestorePod", "UpdatePodSandboxResources"];

/// A client whose rules are checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Profile {
    /// The rules that a kubelet depends on.
    Kubelet,
    /// The rules that crictl depends on.
    Crictl,
    /// Every rule.
    #[default]
    Full,
}

impl Profile {
    /// Whether a rule is part of the profile. Rules whose source or tag is the client are. Rules of the protocol or of critest are
    /// if the client makes all their calls. Rules of other clients, and of other runtimes' tests, are not.
    #[must_use]
    pub fn has(self, rule: &Rule) -> bool {
        let (tag, own, never): (_, &[&str], &[&str]) = match self {
            Self::Full => return true,
            Self::Kubelet => ("kubelet", &[sources::KUBELET, sources::LOGS], &[]),
            Self::Crictl => ("crictl", &[], NOT_OF_CRICTL),
        };
        let common = [sources::API, sources::CRITEST].contains(&rule.source);
        let made = |call: &&str| !OF_NEITHER.contains(call) && !never.contains(call);
        rule.tags.contains(&tag)
            || own.contains(&rule.source)
            || (common && rule.calls.iter().all(made))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::rule::Severity;
    use crate::rules::all;

    #[rstest]
    #[case::kubelet_source(sources::KUBELET, &[], &["StopPodSandbox"], "kubelet")]
    #[case::log_reader(sources::LOGS, &[], &["StartContainer"], "kubelet")]
    #[case::kubelet_tag(sources::CRIO, &["kubelet"], &["StopPodSandbox"], "kubelet")]
    #[case::crictl_tag(sources::KUBELET, &["crictl"], &["Status"], "kubelet crictl")]
    #[case::contract(sources::API, &[], &["CreateContainer"], "kubelet crictl")]
    #[case::suite(sources::CRITEST, &[], &["ListImages", "PullImage"], "kubelet crictl")]
    #[case::call_of_kubelet_alone(sources::API, &[], &["UpdatePodSandboxResources"], "kubelet")]
    #[case::one_call_of_neither(sources::API, &[], &["Version", "StreamContainers"], "")]
    #[case::other_runtime(sources::CONTAINERD, &[], &["Version"], "")]
    fn profile_follows_source_tags_and_calls(
        #[case] source: &'static str,
        #[case] tags: &'static [&'static str],
        #[case] calls: &'static [&'static str],
        #[case] expected: &str,
    ) {
        let rule = Rule {
            id: "CRI-CTR-001",
            severity: Severity::Must,
            says: "",
            source,
            tags,
            calls,
            faults: &[],
            body: |_| Box::pin(async { Ok(()) }),
        };
        let profiles = [(Profile::Kubelet, "kubelet"), (Profile::Crictl, "crictl")];
        let found: Vec<&str> = profiles
            .iter()
            .filter(|(profile, _)| profile.has(&rule))
            .map(|(_, name)| *name)
            .collect();
        assert_eq!(found.join(" "), expected);
        assert!(Profile::Full.has(&rule));
    }

    #[test]
    fn excluded_calls_are_in_the_contract() {
        let pool = prost_reflect::DescriptorPool::decode(cri::DESCRIPTORS).unwrap();
        let calls: Vec<String> = pool
            .services()
            .flat_map(|service| service.methods().collect::<Vec<_>>())
            .map(|method| method.name().to_owned())
            .collect();
        for call in OF_NEITHER.iter().chain(NOT_OF_CRICTL) {
            assert!(calls.iter().any(|one| one == call), "{call}");
        }
    }

    #[test]
    fn profiles_have_rules_and_leave_some_out() {
        let count = |profile: Profile| all().iter().filter(|rule| profile.has(rule)).count();
        let (kubelet, crictl) = (count(Profile::Kubelet), count(Profile::Crictl));
        assert!(kubelet > 50 && kubelet < all().len(), "{kubelet}");
        assert!(crictl > 20 && crictl < kubelet, "{crictl} {kubelet}");
    }
}
