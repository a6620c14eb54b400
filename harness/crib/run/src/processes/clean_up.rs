//! Cleans up after a killed runtime: starts a new runtime on its state directory, which removes the remaining resources.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crib_base::dirs::temp_dir;
use crib_base::live;
use crib_base::report::{chain, print_stderr};
use crib_base::volumes_in_memory;
use runtime_fake::IsolationRequest;

use crate::processes::daemon::{Daemon, Launch};
use crate::processes::dead_runs;
use crate::processes::dead_runs::RunLock;
use crate::processes::orphans;
use crate::processes::root::{self, Root};

/// Cleans up after runs that were killed together with their runtimes. Such a run may have used a stronger isolation than this run.
pub(crate) async fn remove_dead_runs(live_dir: &Path) {
    let isolation = IsolationRequest::Auto;
    let mut dead = dead_runs::dead_runs(&temp_dir());
    let own = dead.len();
    // Runs with a different TMPDIR are found by their secrets in memory. The runs found above are locked already.
    dead.extend(dead_runs::dead_among(runs_with_secrets_in_memory()));
    for (number, (path, lock)) in dead.into_iter().enumerate() {
        if let Err(problem) = remove_dead_run(path, lock, isolation, live_dir).await {
            // The next run with that TMPDIR reports it.
            if number < own { print_stderr(&problem) } else { tracing::warn!(%problem) }
        }
    }
    // A killed run may have left secrets in memory although its directory was removed.
    volumes_in_memory::remove_orphans();
    // Also removes the entries of the runtimes; the next reader retries a failed removal.
    let _ = live::endpoints(live_dir);
}

/// The directories of this user's runs, including running ones, whose secrets are in a linked directory in memory.
fn runs_with_secrets_in_memory() -> Vec<PathBuf> {
    let runs = volumes_in_memory::roots().into_iter().filter_map(|agent| {
        let run = agent.parent()?;
        // The root directory of `crib agent` has a different path, and its pods outlive it.
        let is_run = Root::of_earlier(run.to_owned()).agent() == agent;
        (is_run && has_own_ancestors(run)).then(|| run.to_owned())
    });
    runs.collect()
}

/// Whether only this user and root can replace a directory above `run`; another user could redirect the clean-up. In a user
/// namespace, all users outside it have the same id, so only the modes are checked.
fn has_own_ancestors(run: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let root = std::fs::metadata("/").map(|data| data.uid()).unwrap_or_default();
    run.ancestors().skip(1).all(|above| {
        std::fs::symlink_metadata(above).is_ok_and(|data| {
            let is_sticky = data.mode() & 0o1000 != 0;
            let is_private = data.mode() & 0o022 == 0;
            data.is_dir() && [own, root].contains(&data.uid()) && (is_private || is_sticky)
        })
    })
}

/// Cleans up after a dead run. The error is a message.
pub async fn remove_dead_run(
    path: PathBuf,
    _lock: RunLock,
    isolation: IsolationRequest,
    live_dir: &Path,
) -> Result<(), String> {
    let root = Root::of_earlier(path);
    let launch = Launch {
        state_dir: root.state(),
        root,
        isolation: isolation.to_string(),
        image_archives: Vec::new(),
        keep: false,
        live_dir: live_dir.to_owned(),
    };
    let cleared = match launch.state_dir.exists() {
        true => clear(&launch).await,
        false => Ok(()),
    };
    let path = launch.root.path();
    let removed = cleared.and_then(|()| root::remove(path).map_err(|error| chain(&error)));
    removed.map_err(|problem| {
        let path = path.display();
        format!("failed to remove {path}, which a killed run left: {problem}")
    })
}

/// A killed runtime may leave network links and cgroups. The next runtime with the same state removes them.
pub(crate) async fn clear(launch: &Launch) -> Result<(), String> {
    let log = launch.root.log_file("runtime.log").map_err(|error| chain(&error))?;
    let mut daemon = Daemon::spawn(launch, log).map_err(|error| chain(&error))?;
    daemon.ready().await.map_err(|error| chain(&error))?;
    daemon.stop(std::future::pending()).await.map_err(|error| chain(&error))?;
    orphans::end().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::private(0o700, true)]
    #[case::sticky(0o1777, true)]
    #[case::of_group(0o770, false)]
    #[case::of_everybody(0o777, false)]
    fn directory_that_others_can_exchange_is_not_cleaned_up(
        #[case] mode: u32,
        #[case] expected: bool,
    ) {
        let place = tempfile::tempdir_in("/tmp").unwrap();
        let above = place.path().join("above");
        std::fs::create_dir(&above).unwrap();
        std::fs::set_permissions(&above, Permissions::from_mode(mode)).unwrap();
        assert_eq!(has_own_ancestors(&above.join("run")), expected);
        let link = place.path().join("link");
        symlink(&above, &link).unwrap();
        assert!(!has_own_ancestors(&link.join("run")), "through a link");
    }
}
