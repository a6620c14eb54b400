//! The directory of seccomp profiles of type Localhost.

use std::path::PathBuf;

use clap::Args;

use crate::dirs::default_dir;

/// Where a kubelet has them, which manifests count on.
const OF_KUBELET: &str = "/var/lib/kubelet/seccomp";

/// The directory, as the user names it.
#[derive(Debug, Clone, Default, Args)]
pub struct SeccompProfileArgs {
    /// Directory of the files that localhostProfile names [default: /var/lib/kubelet/seccomp for root, $XDG_DATA_HOME/crib/seccomp for others]
    #[arg(long, value_name = "DIR")]
    seccomp_profile_root: Option<PathBuf>,
}

impl SeccompProfileArgs {
    /// The directory, an absolute path; `None` where there is none. A pod may fill it, so that it need not exist yet. To be called
    /// before the process enters a user namespace, in which the user has another id.
    pub fn directory(&self) -> Option<PathBuf> {
        match &self.seccomp_profile_root {
            Some(given) => std::path::absolute(given).ok(),
            None if nix::unistd::geteuid().is_root() => Some(OF_KUBELET.into()),
            None => default_dir("crib").ok().map(|data| data.join("seccomp")),
        }
    }
}
