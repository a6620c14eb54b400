//! How the kernel's security modules are used.

use runtime_fake::Config;
use serde::Deserialize;

/// The section `security`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SecuritySection {
    /// Every pod gets an SELinux label.
    selinux: bool,
}

impl SecuritySection {
    pub(super) fn apply(self, config: &mut Config) {
        config.selinux = self.selinux;
    }
}
