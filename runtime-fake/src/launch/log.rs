//! Decides the path of a container's log: pure. ◆

use std::{
    num::NonZeroU64,
    path::{Component, Path},
};

use keeper::contract::plan::LogPlan;

use crate::launch::{
    invalid::{Invalid, invalid},
    paths,
};

/// Joins `path` to `directory`, which it must not leave.
pub(super) fn log(
    directory: &str,
    path: &str,
    max: Option<NonZeroU64>,
) -> Result<Option<LogPlan>, Invalid> {
    paths::path("log_path", path)?;
    if directory.is_empty() || path.is_empty() {
        return Ok(None);
    }
    // The keeper opens the file and has another working directory than the daemon.
    if !Path::new(directory).is_absolute() {
        return invalid(format!(
            "log_directory {directory:?} of the sandbox is not an absolute path"
        ));
    }
    if Path::new(path)
        .components()
        .any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
    {
        return invalid(format!("log_path {path:?} leads out of the sandbox's log directory"));
    }
    paths::path("log_path (below log_directory)", &format!("{directory}/{path}"))?;
    Ok(Some(LogPlan { directory: directory.into(), path: path.into(), max }))
}
