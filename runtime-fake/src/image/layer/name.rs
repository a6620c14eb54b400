//! ◆ What a name in a layer means, and which names are refused.

use crate::image::problem::Problem;

/// A path as components; never `.`, `..`, empty or with a slash. Empty: the root.
pub(crate) type Parts = Vec<Vec<u8>>;

/// What an entry of a layer asks for. OCI image specification 1.1, layer.md, "Representing Changes".
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
    /// `.wh.<name>`: hide `name` of the layers below.
    Whiteout {
        /// The directory of the hidden name.
        parent: Parts,
        /// The hidden name.
        name: Vec<u8>,
    },
    /// `.wh..wh..opq`: hide everything that the layers below have in this directory.
    Opaque {
        /// The directory.
        directory: Parts,
    },
    /// `.wh..wh.…`: bookkeeping of aufs, without meaning here.
    Bookkeeping,
}

/// Reads the name of an entry.
pub(crate) fn classify(path: &[u8], depth: usize) -> Result<Entry, Problem> {
    let mut parts = split(path, depth)?;
    let Some(name) = parts.pop() else {
        return Ok(Entry::Root);
    };
    let refuse = |why| {
        Err(Problem::Name {
            path: lossy(path),
            why,
        })
    };
    if parts.iter().any(|part| part.starts_with(b".wh.")) {
        return refuse("which lies below a whiteout");
    }
    match name.strip_prefix(b".wh.") {
        None => Ok(Entry::Node {
            parent: parts,
            name,
        }),
        Some(b".wh..opq") => Ok(Entry::Opaque { directory: parts }),
        Some(rest) if rest.starts_with(b".wh.") => Ok(Entry::Bookkeeping),
        Some(b"" | b"." | b"..") => refuse("a whiteout of nothing"),
        Some(rest) => Ok(Entry::Whiteout {
            parent: parts,
            name: rest.to_vec(),
        }),
    }
}

/// Splits and checks the name of an entry, or the target of a hard link.
pub(crate) fn split(path: &[u8], depth: usize) -> Result<Parts, Problem> {
    let refuse = |why| {
        Err(Problem::Name {
            path: lossy(path),
            why,
        })
    };
    if path.is_empty() {
        return refuse("an empty name");
    }
    if path.starts_with(b"/") {
        return refuse("an absolute path");
    }
    if path.contains(&0) {
        return refuse("which holds a NUL byte");
    }
    if path.contains(&b'\n') {
        return refuse("which holds a line break");
    }
    let mut parts = Vec::new();
    for part in path.split(|c| *c == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return refuse("which leads out of the image"),
            _ if part.len() > 255 => return refuse("which has a component of more than 255 bytes"),
            _ => parts.push(part.to_vec()),
        }
    }
    if parts.len() > depth {
        return Err(Problem::TooMuch {
            what: shorten(path),
            limit: depth as u64,
            unit: "directories above it",
        });
    }
    Ok(parts)
}

/// Would a symbolic link in a directory `depth` below the root climb above the root?
/// An absolute target does not: it starts again at the root of whoever follows it.
pub(crate) fn climbs_out(depth: usize, target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return climbs_out(0, target.strip_prefix(b"/").unwrap_or_default());
    }
    let mut depth = depth;
    for part in target.split(|c| *c == b'/') {
        match part {
            b"" | b"." => {}
            b".." => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return true,
            },
            _ => depth += 1,
        }
    }
    false
}

/// For messages.
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
        path.split('/')
            .filter(|p| !p.is_empty())
            .map(|p| p.as_bytes().to_vec())
            .collect()
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
    fn meanings(#[case] path: &str, #[case] want: Entry) {
        assert_eq!(classify(path.as_bytes(), 10).unwrap(), want);
    }

    #[rstest]
    #[case::parent("../a")]
    #[case::inner_parent("a/../b")]
    #[case::trailing_parent("a/..")]
    #[case::absolute("/a")]
    #[case::newline("a\nb")]
    #[case::nul("a\0b")]
    #[case::empty("")]
    #[case::whiteout_of_nothing(".wh.")]
    #[case::whiteout_of_dot("a/.wh..")]
    #[case::whiteout_of_parent("a/.wh...")]
    #[case::below_whiteout(".wh.a/b")]
    #[case::deep("1/2/3/4/5/6/7/8/9/10/11")]
    fn refused(#[case] path: &str) {
        assert!(classify(path.as_bytes(), 10).is_err());
    }

    #[rstest]
    #[case(0, "a", false)]
    #[case(0, "..", true)]
    #[case(1, "..", false)]
    #[case(2, "../../usr/lib", false)]
    #[case(2, "../../../etc", true)]
    #[case(1, "a/../../b", false)]
    #[case(0, "a/../../b", true)]
    #[case(3, "/etc/passwd", false)]
    #[case(3, "/../etc", true)]
    fn climbing(#[case] depth: usize, #[case] target: &str, #[case] want: bool) {
        assert_eq!(climbs_out(depth, target.as_bytes()), want);
    }

    proptest! {
        #[test]
        fn what_is_accepted_stays_inside(path in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Entry::Node { parent, name }) = classify(&path, 300) {
                for part in parent.iter().chain([&name]) {
                    prop_assert!(!matches!(part.as_slice(), b"" | b"." | b".."));
                    prop_assert!(!part.contains(&b'/') && !part.contains(&0));
                }
            }
        }
    }
}
