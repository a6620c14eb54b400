//! A FIFO that the processes of a container hold open. When the check reads its end of file, all of them have exited.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cri::v1;
use rustix::fs::{CWD, Mode, mkfifoat};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::{OpenOptions, Receiver, Sender};

use crate::context::Context;
use crate::outcome::{Outcome, Verdict, failed};

/// The mount point of the FIFO's directory in the container.
pub(super) const DIRECTORY: &str = "/mnt";
/// The start of a shell script whose process and descendants hold the FIFO open.
pub(super) const OPEN_FIFO: &str = "exec 9>/mnt/held; echo up >&9; ";

/// The check's end of the FIFO.
#[derive(Debug)]
pub(super) struct LifetimeFifo {
    /// The directory that is mounted at [`DIRECTORY`].
    pub(super) directory: PathBuf,
    reader: Receiver,
    /// Kept open until a process of the container has opened the FIFO; otherwise the reader would see an end of file too early.
    writer: Option<Sender>,
}

impl LifetimeFifo {
    /// Creates a FIFO in its own directory.
    pub(super) fn new(x: &Context) -> Verdict<Self> {
        x.needs_namespaces()?;
        let directory = x.shared.directory.join(x.unique("held"));
        Self::make(&directory).map_err(|error| Outcome::Skipped(format!("no FIFO: {error}")))
    }

    fn make(directory: &Path) -> io::Result<Self> {
        let path = directory.join("held");
        std::fs::create_dir_all(directory)?;
        mkfifoat(CWD, &path, Mode::from_raw_mode(0o600))?;
        // A container may run as another user.
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666))?;
        Ok(Self {
            directory: directory.to_owned(),
            reader: OpenOptions::new().open_receiver(&path)?,
            writer: Some(OpenOptions::new().open_sender(&path)?),
        })
    }

    /// Mounts the FIFO into a container.
    pub(super) fn mount(&self, config: &mut v1::ContainerConfig) {
        config.mounts.push(v1::Mount {
            host_path: self.directory.display().to_string(),
            container_path: DIRECTORY.to_owned(),
            selinux_relabel: true,
            ..Default::default()
        });
    }

    /// Waits until this many processes have run [`OPEN_FIFO`].
    pub(super) async fn wait_opened(&mut self, x: &Context, processes: usize) -> Verdict {
        let mut text = Vec::new();
        let reader = &mut self.reader;
        let reading = async {
            while text.iter().filter(|byte| **byte == b'\n').count() < processes {
                if reader.read_buf(&mut text).await? == 0 {
                    break;
                }
            }
            Ok::<(), io::Error>(())
        };
        match tokio::time::timeout(x.shared.wait_limit, reading).await {
            Ok(Ok(())) => {
                self.writer = None;
                Ok(())
            }
            Ok(Err(error)) => failed("the FIFO of the container", "bytes", error.to_string()),
            Err(_) => failed(
                "the processes of the container",
                format!("{processes} that have started"),
                String::from_utf8_lossy(&text),
            ),
        }
    }

    /// Whether a process currently holds the FIFO.
    pub(super) fn is_open(&mut self) -> bool {
        let mut rest = [0; 4096];
        loop {
            match self.reader.try_read(&mut rest) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Waits until no process holds the FIFO; `after` names the action that should have ended the processes.
    pub(super) async fn wait_closed(&mut self, x: &Context, after: &str) -> Verdict {
        let mut rest = Vec::new();
        let reading = self.reader.read_to_end(&mut rest);
        match tokio::time::timeout(x.shared.wait_limit, reading).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => failed("the FIFO of the container", "its end", error.to_string()),
            Err(_) => failed(
                format!("the container's processes after {after}"),
                "to have ended",
                "a process is still running",
            ),
        }
    }
}
