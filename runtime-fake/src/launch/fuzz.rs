//! Fuzz target: SELinux labels.
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use fuzz_target::{Target, bytes, text};

use super::selinux::{Label, Policy};

pub(crate) const TARGETS: &[Target] = &[Target::new("selinux_contexts", selinux, contexts)];

/// A label is displayed as it was parsed.
fn selinux(data: &[u8]) {
    let text = text(data);
    let _ = Policy::read(text);
    for line in text.lines() {
        if let Some(label) = Label::parse(line) {
            assert_eq!(label.to_string(), line);
        }
    }
}

fn contexts() -> Vec<Vec<u8>> {
    bytes(&[
        "process = \"system_u:system_r:container_t:s0\"\nfile = \"system_u:object_r:container_file_t:s0\"\n",
        "system_u:system_r:container_t:s0:c1,c2\n",
    ])
}
