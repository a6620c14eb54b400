//! A digest of the sources of `proto/generated/`, which shows whether the generated files are out of date.

use std::path::Path;
use std::{fs, io};

/// Below `proto/`. The last two control how the others are compiled.
pub(crate) const SOURCES: [&str; 11] = [
    "cri.proto",
    "csi.proto",
    "deviceplugin.proto",
    "dra.proto",
    "drahealth.proto",
    "files.proto",
    "pluginregistration.proto",
    "podresources.proto",
    "services.proto",
    "compiler/build.rs",
    "compiler/services.rs",
];

/// Where the digest of the sources is recorded, in `proto/generated/`.
pub(crate) const RECORD: &str = "sources.digest";

/// The digest of the sources in `proto`, as a line. FNV-1a of 64 bits detects changes, and needs no package.
pub(crate) fn digest(proto: &Path) -> io::Result<String> {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for source in SOURCES {
        let bytes = fs::read(proto.join(source))?;
        let length = u64::try_from(bytes.len()).map_err(io::Error::other)?;
        for byte in length.to_le_bytes().into_iter().chain(bytes) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(format!("{hash:016x}\n"))
}
