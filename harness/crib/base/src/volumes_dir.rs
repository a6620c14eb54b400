//! Where the volumes of claims are kept.

use std::path::PathBuf;

use clap::Args;

use crate::dirs::default_dir;

/// Where the volumes of claims are kept.
#[derive(Clone, Debug, Args)]
pub struct VolumesDirArgs {
    /// Directory for the volumes of claims, which are kept
    /// [default: /var/lib/crib-volumes for root, $XDG_DATA_HOME/crib-volumes for others]
    #[arg(long, value_name = "DIR", env = "CRIB_VOLUMES_DIR", hide_env_values = true)]
    volumes_dir: Option<PathBuf>,
}

impl VolumesDirArgs {
    /// The directory, absolute. To be called before the process enters a user namespace, in which the user has another id.
    pub fn directory(&self) -> Result<PathBuf, String> {
        let directory = match &self.volumes_dir {
            Some(directory) => directory.clone(),
            None => default_dir("crib-volumes").map_err(|problem| {
                format!("{problem}: say where to keep the volumes of claims with --volumes-dir")
            })?,
        };
        Ok(std::path::absolute(&directory).unwrap_or(directory))
    }
}
