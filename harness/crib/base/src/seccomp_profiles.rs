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
    /// The directory, an absolute path; `None` where there is none. A pod may fill it, so that it need not exist yet.
    pub fn directory(&self) -> Option<PathBuf> {
        match &self.seccomp_profile_root {
            Some(given) => std::path::absolute(given).ok(),
            None if is_root() => Some(OF_KUBELET.into()),
            None => default_dir("crib").ok().map(|data| data.join("seccomp")),
        }
    }
}

/// Whether this is root of the machine. `crib run` of an ordinary user may have entered a user namespace by then, where its id is 0.
fn is_root() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    nix::unistd::geteuid().is_root() && map.split_whitespace().eq(["0", "0", "4294967295"])
}
