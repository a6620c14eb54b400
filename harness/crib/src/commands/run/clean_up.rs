//! Removes what a killed runtime has left: with a runtime that finds it in the state directory.

use super::args::RunArgs;
use super::daemon::{Daemon, Launch};
use super::root::{self, Root};
use super::{dead_runs, orphans};
use crate::report::{chain, say};

/// Removes what runs have left that were killed together with their runtimes.
pub(crate) async fn remove_dead_runs(args: &RunArgs) {
    for (path, _lock) in dead_runs::dead_runs(&std::env::temp_dir()) {
        let root = Root::of_earlier(path);
        let launch = Launch {
            state_dir: root.state(),
            root,
            isolation: args.isolation.to_string(),
            image_archives: Vec::new(),
            keep: false,
            live_dir: args.live_dir.clone(),
        };
        let cleared = match launch.state_dir.exists() {
            true => clear(&launch).await,
            false => Ok(()),
        };
        let path = launch.root.path();
        if let Err(problem) =
            cleared.and_then(|()| root::remove(path).map_err(|error| chain(&error)))
        {
            say(&format!(
                "failed to remove {}, which a killed run left: {problem}",
                path.display()
            ));
        }
    }
}

/// A runtime that was killed may leave network links and control groups. The next one with its state finds and removes them.
pub(crate) async fn clear(launch: &Launch) -> Result<(), String> {
    let log = launch
        .root
        .log_file("runtime.log")
        .map_err(|error| chain(&error))?;
    let mut daemon = Daemon::spawn(launch, log).map_err(|error| chain(&error))?;
    daemon.ready().await.map_err(|error| chain(&error))?;
    daemon
        .stop(std::future::pending())
        .await
        .map_err(|error| chain(&error))?;
    orphans::end().await;
    Ok(())
}
