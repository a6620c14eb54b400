//! ◆ The security contexts of debugging containers. Pure.
//!
//! Source: Kubernetes 1.36, kubectl/pkg/cmd/debug/profiles.go.

use clap::ValueEnum;
use k8s_openapi::api::core::v1::{Capabilities, SeccompProfile, SecurityContext};

/// A profile of `kubectl debug`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Profile {
    #[default]
    General,
    Baseline,
    Restricted,
    Netadmin,
    Sysadmin,
    // Deprecated in kubectl.
    #[value(hide = true)]
    Legacy,
}

impl Profile {
    /// The security context of an ephemeral container.
    pub(super) fn security_context(self) -> Option<SecurityContext> {
        let with_capabilities = |names: &[&str]| SecurityContext {
            capabilities: Some(Capabilities {
                add: Some(names.iter().map(|name| (*name).to_owned()).collect()),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        };
        match self {
            Self::General => Some(with_capabilities(&["SYS_PTRACE"])),
            Self::Baseline | Self::Legacy => None,
            Self::Restricted => Some(SecurityContext {
                allow_privilege_escalation: Some(false),
                capabilities: Some(Capabilities {
                    drop: Some(vec!["ALL".to_owned()]),
                    ..Capabilities::default()
                }),
                run_as_non_root: Some(true),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..SecurityContext::default()
            }),
            Self::Netadmin => Some(with_capabilities(&["NET_ADMIN", "NET_RAW"])),
            Self::Sysadmin => {
                Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case("general", json!({"capabilities": {"add": ["SYS_PTRACE"]}}))]
    #[case("baseline", json!(null))]
    #[case("legacy", json!(null))]
    #[case("restricted", json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
        "seccompProfile": {"type": "RuntimeDefault"},
    }))]
    #[case("netadmin", json!({"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}}))]
    #[case("sysadmin", json!({"privileged": true}))]
    fn profiles_are_those_of_kubectl(#[case] name: &str, #[case] expected: Value) {
        let profile = Profile::from_str(name, false).unwrap();
        assert_eq!(serde_json::to_value(profile.security_context()).unwrap(), expected);
    }
}
