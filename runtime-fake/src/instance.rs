//! ◆ The name of a daemon, derived from its state directory, for its bridge, its packet rules and its cgroups.

use std::{os::unix::ffi::OsStrExt as _, path::Path};

use sha2::{Digest as _, Sha256};

/// `crib` and 8 hexadecimal digits, constant for a state directory, so that a restarted daemon finds what it
/// created.
#[must_use]
pub fn instance_name(state_dir: &Path) -> String {
    let mut hasher = Sha256::new();
    hasher.update(state_dir.as_os_str().as_bytes());
    hasher.update([0]);
    let digits = hasher.finalize();
    let digits: String = digits[..4].iter().map(|b| format!("{b:02x}")).collect();
    format!("crib{digits}")
}

#[test]
fn instance_names_differ_by_state_directory_and_stay() {
    assert_eq!(instance_name("/run/crib".as_ref()), "cribaba9af7e");
    assert_ne!(instance_name("/run/crib2".as_ref()), instance_name("/run/crib".as_ref()));
}
