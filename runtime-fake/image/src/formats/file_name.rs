//! ◆ Names of images whose archive gives them none: from the name of its file.

use image_reference::Reference;

/// The reference of an image in an archive that gives it a bare tag or no name: `crib.local/<file stem>:<tag>`,
/// with characters that a repository may not contain replaced by dashes.
pub(crate) fn reference(file_name: &str, tag: Option<&str>) -> Option<Reference> {
    let lower = file_name.to_lowercase();
    let mut stem = lower.as_str();
    for suffix in [".gz", ".tgz", ".zst", ".tar", ".oci"] {
        stem = stem.strip_suffix(suffix).unwrap_or(stem);
    }
    let mut name = String::new();
    for c in stem.chars() {
        let fits = c.is_ascii_lowercase() || c.is_ascii_digit();
        let gap = name.ends_with(['-', '.', '_']);
        match c {
            c if fits => name.push(c),
            '.' | '_' if !gap && !name.is_empty() => name.push(c),
            _ if !gap && !name.is_empty() => name.push('-'),
            _ => {}
        }
    }
    let name = name.trim_end_matches(['-', '.', '_']);
    let name = if name.is_empty() { "image" } else { name };
    format!("crib.local/{name}:{}", tag.unwrap_or("latest")).parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("app.tar", None, "crib.local/app:latest")]
    #[case("App v2.tar.gz", None, "crib.local/app-v2:latest")]
    #[case("--.tar", None, "crib.local/image:latest")]
    #[case("a__b.oci", Some("1.0"), "crib.local/a_b:1.0")]
    #[case("my.app", Some("v1"), "crib.local/my.app:v1")]
    fn named_after_the_file(#[case] file: &str, #[case] tag: Option<&str>, #[case] want: &str) {
        let name = reference(file, tag).map(|name| name.to_string());
        assert_eq!(name.as_deref(), Some(want));
    }

    proptest! {
        #[test]
        fn any_file_name_gives_a_reference(name in "\\PC{0,40}") {
            prop_assert!(reference(&name, None).is_some(), "{name:?}");
        }
    }
}
