//! The container defaults of an image.

use image::Script;
use serde::{Deserialize, Serialize};

/// The container defaults of an image.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ImageDefaults {
    pub(crate) env: Vec<String>,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) cmd: Vec<String>,
    pub(crate) user: String,
    pub(crate) working_dir: String,
    pub(crate) stop_signal: Option<String>,
    /// Volumes: directories that stay writable, with the image's contents.
    #[serde(default)]
    pub(crate) volumes: Vec<String>,
    /// The behaviour script that containers act out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) script: Option<Script>,
}
