//! Scenarios that cannot be replayed, or cannot agree, for a reason that is neither the agent's nor the kubelet's.

use std::fs;

use crate::scenarios::scenario::Scenario;

/// A rule that excludes scenarios.
pub(crate) struct Exception {
    pub(crate) reason: &'static str,
    pub(crate) applies: fn(&Scenario) -> bool,
}

pub(crate) const EXCEPTIONS: [Exception; 2] = [
    Exception {
        reason: "the recorded runtime offered no user namespaces, and crib's does",
        applies: |scenario| scenario.manifest.contains("hostUsers: false"),
    },
    Exception {
        reason: "the recorded node had no AppArmor, and this one has",
        applies: |scenario| scenario.manifest.contains("appArmorProfile:") && has_apparmor(),
    },
];

fn has_apparmor() -> bool {
    fs::read_to_string("/sys/module/apparmor/parameters/enabled")
        .is_ok_and(|text| text.starts_with('Y'))
}
