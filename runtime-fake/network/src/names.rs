//! ◆ Names made of what they stand for, so that a daemon that knows nothing but ids finds everything again.

use sha2::{Digest, Sha256};

/// The name of the host's end of a sandbox's interface: the same whenever it is asked for, so that a sandbox can be
/// detached by a daemon that knows nothing but its id.
pub(super) fn host_interface(bridge: &str, sandbox_id: &str) -> String {
    format!(
        "crv{}",
        digits([bridge.as_bytes(), sandbox_id.as_bytes()], 12)
    )
}

/// The name of a bridge that is connected with the daemon's first one.
pub(super) fn further_bridge(bridge: &str, segment: usize) -> String {
    format!("{bridge}-{segment}")
}

/// The names of the two ends that connect a further bridge with the first one: the first one's port, the further one's.
pub(super) fn uplink(bridge: &str, segment: usize) -> (String, String) {
    let digits = digits([bridge.as_bytes(), &segment.to_ne_bytes()], 12);
    (format!("cru{digits}"), format!("crl{digits}"))
}

/// The first hexadecimal digits of a hash over the parts.
fn digits<const N: usize>(parts: [&[u8]; N], count: usize) -> String {
    let digest = hash(parts);
    let mut text: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    text.truncate(count);
    text
}

/// Bytes that look random and are made of a name.
pub(super) fn digest(name: &str) -> Vec<u8> {
    hash([name.as_bytes()])
}

/// Where the search for a subnet begins.
pub(super) fn seed(name: &str) -> u32 {
    hash([name.as_bytes()])
        .iter()
        .take(4)
        .fold(0, |seed, byte| seed << 8 | u32::from(*byte))
}

fn hash<const N: usize>(parts: [&[u8]; N]) -> Vec<u8> {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
        hasher.update([0]);
    }
    hasher.finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_fit_the_kernel_and_differ_by_sandbox() {
        let name = "crib1a2b3c4d";
        let port = host_interface(name, "a");
        assert!(port.len() == 15 && port.starts_with("crv"), "{port}");
        assert_eq!(port, host_interface(name, "a"));
        assert_ne!(port, host_interface(name, "b"));
        assert_eq!(further_bridge(name, 23).len(), 15);
        let (upper, lower) = uplink(name, 1);
        assert!(upper.len() == 15 && lower.len() == 15 && upper != lower);
        assert_ne!(uplink(name, 2).0, upper);
        // The parts are kept apart: moving a letter from one to the other makes another name.
        assert_ne!(host_interface("cribx", "a"), host_interface("crib", "xa"));
    }
}
