//! ◆ Decides the destination of an archive's member, and whether a link leads out.

use crate::error::CopyError;

/// Limit on the nesting of members, the same as for packing: each parent directory of a member stays open meanwhile.
const DEPTH: usize = 256;

/// The names of an archive's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Top {
    /// All members are below this name, and others are refused, because the sender is untrusted.
    Named(Vec<u8>),
    /// All members are below the name of the first one.
    First,
    /// Members may have any names.
    Any,
}

/// The names of a path in an archive. None of them is empty, `.` or `..`.
pub(crate) type Names = Vec<Vec<u8>>;

/// Splits a path of an archive.
fn split(path: &[u8]) -> Result<Names, CopyError> {
    if path.starts_with(b"/") {
        return Err(CopyError::refused(path, "is absolute: the archive is not that of a copy"));
    }
    if path.contains(&0) {
        return Err(CopyError::refused(path, "has a NUL: the archive is not that of a copy"));
    }
    let names: Names = path
        .split(|byte| *byte == b'/')
        .filter(|name| !matches!(*name, b"" | b"."))
        .map(<[u8]>::to_vec)
        .collect();
    if names.iter().any(|name| name == b"..") {
        return Err(CopyError::refused(path, "leads out of the destination"));
    }
    if names.len() > DEPTH {
        return Err(CopyError::refused(path, "is nested too deep"));
    }
    Ok(names)
}

/// Gives members their paths in the destination.
#[derive(Debug)]
pub(crate) struct Placement {
    top: Top,
    name: Option<Vec<u8>>,
}

impl Placement {
    /// `name` replaces the top name in the archive; `None`: members keep their names.
    pub(crate) fn new(top: Top, name: Option<Vec<u8>>) -> Self {
        Self { top, name }
    }

    /// The path of a member in the destination; empty for the destination itself.
    pub(crate) fn place(&mut self, path: &[u8]) -> Result<Names, CopyError> {
        let mut names = split(path)?;
        let first = names.first().cloned().unwrap_or_default();
        if self.top == Top::First {
            self.top = Top::Named(first.clone());
        }
        // A directory's content has no name of its own.
        let content = matches!(&self.top, Top::Named(top) if matches!(&top[..], b"" | b"."));
        match &self.top {
            Top::Named(top) if !content && *top != first => {
                return Err(CopyError::refused(path, "is beside what is copied"));
            }
            Top::Named(_) | Top::First | Top::Any => {}
        }
        match (&self.name, names.first_mut()) {
            (Some(name), Some(first)) if !content && self.top != Top::Any => first.clone_from(name),
            (Some(name), _) => names.insert(0, name.clone()),
            (None, _) => {}
        }
        Ok(names)
    }

    /// Whether a link at a path in the destination leads, or may lead, out of the copied tree, judging by its target alone.
    ///
    /// `..` is allowed at its beginning only: after a name, its meaning depends on whether that name is a link.
    pub(crate) fn leads_out(&self, at: &Names, target: &[u8]) -> bool {
        let inside = at.len().checked_sub(1 + usize::from(self.name.is_some()));
        let Some(mut depth) = inside.filter(|_| !target.starts_with(b"/")) else {
            return true;
        };
        let mut named = false;
        for name in target.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." if named || depth == 0 => return true,
                b".." => depth -= 1,
                _ => named = true,
            }
        }
        false
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn named(top: &str) -> Top {
        Top::Named(top.as_bytes().to_vec())
    }

    #[rstest]
    #[case::renamed(named("a"), Some("b"), "a/x", Ok("b/x"))]
    #[case::itself(named("a"), Some("b"), "a", Ok("b"))]
    #[case::slashes(named("a"), Some("b"), "./a//x/./y/", Ok("b/x/y"))]
    #[case::first(Top::First, Some("b"), "q/x", Ok("b/x"))]
    #[case::content(named("."), None, "./x", Ok("x"))]
    #[case::content_itself(named("."), None, "./", Ok(""))]
    #[case::content_in_new_directory(named("."), Some("b"), "./x", Ok("b/x"))]
    #[case::content_is_new_directory(named("."), Some("b"), "./", Ok("b"))]
    #[case::any(Top::Any, None, "x/y", Ok("x/y"))]
    #[case::any_in_new_directory(Top::Any, Some("b"), "x/y", Ok("b/x/y"))]
    #[case::beside(named("a"), Some("b"), ".bashrc", Err("beside"))]
    #[case::nothing(named("a"), Some("b"), "./", Err("beside"))]
    #[case::parent(named("a"), Some("b"), "a/../../x", Err("leads out"))]
    #[case::parent_of_any(Top::Any, None, "..", Err("leads out"))]
    #[case::absolute(named("a"), Some("b"), "/a/x", Err("absolute"))]
    #[case::nul(named("a"), Some("b"), "a/\0", Err("NUL"))]
    fn members_are_placed_below_the_destination(
        #[case] top: Top,
        #[case] name: Option<&str>,
        #[case] path: &str,
        #[case] expected: Result<&str, &str>,
    ) {
        let mut names = Placement::new(top, name.map(|name| name.as_bytes().to_vec()));
        match (names.place(path.as_bytes()), expected) {
            (Ok(found), Ok(expected)) => {
                assert_eq!(String::from_utf8(found.join(&b'/')).unwrap(), expected);
            }
            (Err(error), Err(why)) => assert!(error.to_string().contains(why), "{error}"),
            (found, _) => panic!("{found:?}"),
        }
    }

    #[test]
    fn all_members_have_the_name_of_the_first() {
        let mut names = Placement::new(Top::First, Some(b"b".to_vec()));
        names.place(b"a").unwrap();
        names.place(b"a/x").unwrap();
        assert!(names.place(b"other").is_err());
    }

    #[test]
    fn nested_names_are_limited() {
        let mut names = Placement::new(Top::Any, None);
        assert!(names.place("d/".repeat(256).as_bytes()).is_ok());
        assert!(names.place("d/".repeat(257).as_bytes()).is_err());
    }

    #[rstest]
    #[case::beside("b/l", "x", false)]
    #[case::up("b/d/l", "../x", false)]
    #[case::up_to_top("b/d/l", "..", false)]
    #[case::current("b/l", ".", false)]
    #[case::out("b/l", "../x", true)]
    #[case::out_deeper("b/d/l", "../../x", true)]
    #[case::absolute("b/d/l", "/etc/passwd", true)]
    #[case::through_a_name("b/d/l", "x/../y", true)]
    #[case::itself("b", "x", true)]
    fn links_out_of_destination_are_detected(
        #[case] at: &str,
        #[case] target: &str,
        #[case] out: bool,
    ) {
        let names = Placement::new(named("a"), Some(b"b".to_vec()));
        let at = at.split('/').map(|name| name.as_bytes().to_vec()).collect();
        assert_eq!(names.leads_out(&at, target.as_bytes()), out);
    }

    #[test]
    fn links_of_content_stay_in_the_destination() {
        let names = Placement::new(named("."), None);
        assert!(!names.leads_out(&vec![b"l".to_vec()], b"x"));
        assert!(!names.leads_out(&vec![b"d".to_vec(), b"l".to_vec()], b"../x"));
        assert!(names.leads_out(&vec![b"l".to_vec()], b"../x"));
    }
}
