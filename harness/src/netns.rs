//! A network namespace of a test's own: what is made in it goes with it, and the box's own network is left alone.

use std::io::{self, BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::process::Process;
use crate::witness::Witness;

/// A namespace, with its loopback interface up, which lives as long as this does.
#[derive(Debug)]
pub struct Netns {
    process: Process,
}

impl Netns {
    /// Makes one, which only root can do.
    ///
    /// # Errors
    /// When the kernel, or the box for want of util-linux and iproute2, does not allow it.
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

    fn witness(&self) -> Witness {
        Witness {
            pid: self.process.pid(),
        }
    }

    /// The file that is the namespace.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.witness().path("ns/net")
    }

    /// What runs a program in it.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.path().display()))
            .arg(program)
            .stdin(Stdio::null());
        command
    }

    /// Runs a program in it, and returns what it writes.
    ///
    /// # Errors
    /// When it fails, with what it complains of.
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

    /// Connects it with another one by a pair of interfaces, `wire` in each; the first gets `own`, the other one `other`.
    ///
    /// # Errors
    /// See [`Self::run`].
    pub fn connect(&self, own: &str, to: &Self, other: &str) -> io::Result<()> {
        let pid = to.process.pid().to_string();
        self.run(
            "ip",
            &[
                "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", &pid,
            ],
        )?;
        for (namespace, address) in [(self, own), (to, other)] {
            let add = ["address", "add", address, "dev", "wire", "nodad"];
            namespace.run("ip", &add)?;
            namespace.run("ip", &["link", "set", "wire", "up"])?;
        }
        Ok(())
    }
}
