//! ◆ Finds the image that a name refers to.

use crate::formats::digest::Digest;
use crate::formats::record::{ImageId, ImageRecord};
use image_reference::Reference;

/// Minimum digits of an ID without `sha256:`. Fewer digits could also be a name: an image called `cafe` must not count as present
/// because an ID begins with these digits.
const SHORT_ID: usize = 12;

/// Finds an image by tag, digest, ID or unambiguous prefix of an ID.
pub(crate) fn find<'a>(
    records: impl Iterator<Item = &'a ImageRecord> + Clone,
    name: &str,
) -> Option<&'a ImageRecord> {
    let hex = name.strip_prefix("sha256:").unwrap_or(name);
    if let Ok(id) = Digest::from_hex(hex) {
        return records.clone().find(|record| record.id == ImageId(id));
    }
    if let Ok(reference) = name.parse::<Reference>() {
        let wanted = match &reference.digest {
            Some(digest) => format!("{}@{digest}", reference.repository),
            None => reference.to_string(),
        };
        let found =
            records.clone().find(|r| r.tags.contains(&wanted) || r.digests.contains(&wanted));
        if found.is_some() {
            return found;
        }
    }
    let is_prefix = hex.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
    let long_enough = hex.len() >= SHORT_ID || (hex.len() < name.len() && !hex.is_empty());
    if !is_prefix || !long_enough {
        return None;
    }
    let mut all = records.filter(|record| record.id.0.hex().starts_with(hex));
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use rstest::rstest;

    use super::*;
    use crate::local;

    fn record(seed: &str, tags: &[&str], digests: &[&str]) -> ImageRecord {
        let own = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
        ImageRecord {
            id: ImageId(Digest::of(seed.as_bytes())),
            tags: own(tags),
            digests: own(digests),
            ..local::record(seed.as_bytes(), String::new(), None)
        }
    }

    // sha256 of "a" is ca978112ca1b…, of "b" 3e23e8160039…
    const BY_DIGEST: &str = "docker.io/library/b@sha256:0000000000000000000000000000000000000000000000000000000000000000";

    #[rstest]
    #[case::familiar("a", Some("a"))]
    #[case::tagged("docker.io/library/a:latest", Some("a"))]
    #[case::other_tag("a:1", None)]
    #[case::second_tag("example.com/x/y:7", Some("a"))]
    #[case::digest(BY_DIGEST, Some("b"))]
    #[case::tag_and_digest(
        "b:1@sha256:0000000000000000000000000000000000000000000000000000000000000000",
        Some("b")
    )]
    #[case::other_repository(
        "c@sha256:0000000000000000000000000000000000000000000000000000000000000000",
        None
    )]
    #[case::id(
        "sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
        Some("a")
    )]
    #[case::bare_id("ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", Some("a"))]
    #[case::short_id("ca978112ca1b", Some("a"))]
    #[case::prefix("sha256:3e", Some("b"))]
    #[case::too_short("ca978112", None)]
    #[case::nothing("sha256:", None)]
    #[case::empty("", None)]
    #[case::nonsense("..//", None)]
    fn lookup_resolves_names_and_ids(#[case] name: &str, #[case] want: Option<&str>) {
        let all = [
            record("a", &["docker.io/library/a:latest", "example.com/x/y:7"], &[]),
            record("b", &[], &[BY_DIGEST]),
        ];
        let want = want.map(|seed| ImageId(Digest::of(seed.as_bytes())));
        assert_eq!(find(all.iter(), name).map(|r| r.id), want);
    }

    #[test]
    fn lookup_rejects_ambiguous_prefix() {
        let all: Vec<ImageRecord> = (0..64).map(|i| record(&format!("{i}"), &[], &[])).collect();
        let first = all[0].id.0.hex();
        let name = format!("sha256:{}", &first[..1]);
        assert!(all.iter().filter(|r| r.id.0.hex().starts_with(&first[..1])).count() > 1);
        assert!(find(all.iter(), &name).is_none());
    }
}
