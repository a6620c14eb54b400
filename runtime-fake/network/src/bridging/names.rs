//! ◆ Names derived from ids, so that a restarted daemon finds interfaces by sandbox ids alone.

use sha2::{Digest, Sha256};

/// The name of the host end of a sandbox's veth pair. It is deterministic, so that a daemon can detach a sandbox
/// by its id alone.
pub(crate) fn host_interface(bridge: &str, sandbox_id: &str) -> String {
    format!("crv{}", digits([bridge.as_bytes(), sandbox_id.as_bytes()], 12))
}

/// The name of a secondary bridge, connected to the daemon's first one.
pub(crate) fn secondary_bridge(bridge: &str, segment: usize) -> String {
    format!("{bridge}-{segment}")
}

/// The two ends of the veth pair that connects a secondary bridge to the first one: the port of the first bridge, then the port of
/// the secondary one.
pub(crate) fn uplink(bridge: &str, segment: usize) -> (String, String) {
    let digits = digits([bridge.as_bytes(), &segment.to_ne_bytes()], 12);
    (format!("cru{digits}"), format!("crl{digits}"))
}

/// The first hexadecimal digits of a hash of the parts.
fn digits<const N: usize>(parts: [&[u8]; N], count: usize) -> String {
    let digest = hash(parts);
    let mut text: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    text.truncate(count);
    text
}

/// Pseudo-random bytes derived from a name.
pub(crate) fn digest(name: &str) -> Vec<u8> {
    hash([name.as_bytes()])
}

/// The start of the search for a subnet.
pub(crate) fn seed(name: &str) -> u32 {
    hash([name.as_bytes()]).iter().take(4).fold(0, |seed, byte| seed << 8 | u32::from(*byte))
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
        assert_eq!(secondary_bridge(name, 23).len(), 15);
        let (upper, lower) = uplink(name, 1);
        assert!(upper.len() == 15 && lower.len() == 15 && upper != lower);
        assert_ne!(uplink(name, 2).0, upper);
        // The hash separates the parts: moving a letter from one to the other changes the name.
        assert_ne!(host_interface("cribx", "a"), host_interface("crib", "xa"));
    }
}
