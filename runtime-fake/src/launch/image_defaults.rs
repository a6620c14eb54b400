//! What an image says about its containers.

use serde::{Deserialize, Serialize};

/// What an image says about the containers made from it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ImageDefaults {
    pub(crate) env: Vec<String>,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) cmd: Vec<String>,
    pub(crate) user: String,
    pub(crate) working_dir: String,
    pub(crate) stop_signal: Option<String>,
    /// Directories that stay writable, with what the image has in them.
    #[serde(default)]
    pub(crate) volumes: Vec<String>,
}
