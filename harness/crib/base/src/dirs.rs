//! Default directories: `/var/lib` for root, the XDG base directories for other users; and the flags for the directories of volumes
//! and of seccomp profiles.

use std::path::{Path, PathBuf};

use clap::Args;
pub use harness::temp_dir;

/// The default directory for `name`. The error names the environment variables that are not set.
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

/// The flag for the directory of PersistentVolumeClaim volumes.
#[derive(Clone, Debug, Default, Args)]
pub struct VolumesDirArgs {
    /// Directory for the volumes of PersistentVolumeClaims; the volumes remain after pods end [default: /var/lib/crib-volumes for
    /// root, $XDG_DATA_HOME/crib-volumes for other users]
    #[arg(long, value_name = "DIR", env = "CRIB_VOLUMES_DIR", hide_env_values = true)]
    volumes_dir: Option<PathBuf>,
}

impl VolumesDirArgs {
    /// The absolute path of the directory. Must be called before the process enters a user namespace, which changes the user's id.
    pub fn directory(&self) -> Result<PathBuf, String> {
        let directory = match &self.volumes_dir {
            Some(directory) => directory.clone(),
            None => default_dir("crib-volumes").map_err(|problem| {
                format!("{problem}: set a directory for PersistentVolumeClaim volumes with --volumes-dir")
            })?,
        };
        Ok(std::path::absolute(&directory).unwrap_or(directory))
    }
}

/// The kubelet's directory, which manifests rely on.
const OF_KUBELET: &str = "/var/lib/kubelet/seccomp";

/// The flag for the directory of seccomp profiles.
#[derive(Debug, Clone, Default, Args)]
pub struct SeccompProfileArgs {
    /// Directory of the seccomp profiles that localhostProfile refers to [default: /var/lib/kubelet/seccomp for root,
    /// $XDG_DATA_HOME/crib/seccomp for other users]
    #[arg(long, value_name = "DIR")]
    seccomp_profile_root: Option<PathBuf>,
}

impl SeccompProfileArgs {
    /// The absolute path of the directory, or `None` without a default directory. The directory need not exist yet, because a pod
    /// may create the profiles. Must be called before the process enters a user namespace, which changes the user's id.
    pub fn directory(&self) -> Option<PathBuf> {
        match &self.seccomp_profile_root {
            Some(given) => std::path::absolute(given).ok(),
            None if nix::unistd::geteuid().is_root() => Some(OF_KUBELET.into()),
            None => default_dir("crib").ok().map(|data| data.join("seccomp")),
        }
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
