//! IDs of sandboxes and containers: 64 lower-case hexadecimal digits, as every CRI client expects; and
//! the name of a daemon.

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        // Reference-counted, because records, events and tasks clone IDs often.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub(crate) struct $name(Arc<str>);

        impl $name {
            /// A new random ID.
            #[must_use]
            pub(crate) fn random() -> Self {
                Self(random_hex().into())
            }

            /// The 64 digits.
            #[must_use]
            pub(crate) fn as_str(&self) -> &str {
                &self.0
            }

            /// The first 13 digits, for display.
            #[must_use]
            pub(crate) fn short(&self) -> &str {
                self.0.get(..13).unwrap_or(&self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.short())
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

id! {
    /// A pod sandbox's id.
    SandboxId
}
id! {
    /// A container's id.
    ContainerId
}

impl SandboxId {
    /// The ID from a directory's name.
    #[must_use]
    pub(crate) fn from_record(text: &str) -> Self {
        Self(text.into())
    }
}

impl ContainerId {
    /// The ID from a keeper's message or a directory's name.
    #[must_use]
    pub(crate) fn from_record(text: &str) -> Self {
        Self(text.into())
    }
}

/// 256 random bits.
pub(crate) fn random_hex() -> String {
    let mut bytes = [0u8; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        // getrandom(2) fails only for a bad address; it waits until the generator is seeded.
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("failed to get random bytes from the kernel: {error}"),
        }
    }
    hex(&bytes)
}

/// `bytes` in lower-case hexadecimal.
#[must_use]
pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The name of a daemon, for its bridge, its packet rules and its cgroups: `crib` and 8 hexadecimal digits, constant for a state
/// directory, so that a restarted daemon finds its own bridge, rules and cgroups.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_have_64_digits_and_differ() {
        let (a, b) = (SandboxId::random(), SandboxId::random());
        assert_eq!(a.as_str().len(), 64);
        assert!(a.as_str().bytes().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()));
        assert_ne!(a, b);
    }
}
