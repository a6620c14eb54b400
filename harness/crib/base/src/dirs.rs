//! Default directories: `/var/lib` for root, the XDG base directories for ordinary users.

use std::path::{Path, PathBuf};

/// The directory for `name`; the error says what is missing.
pub fn default_dir(name: &str) -> Result<PathBuf, String> {
    let variable =
        |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let root = nix::unistd::geteuid().is_root();
    choose(name, root, variable("XDG_DATA_HOME").as_deref(), variable("HOME").as_deref())
}

fn choose(
    name: &str,
    root: bool,
    data_home: Option<&Path>,
    home: Option<&Path>,
) -> Result<PathBuf, String> {
    match (root, data_home, home) {
        (true, _, _) => Ok(Path::new("/var/lib").join(name)),
        (false, Some(data), _) => Ok(data.join(name)),
        (false, None, Some(home)) => Ok(home.join(".local/share").join(name)),
        (false, None, None) => Err("neither XDG_DATA_HOME nor HOME is set".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(true, Some("/d"), Some("/h"), Some("/var/lib/crib"))]
    #[case(false, Some("/d"), Some("/h"), Some("/d/crib"))]
    #[case(false, None, Some("/h"), Some("/h/.local/share/crib"))]
    #[case(false, None, None, None)]
    fn default_directory_depends_on_user_and_xdg(
        #[case] root: bool,
        #[case] data: Option<&str>,
        #[case] home: Option<&str>,
        #[case] dir: Option<&str>,
    ) {
        let found = choose("crib", root, data.map(Path::new), home.map(Path::new));
        assert_eq!(found.ok(), dir.map(PathBuf::from));
    }
}
