//! Checkpoint files in the kubelet's form: written atomically by rename, with the kubelet's checksums: 32-bit FNV-1a over the
//! text that Go's spew prints for a value.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/checkpointmanager/checksum, k8s.io/utils/dump ForHash: `%#v` without addresses, keys of maps
//! sorted. A struct is `{Name:(type)value …}`, a list `[a b]`, a map `map[k:v …]`; types of elements are left out.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

/// Atomically and durably replaces a file.
///
/// # Errors
/// If the file cannot be written, or its directory does not exist.
pub(crate) fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = file.with_file_name(name);
    let mut written = File::options().write(true).create(true).truncate(true).open(&new)?;
    written.write_all(content)?;
    // The file must survive a power failure: otherwise devices could be assigned twice.
    written.sync_all()?;
    std::fs::rename(&new, file)
}

/// Reads a file; `None` if it does not exist.
///
/// # Errors
/// The error as text if it cannot be read.
pub(crate) fn read(file: &Path) -> Result<Option<Vec<u8>>, String> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The checksum of a value's text.
pub(crate) fn checksum(text: &str) -> u64 {
    let hash = text
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.into()
}

/// Formats a list without element types.
pub(crate) fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("[{}]", items.join(" "))
}

/// Formats a map. The pairs must be sorted by key.
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
