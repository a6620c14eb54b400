//! ◆ Parses the two arguments of `crib cp`.

use std::path::PathBuf;

use crate::client::CallError;

/// A source or destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A local path.
    Local(PathBuf),
    /// A tar archive on standard input or output.
    Standard,
    /// A path in a container.
    InContainer(InContainer),
}

/// A path in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InContainer {
    /// The container or its pod, as the user gave it.
    pub(super) container: String,
    pub(super) path: String,
}

/// Parses an argument: text with a colon is a path in a container, unless it begins like a path.
pub(super) fn parse(text: &str) -> Result<End, CallError> {
    let usage = |problem: &str| Err(CallError::Usage(format!("{text:?}: {problem}")));
    if text == "-" {
        return Ok(End::Standard);
    }
    match text.split_once(':').filter(|_| !text.starts_with(['/', '.'])) {
        Some(("", _)) => usage("a pod is missing before the colon, as in POD:PATH"),
        Some((_, "")) => usage("a path is missing after the colon, as in POD:PATH"),
        Some((container, path)) => {
            let (container, path) = (container.to_owned(), path.to_owned());
            Ok(End::InContainer(InContainer { container, path }))
        }
        None if text.is_empty() => usage("a path is missing"),
        None => Ok(End::Local(text.into())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("file", None)]
    #[case("/a:b", None)]
    #[case("./a:b", None)]
    #[case("../a:b", None)]
    #[case("web:/srv", Some(("web", "/srv")))]
    #[case("shop/web:srv", Some(("shop/web", "srv")))]
    #[case("pod/shop/web:/a:b", Some(("pod/shop/web", "/a:b")))]
    fn colon_separates_pod_from_path(#[case] text: &str, #[case] expected: Option<(&str, &str)>) {
        let expected = match expected {
            None => End::Local(text.into()),
            Some((container, path)) => {
                End::InContainer(InContainer { container: container.into(), path: path.into() })
            }
        };
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[rstest]
    #[case("")]
    #[case(":/srv")]
    #[case("web:")]
    fn missing_parts_are_named(#[case] text: &str) {
        assert!(parse(text).unwrap_err().to_string().contains("is missing"));
    }
}
