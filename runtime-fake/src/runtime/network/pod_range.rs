//! The pod subnets that a client has set by UpdateRuntimeConfig. They are stored for the next daemon, because a kubelet sends
//! them once.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use network::PodCidrs;

/// The file in the state directory: one line with the subnets of the configuration, and one with the client's.
const FILE: &str = "pod-cidr";

/// ◆ The subnets for a daemon with this configuration and file. The configuration takes precedence if it has changed since the
/// file was written.
fn decide(configured: PodCidrs, file: &str) -> PodCidrs {
    let mut lines = file.lines();
    let then = lines.next().map(str::to_owned);
    let of_client = lines.next().and_then(|line| line.parse().ok());
    match (then, of_client) {
        (Some(then), Some(of_client)) if then == text(&configured) => of_client,
        _ => configured,
    }
}

fn text(cidrs: &PodCidrs) -> String {
    cidrs.texts().join(",")
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// The subnets of pods: the client's, or else the configured ones.
pub(crate) fn current(state_dir: &Path, configured: PodCidrs) -> PodCidrs {
    match fs::read_to_string(path(state_dir)) {
        Ok(file) => decide(configured, &file),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                let path = path(state_dir);
                tracing::warn!(path = %path.display(), %error, "failed to read the saved pod subnets");
            }
            configured
        }
    }
}

/// Stores the subnets that a client has set, atomically: a reader finds the old ones or the new ones.
pub(crate) fn save(
    state_dir: &Path,
    configured: &PodCidrs,
    of_client: &PodCidrs,
) -> io::Result<()> {
    let temporary = state_dir.join(format!("{FILE}.tmp"));
    fs::write(&temporary, format!("{}\n{}\n", text(configured), text(of_client)))?;
    fs::rename(&temporary, path(state_dir))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::set("", "\n10.244.1.0/24\n", "10.244.1.0/24")]
    #[case::both_families("", "\n10.244.1.0/24,fd00::/64\n", "10.244.1.0/24,fd00::/64")]
    #[case::beside_a_configuration(
        "10.77.0.0/16",
        "10.77.0.0/16\n10.244.1.0/24\n",
        "10.244.1.0/24"
    )]
    #[case::other_configuration("10.78.0.0/16", "10.77.0.0/16\n10.244.1.0/24\n", "10.78.0.0/16")]
    #[case::torn("10.77.0.0/16", "10.77.0.0/16\n10.2", "10.77.0.0/16")]
    #[case::nothing("", "", "")]
    fn changed_configuration_overrides_saved_pod_range(
        #[case] configured: &str,
        #[case] file: &str,
        #[case] expected: &str,
    ) {
        let configured = configured.parse().unwrap_or_default();
        assert_eq!(text(&decide(configured, file)), expected);
    }

    #[test]
    fn saved_pod_range_is_current() {
        let directory = tempfile::tempdir().unwrap();
        let none = PodCidrs::default();
        assert_eq!(current(directory.path(), none), none);
        let set = "10.244.1.0/24".parse().unwrap();
        save(directory.path(), &none, &set).unwrap();
        assert_eq!(current(directory.path(), none), set);
    }
}
