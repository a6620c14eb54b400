//! ◆ The names of an image in a container's status.

use crate::formats::record::ImageRecord;
use image_reference::Reference;

/// Names that a kubelet copies into the pod's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageNames {
    /// A tag of the image; without tags, the name in the client's request.
    pub name: String,
    /// A repository digest; without one, as from an archive, the ID.
    pub reference: String,
}

/// The names of an image requested as `asked`, which the user had specified as `specified` (empty: unknown).
///
/// As in containerd, any tag and the first digest are acceptable; the requested ones are preferred.
pub fn names(record: &ImageRecord, specified: &str, asked: &str) -> ImageNames {
    let references =
        || [specified, asked].into_iter().filter_map(|name| name.parse::<Reference>().ok());
    let tag = references()
        .filter(|reference| reference.digest.is_none())
        .map(|reference| reference.to_string())
        .find(|tag| record.tags.contains(tag))
        .or_else(|| record.tags.first().cloned());
    let of_repository = |repository: &str| {
        let own = |digest: &&String| {
            digest.strip_prefix(repository).is_some_and(|rest| rest.starts_with('@'))
        };
        record.digests.iter().find(own).cloned()
    };
    let by_digest = references().find_map(|reference| {
        let digest = reference.digest?;
        let wanted = format!("{}@{digest}", reference.repository);
        record.digests.get(&wanted).cloned()
    });
    let by_tag = || {
        let (repository, _) = tag.as_deref()?.rsplit_once(':')?;
        of_repository(repository)
    };
    let digest = by_digest.or_else(by_tag).or_else(|| record.digests.first().cloned());
    ImageNames {
        name: tag.unwrap_or_else(|| asked.to_owned()),
        reference: digest.unwrap_or_else(|| record.id.to_string()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;
    use crate::local;

    const A: &str = "docker.io/library/a@sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
    const B: &str =
        "example.com/b@sha256:3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d";

    #[rstest]
    #[case::id_and_no_user(&["docker.io/library/a:1", "example.com/b:2"], &[A, B], "", "ID", "docker.io/library/a:1", A)]
    #[case::tag_of_the_user(&["docker.io/library/a:1", "example.com/b:2"], &[A, B], "example.com/b:2", "ID", "example.com/b:2", B)]
    #[case::short_name_of_the_user(&["docker.io/library/a:1", "docker.io/library/a:latest"], &[A], "a", "ID", "docker.io/library/a:latest", A)]
    #[case::tag_of_the_client(&["docker.io/library/a:1", "example.com/b:2"], &[A, B], "", "example.com/b:2", "example.com/b:2", B)]
    #[case::tag_that_moved_on(&["docker.io/library/a:1"], &[A, B], "example.com/b:2", "ID", "docker.io/library/a:1", A)]
    #[case::digest_of_the_user(&["docker.io/library/a:1"], &[A, B], B, "ID", "docker.io/library/a:1", B)]
    #[case::digest_alone(&[], &[B], B, "ID", "ID", B)]
    #[case::no_digest(&["example.com/c:1"], &[], "", "example.com/c:1", "example.com/c:1", "ID")]
    #[case::digest_of_another_repository(&["example.com/c:1"], &[B], "", "ID", "example.com/c:1", B)]
    #[case::repository_that_another_begins_with(&["example.com:5000/b:1"], &["example.com:5000/bb@sha256:x", "example.com:5000/b@sha256:y"], "", "ID", "example.com:5000/b:1", "example.com:5000/b@sha256:y")]
    #[case::nothing(&[], &[], "", "ID", "ID", "ID")]
    #[case::nonsense(&[], &[], "UPPER CASE", "a//b", "a//b", "ID")]
    fn image_is_named_by_tag_and_digest(
        #[case] tags: &[&str],
        #[case] digests: &[&str],
        #[case] specified: &str,
        #[case] asked: &str,
        #[case] name: &str,
        #[case] reference: &str,
    ) {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let record = ImageRecord {
            tags: own(tags),
            digests: own(digests),
            ..local::record(b"x", String::new(), None)
        };
        let id = record.id.to_string();
        let with_id = |name: &str| {
            if name == "ID" { id.clone() } else { name.to_owned() }
        };
        let expected = ImageNames { name: with_id(name), reference: with_id(reference) };
        assert_eq!(names(&record, specified, &with_id(asked)), expected);
    }
}
