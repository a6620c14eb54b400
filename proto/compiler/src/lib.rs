//! The compiled contract, for the build script of `cri` when `proto/generated/` is out of date.
//!
//! `build.rs` compiles it. This is a package of its own, so that no other package waits for the compiler's dependencies.

#[cfg(test)]
mod sources;

use std::path::Path;
use std::{fs, io};

/// The files of `proto/generated/`, beside the digest of their sources.
const FILES: [(&str, &[u8]); 10] = [
    ("cri.bin", include_bytes!(concat!(env!("OUT_DIR"), "/cri.bin"))),
    ("crib.files.v1.rs", include_bytes!(concat!(env!("OUT_DIR"), "/crib.files.v1.rs"))),
    ("crib.services.v1.rs", include_bytes!(concat!(env!("OUT_DIR"), "/crib.services.v1.rs"))),
    ("csi.v1.rs", include_bytes!(concat!(env!("OUT_DIR"), "/csi.v1.rs"))),
    (
        "k8s.io.kubelet.pkg.apis.dra.v1.rs",
        include_bytes!(concat!(env!("OUT_DIR"), "/k8s.io.kubelet.pkg.apis.dra.v1.rs")),
    ),
    ("pluginregistration.rs", include_bytes!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"))),
    ("runtime.v1.rs", include_bytes!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"))),
    ("v1.rs", include_bytes!(concat!(env!("OUT_DIR"), "/v1.rs"))),
    ("v1alpha1.rs", include_bytes!(concat!(env!("OUT_DIR"), "/v1alpha1.rs"))),
    ("v1beta1.rs", include_bytes!(concat!(env!("OUT_DIR"), "/v1beta1.rs"))),
];

/// Writes the compiled contract to a directory.
///
/// # Errors
///
/// Returns the error of the first file that cannot be written.
pub fn write(into: &Path) -> io::Result<()> {
    FILES.iter().try_for_each(|(name, content)| fs::write(into.join(name), content))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::env;

    use super::*;

    const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

    #[test]
    fn generated_code_is_what_proto_compiles_to() {
        let proto = Path::new(PROTO);
        let generated = proto.join("generated");
        let digest = sources::digest(proto).unwrap();
        if env::var_os("CRIB_UPDATE_PROTO").is_some() {
            write(&generated).unwrap();
            fs::write(generated.join(sources::RECORD), digest).unwrap();
            return;
        }
        let record = (sources::RECORD, digest.as_bytes());
        let stale: Vec<&str> = FILES
            .into_iter()
            .chain([record])
            .filter(|(name, content)| {
                fs::read(generated.join(name)).ok().as_deref() != Some(*content)
            })
            .map(|(name, _)| name)
            .collect();
        assert_eq!(
            stale, [""; 0],
            "proto/generated is out of date: CRIB_UPDATE_PROTO=1 cargo test -p cri-compiler"
        );
    }

    #[test]
    fn digest_depends_on_every_source_and_their_bounds() {
        let proto = tempfile::tempdir().unwrap();
        fs::create_dir(proto.path().join("compiler")).unwrap();
        let of = |first: &str, second: &str, last: &str| {
            let middle = std::iter::repeat_n("d", sources::SOURCES.len() - 3);
            let contents = [first, second].into_iter().chain(middle).chain([last]);
            for (source, content) in sources::SOURCES.iter().zip(contents) {
                fs::write(proto.path().join(source), content).unwrap();
            }
            sources::digest(proto.path()).unwrap()
        };
        let one = of("ab", "c", "g");
        for (first, second, last) in
            [("aB", "c", "g"), ("ab", "C", "g"), ("ab", "c", "G"), ("a", "bc", "g")]
        {
            assert_ne!(one, of(first, second, last), "{first:?} {second:?} {last:?}");
        }
        assert_eq!(one, of("ab", "c", "g"));
    }
}
