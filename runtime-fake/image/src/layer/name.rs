//! ◆ Interprets and validates the names of a layer's entries.

use crate::error::ContentError;

/// A path as components, none of which is `.`, `..` or empty or contains a slash. The root is the empty list.
pub(crate) type Parts = Vec<Vec<u8>>;

/// The meaning of a layer's entry. OCI image specification 1.1, layer.md, "Representing Changes".
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The root directory itself.
    Root,
    /// A file of any kind.
    Node {
        /// The directory it goes into.
        parent: Parts,
        /// Its name there.
        name: Vec<u8>,
    },
    /// `.wh.<name>`: hides `name` of the lower layers.
    Whiteout {
        /// The directory of the hidden name.
        parent: Parts,
        /// The hidden name.
        name: Vec<u8>,
    },
    /// `.wh..wh..opq`: hides everything that the lower layers have in this directory.
    Opaque {
        /// The directory.
        directory: Parts,
    },
    /// `.wh..wh.…`: bookkeeping of aufs, ignored.
    Bookkeeping,
}

/// Classifies an entry by its name.
pub(crate) fn classify(path: &[u8], depth: usize) -> Result<Entry, ContentError> {
    let mut parts = split(path, depth)?;
    let Some(name) = parts.pop() else {
        return Ok(Entry::Root);
    };
    let refuse = |why| Err(ContentError::Name { path: lossy(path), why });
    if parts.iter().any(|part| part.starts_with(b".wh.")) {
        return refuse("which lies below a whiteout");
    }
    match name.strip_prefix(b".wh.") {
        None => Ok(Entry::Node { parent: parts, name }),
        Some(b".wh..opq") => Ok(Entry::Opaque { directory: parts }),
        Some(rest) if rest.starts_with(b".wh.") => Ok(Entry::Bookkeeping),
        Some(b"" | b"." | b"..") => refuse("a whiteout of nothing"),
        Some(rest) => Ok(Entry::Whiteout { parent: parts, name: rest.to_vec() }),
    }
}

/// Splits and checks the name of an entry, or the target of a hard link.
///
/// Names are relative to the layer's root, with or without a leading slash. `..` is resolved lexically (`a/../b` is `b`, even if
/// `a` is a link), as in containerd and docker. A name that leads above the root is refused, as in docker; no builder writes such
/// names.
pub(crate) fn split(path: &[u8], depth: usize) -> Result<Parts, ContentError> {
    let refuse = |why| Err(ContentError::Name { path: lossy(path), why });
    if path.contains(&0) {
        return refuse("which holds a NUL byte");
    }
    let mut parts = Vec::new();
    for part in path.split(|c| *c == b'/') {
        match part {
            b"" | b"." => {}
            b".." if parts.is_empty() => return refuse("which leads out of the image"),
            b".." => {
                parts.pop();
            }
            _ if part.len() > 255 => return refuse("which has a component of more than 255 bytes"),
            _ => parts.push(part.to_vec()),
        }
    }
    if parts.len() > depth {
        return Err(ContentError::TooMuch {
            what: shorten(path),
            limit: depth as u64,
            unit: "directories above it",
        });
    }
    Ok(parts)
}

/// Converts a name for display in messages.
pub(crate) fn lossy(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn shorten(path: &[u8]) -> String {
    let text = lossy(path);
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("\"{}…\"", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn parts(path: &str) -> Parts {
        path.split('/').filter(|p| !p.is_empty()).map(|p| p.as_bytes().to_vec()).collect()
    }

    #[rstest]
    #[case("./", Entry::Root)]
    #[case(".", Entry::Root)]
    #[case("a", Entry::Node { parent: vec![], name: b"a".to_vec() })]
    #[case("./a//b/./c/", Entry::Node { parent: parts("a/b"), name: b"c".to_vec() })]
    #[case("a/.wh.b", Entry::Whiteout { parent: parts("a"), name: b"b".to_vec() })]
    #[case("a/.wh..wh..opq", Entry::Opaque { directory: parts("a") })]
    #[case(".wh..wh..opq", Entry::Opaque { directory: vec![] })]
    #[case(".wh..wh.plnk", Entry::Bookkeeping)]
    #[case("a..b", Entry::Node { parent: vec![], name: b"a..b".to_vec() })]
    #[case("", Entry::Root)]
    #[case("/", Entry::Root)]
    #[case("a/..", Entry::Root)]
    #[case("/a", Entry::Node { parent: vec![], name: b"a".to_vec() })]
    #[case("//a//b", Entry::Node { parent: parts("a"), name: b"b".to_vec() })]
    #[case("a/../b", Entry::Node { parent: vec![], name: b"b".to_vec() })]
    #[case("a/b/../c", Entry::Node { parent: parts("a"), name: b"c".to_vec() })]
    #[case(".wh.a/../b", Entry::Node { parent: vec![], name: b"b".to_vec() })]
    #[case("a\nb", Entry::Node { parent: vec![], name: b"a\nb".to_vec() })]
    fn member_names_are_classified(#[case] path: &str, #[case] want: Entry) {
        assert_eq!(classify(path.as_bytes(), 10).unwrap(), want);
    }

    #[rstest]
    #[case::parent("../a")]
    #[case::inner_parent("a/../../b")]
    #[case::trailing_parent("a/../..")]
    #[case::above_the_root("/../a")]
    #[case::nul("a\0b")]
    #[case::whiteout_of_nothing(".wh.")]
    #[case::whiteout_of_dot("a/.wh..")]
    #[case::whiteout_of_parent("a/.wh...")]
    #[case::below_whiteout(".wh.a/b")]
    #[case::deep("1/2/3/4/5/6/7/8/9/10/11")]
    fn invalid_member_names_are_refused(#[case] path: &str) {
        assert!(classify(path.as_bytes(), 10).is_err());
    }

    proptest! {
        #[test]
        fn accepted_names_stay_inside_the_root(path in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Entry::Node { parent, name }) = classify(&path, 300) {
                for part in parent.iter().chain([&name]) {
                    prop_assert!(!matches!(part.as_slice(), b"" | b"." | b".."));
                    prop_assert!(!part.contains(&b'/') && !part.contains(&0));
                }
            }
        }
    }
}
