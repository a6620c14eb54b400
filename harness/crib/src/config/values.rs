//! ◆ Values that several sections have.

use std::path::PathBuf;
use std::time::Duration;

use crib_base::args;
use serde::Deserialize;

/// How long something may take, as on the command line.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Timeout(pub(super) Duration);

impl TryFrom<String> for Timeout {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        args::duration(&text).map(Self)
    }
}

/// Paths are absolute: the author of the file does not know the daemon's working directory.
#[derive(Debug, Deserialize)]
#[serde(try_from = "PathBuf")]
pub(super) struct AbsolutePath(pub(super) PathBuf);

impl TryFrom<PathBuf> for AbsolutePath {
    type Error = String;

    fn try_from(path: PathBuf) -> Result<Self, String> {
        if path.is_absolute() {
            Ok(Self(path))
        } else {
            Err("the path must be absolute".to_owned())
        }
    }
}
