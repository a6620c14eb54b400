//! A runtime that has not been started yet: with or without faults or scripted images, and possibly in another environment than the
//! test's.

use std::future::IntoFuture;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;

use proxy::{Proxy, RuleSet};
use tempfile::TempDir;

use super::{Runtime, StartError, io};

/// A runtime that starts when this is awaited.
#[derive(Debug, Clone, Default)]
pub struct Starting {
    faults: Vec<String>,
    behaviours: Vec<String>,
}

/// The proxy between a runtime with faults and its clients.
#[derive(Debug)]
pub(super) struct Faulty {
    pub(super) proxy: Proxy,
    /// Dropped after the proxy, whose socket is in this directory.
    _directory: TempDir,
}

impl Starting {
    /// Injects faults into the responses to its clients: rules of [`proxy::Fault`].
    #[must_use]
    pub fn with_faults<Rule: Into<String>>(
        mut self,
        faults: impl IntoIterator<Item = Rule>,
    ) -> Self {
        self.faults.extend(faults.into_iter().map(Into::into));
        self
    }

    /// Adds images whose containers follow a script: `registry.test/app:1=exit-1-after-2s`; docs/testing.md lists the words.
    #[must_use]
    pub fn with_behaviours<Script: Into<String>>(
        mut self,
        behaviours: impl IntoIterator<Item = Script>,
    ) -> Self {
        self.behaviours.extend(behaviours.into_iter().map(Into::into));
        self
    }
}

impl IntoFuture for Starting {
    type Output = Result<Runtime, StartError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            // Before anything is started.
            let rules: RuleSet = self.faults.join("\n").parse()?;
            let scripts = self.behaviours.iter();
            let options = scripts.fold(Runtime::with(), |options, one| options.behaviour(one));
            let runtime = options.start().await?;
            match rules.faults.is_empty() {
                true => Ok(runtime),
                false => runtime.behind_proxy(rules),
            }
        })
    }
}

impl Faulty {
    pub(super) fn start(runtime: &Path, rules: RuleSet) -> Result<Self, StartError> {
        let directory = tempfile::Builder::new()
            .prefix("crib-p")
            .tempdir()
            .map_err(io("make a directory for the proxy"))?;
        let listen = directory.path().join("p.sock");
        Ok(Self {
            proxy: Proxy::with_rules(&listen, runtime, rules).map_err(io("start the proxy"))?,
            _directory: directory,
        })
    }
}

/// Appends `program` to the arguments of `command`.
pub(super) fn onto(mut command: Command, program: PathBuf) -> Command {
    command.arg(program);
    command
}

/// Runs `program` with a file as descriptor 9.
pub(super) fn with_descriptor(file: &Path, program: PathBuf) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"exec 9<"$0" && exec "$@""#]).arg(file);
    onto(shell, program)
}

/// Runs `program` in the network namespace at `path`, which only root can enter.
pub(super) fn in_network(path: &Path, program: PathBuf) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", path.display()));
    onto(command, program)
}
