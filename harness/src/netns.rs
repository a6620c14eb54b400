//! A network namespace for one test. The kernel removes it with everything in it; the host's network is not changed.

use std::io::{self, BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::process::Process;
use crate::procfs::ObservedProcess;

/// A network namespace with its loopback interface up. It exists as long as this value.
#[derive(Debug)]
pub struct Netns {
    process: Process,
}

impl Netns {
    /// Creates a network namespace, which only root can.
    ///
    /// # Errors
    /// If the kernel does not allow it, or util-linux or iproute2 is missing.
    pub fn make() -> io::Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo made; exec sleep infinity"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command)?;
        let mut line = String::new();
        if let Some(stdout) = process.take_stdout() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line != "made\n" {
            return Err(io::Error::other("unshare made no network namespace"));
        }
        let made = Self { process };
        made.run("ip", &["link", "set", "lo", "up"])?;
        Ok(made)
    }

    fn observed_process(&self) -> ObservedProcess {
        ObservedProcess { pid: self.process.pid() }
    }

    /// The namespace's file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.observed_process().path("ns/net")
    }

    /// A command that runs a program in the namespace.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg(program).stdin(Stdio::null());
        command
    }

    /// Runs a program in the namespace, and returns its standard output.
    ///
    /// # Errors
    /// If the program fails, with its standard error.
    pub fn run(&self, program: &str, arguments: &[&str]) -> io::Result<String> {
        let output: Output = self.command(program).args(arguments).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(io::Error::other(format!(
            "{program} {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        )))
    }

    /// Connects two namespaces with a veth pair whose ends are named `wire`. The first end gets the address `own`, the second one
    /// `other`.
    ///
    /// # Errors
    /// See [`Self::run`].
    pub fn connect(&self, own: &str, to: &Self, other: &str) -> io::Result<()> {
        let pid = to.process.pid().to_string();
        self.run(
            "ip",
            &["link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", &pid],
        )?;
        for (namespace, address) in [(self, own), (to, other)] {
            let add = ["address", "add", address, "dev", "wire", "nodad"];
            namespace.run("ip", &add)?;
            namespace.run("ip", &["link", "set", "wire", "up"])?;
        }
        Ok(())
    }
}
