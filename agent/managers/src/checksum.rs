//! ◆ The checksums of a kubelet's checkpoints: FNV-1a of 32 bits over the text that Go's spew prints of a value. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/checkpointmanager/checksum, k8s.io/utils/dump ForHash: `%#v` without addresses, keys of maps
//! sorted. A struct is `{Name:(type)value …}`, a list `[a b]`, a map `map[k:v …]`; types of elements are left out.

use std::fmt::Display;

/// The checksum of a value that is printed as this text.
pub(crate) fn checksum(text: &str) -> u64 {
    let hash = text
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.into()
}

/// A list of elements without types.
pub(crate) fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("[{}]", items.join(" "))
}

/// A map, whose pairs are in the order of their keys.
pub(crate) fn map<K: Display, V: Display>(pairs: impl IntoIterator<Item = (K, V)>) -> String {
    format!("map{}", list(pairs.into_iter().map(|(key, value)| format!("{key}:{value}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_fnv_1a() {
        assert_eq!(checksum(""), 0x811c_9dc5);
        assert_eq!(checksum("a"), 0xe40c_292c);
        assert_eq!(checksum("foobar"), 0xbf9c_f968);
    }

    #[test]
    fn lists_and_maps_are_printed_as_by_go() {
        assert_eq!(map([("a", list([1, 2])), ("b", list([0; 0]))]), "map[a:[1 2] b:[]]");
    }
}
