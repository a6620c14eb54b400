//! Files of state, as a kubelet has them: written beside their place and renamed into it, so that one that is read is whole, and with a
//! kubelet's checksums: FNV-1a of 32 bits over the text that Go's spew prints of a value.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/checkpointmanager/checksum, k8s.io/utils/dump ForHash: `%#v` without addresses, keys of maps
//! sorted. A struct is `{Name:(type)value …}`, a list `[a b]`, a map `map[k:v …]`; types of elements are left out.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces a file.
///
/// # Errors
/// The file cannot be written, or its directory is not there.
pub(crate) fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = file.with_file_name(name);
    let mut written = File::options().write(true).create(true).truncate(true).open(&new)?;
    written.write_all(content)?;
    // It counts after a power cut too: devices are not to be given twice.
    written.sync_all()?;
    std::fs::rename(&new, file)
}

/// The content of a file; `None`: there is none.
///
/// # Errors
/// In words: it cannot be read.
pub(crate) fn read(file: &Path) -> Result<Option<Vec<u8>>, String> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

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
