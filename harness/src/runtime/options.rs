//! Options for starting a runtime in a test.

use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::{Runtime, StartError, check_socket_path, io};
use crate::binary::{self, NoBinary};
use crate::client::Client;
use crate::fixture;

/// Options of a runtime.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub(super) binary: Option<PathBuf>,
    pub(super) durable: bool,
    pub(super) isolation: Option<String>,
    pub(super) user: Option<(u32, u32)>,
    pub(super) archives: Vec<PathBuf>,
    pub(super) config: Option<String>,
    pub(super) arguments: Vec<String>,
    pub(super) netns: Option<PathBuf>,
    pub(super) disk: Option<Disk>,
    pub(super) environment: Vec<(String, String)>,
    pub(super) descriptor: Option<PathBuf>,
}

impl Options {
    /// Lets pods outlive the daemon, so that it can be killed and restarted. By default they end with it.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Sets the `crib` command; by default [`binary::crib`] finds it.
    #[must_use]
    pub fn binary(mut self, path: &Path) -> Self {
        self.binary = Some(path.to_owned());
        self
    }

    /// `--isolation`: auto, root, rootless or process.
    #[must_use]
    pub fn isolation(mut self, isolation: &str) -> Self {
        self.isolation = Some(isolation.to_owned());
        self
    }

    /// Runs as another user and group; only root can.
    #[must_use]
    pub fn user(mut self, uid: u32, gid: u32) -> Self {
        self.user = Some((uid, gid));
        self
    }

    /// Adds an image archive or a directory of archives for PullImage.
    #[must_use]
    pub fn archive(mut self, path: &Path) -> Self {
        self.archives.push(path.to_owned());
        self
    }

    /// Sets the text of a configuration file, for `--config`.
    #[must_use]
    pub fn config(mut self, yaml: &str) -> Self {
        self.config = Some(yaml.to_owned());
        self
    }

    /// Adds an argument, for example `--registry-mirror=docker.io=http://127.0.0.1:5000`.
    #[must_use]
    pub fn argument(mut self, word: impl Into<String>) -> Self {
        self.arguments.push(word.into());
        self
    }

    /// `--behave`: adds an image whose containers follow a script, such as `registry.test/app:1=exit-1-after-2s`; docs/testing.md
    /// lists the words.
    #[must_use]
    pub fn behaviour(self, image_and_script: &str) -> Self {
        self.argument(format!("--behave={image_and_script}"))
    }

    /// Runs in another network namespace; only root can.
    #[must_use]
    pub fn netns(mut self, path: &Path) -> Self {
        self.netns = Some(path.to_owned());
        self
    }

    /// Lets the runtime inherit a file as descriptor 9.
    #[must_use]
    pub fn descriptor(mut self, path: &Path) -> Self {
        self.descriptor = Some(path.to_owned());
        self
    }

    /// Sets an environment variable of the runtime.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    pub(super) fn crib(&self) -> Result<PathBuf, NoBinary> {
        match &self.binary {
            Some(path) if path.is_file() => Ok(path.clone()),
            Some(path) => Err(NoBinary::Named(path.clone())),
            None => binary::crib(),
        }
    }

    /// Starts the runtime, and waits until it accepts calls.
    ///
    /// # Errors
    /// If it does not accept calls; the error contains all its output.
    pub async fn start(self) -> Result<Runtime, StartError> {
        // Before a directory is created, which would be left.
        self.crib()?;
        let directory = tempfile::Builder::new()
            .prefix("crib-t")
            .tempdir()
            .map_err(io("make a directory for the test"))?;
        check_socket_path(&directory.path().join("r.sock"))?;
        let root = directory.keep();
        let mut runtime = Runtime {
            client: Client::new(&root.join("r.sock")),
            root,
            daemon: None,
            faulty: None,
            options: self,
        };
        runtime.open_to_user()?;
        runtime.launch().await?;
        match runtime.client.pull(&fixture::image()).await {
            Ok(_) => Ok(runtime),
            Err(source) => Err(StartError::NoImage(Box::new(source))),
        }
    }
}
