//! Runs `crib` in its own temporary directory, with a deadline, and checks from outside what is left.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

pub(crate) use harness::need::Need;
pub(crate) use harness::{Runtime, fixture};
pub(crate) use nix::sys::signal::{Signal, kill};
pub(crate) use nix::unistd::Pid;
pub(crate) use rstest::rstest;
pub(crate) use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

/// The time limit of any single wait. Nothing here takes longer than a few seconds unless it hangs.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// The ordinary user for tests that run as root: `nobody`.
const ORDINARY_USER: u32 = 65534;

/// A directory in which commands run, with all of their temporary files. Dropping it fails the test if anything is left.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    checked: bool,
}

/// The outputs of a command, and its exit code.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The needs of a runtime with this isolation.
pub(crate) fn needs_of(isolation: &str) -> &'static [Need] {
    if isolation == "root" { &[Need::Root] } else { &[Need::UserNamespaces] }
}

impl Place {
    pub(crate) fn new() -> Self {
        // The name is short because paths of sockets below it are limited.
        let dir = tempfile::Builder::new().prefix("t").tempdir().unwrap();
        std::fs::create_dir(dir.path().join("tmp")).unwrap();
        Self { dir, checked: true }
    }

    /// A place in which something may be left, such as the files of a killed runtime.
    pub(crate) fn unchecked() -> Self {
        let mut place = Self::new();
        place.checked = false;
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file and returns its path as an argument.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crib"));
        command
            .args(args)
            .env("TMPDIR", self.path("tmp"))
            .env("CRIB_VOLUMES_DIR", self.path("volumes"))
            .env("XDG_DATA_HOME", self.path("data"))
            .env("XDG_RUNTIME_DIR", self.path("xdg"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a command to its end.
    pub(crate) async fn crib(&self, args: &[&str]) -> Ended {
        self.end(self.command(args)).await
    }

    /// Runs a prepared command to its end.
    pub(crate) async fn end(&self, command: Command) -> Ended {
        self.end_within(WAIT_LIMIT, command).await
    }

    /// Runs a command to its end, with another time limit.
    pub(crate) async fn end_within(&self, limit: Duration, mut command: Command) -> Ended {
        let output = tokio::time::timeout(limit, command.output()).await;
        ended(
            output.unwrap_or_else(|_| panic!("{command:?} did not end within {limit:?}")).unwrap(),
        )
    }

    /// Runs a command as an ordinary user. If the test runs as root, that user becomes the owner of the place.
    pub(crate) fn as_ordinary_user(&self, command: Command) -> Command {
        match nix::unistd::geteuid().is_root() {
            true => self.as_user(ORDINARY_USER, command),
            false => command,
        }
    }

    /// Runs a command as this user, who becomes the owner of the place. Only root can do this.
    pub(crate) fn as_user(&self, id: u32, mut command: Command) -> Command {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let entries = entries.map(|entry| entry.unwrap().path());
        for path in entries.chain([self.path("")]) {
            std::os::unix::fs::chown(path, Some(id), Some(id)).unwrap();
        }
        command.uid(id).gid(id);
        command
    }

    /// Runs a manifest with this isolation; rootless means as an ordinary user.
    pub(crate) async fn run_isolated(
        &self,
        isolation: &str,
        more: &[&str],
        manifest: &str,
    ) -> Ended {
        let args = ["run", "--isolation", isolation];
        let mut command = self.command(&[&args, more, &[manifest]].concat());
        if isolation == "rootless" {
            command = self.as_ordinary_user(command);
        }
        self.end(command).await
    }

    /// Runs a command with this standard input.
    pub(crate) async fn crib_with_stdin(&self, args: &[&str], stdin: &str) -> Ended {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(stdin.as_bytes()).await.unwrap();
        drop(pipe);
        let output = tokio::time::timeout(WAIT_LIMIT, child.wait_with_output()).await;
        ended(
            output
                .unwrap_or_else(|_| panic!("crib {args:?} did not end within {WAIT_LIMIT:?}"))
                .unwrap(),
        )
    }

    /// Starts a command whose lines can be read one by one.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args))
    }

    /// Starts a runtime with the socket `s` and the state directory `state`, and waits until it accepts calls. Its pods end with
    /// it.
    pub(crate) async fn runtime(&self) -> (Running, String) {
        self.runtime_with(&[]).await
    }

    /// Like [`Self::runtime`], with further arguments.
    pub(crate) async fn runtime_with(&self, more: &[&str]) -> (Running, String) {
        let (socket, state) = (self.path("s"), self.path("state"));
        let (socket, state) = (socket.to_str().unwrap(), state.to_str().unwrap());
        let args = ["runtime", "--listen", socket, "--state-dir", state, "--ephemeral"];
        let mut runtime = self.start(&[&args[..], more].concat());
        runtime.line_with("listening").await;
        (runtime, format!("unix://{socket}"))
    }

    /// `crib agent` with the root directory `agent`, and the manifests of this directory, which is created if it does not exist.
    pub(crate) fn agent(&self, endpoint: &str, manifests: &str, more: &[&str]) -> Command {
        let manifests = self.path(manifests);
        std::fs::create_dir_all(&manifests).unwrap();
        let mut command = self.command(&["agent", "--runtime-endpoint", endpoint]);
        command.arg("--manifests").arg(manifests).arg("--root-dir").arg(self.path("agent"));
        command.args(more);
        command
    }

    /// What the commands left: files, mounts, and processes that refer to this place.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for entry in std::fs::read_dir(self.path("tmp")).unwrap() {
            left.push(format!("file {}", entry.unwrap().path().display()));
        }
        let root = self.dir.path().to_str().unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        left.extend(
            mounts.lines().filter(|line| line.contains(root)).map(|line| format!("mount {line}")),
        );
        left.extend(processes(self.dir.path()));
        left
    }

    /// Asserts that nothing is left.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.left(), Vec::<String>::new());
    }

    /// Waits until only the directory of a killed run is left.
    pub(crate) async fn wait_for_only_a_file(&self) {
        let only_files = || {
            let mut left = self.left();
            left.retain(|line| !line.starts_with("file "));
            left
        };
        eventually("its processes have ended", only_files).await;
        assert_eq!(self.left().len(), 1, "its directory: {:#?}", self.left());
    }

    /// Waits until nothing is left, for processes that end after a killed command.
    pub(crate) async fn wait_until_clean(&self) {
        eventually("nothing is left", || self.left()).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.checked && !std::thread::panicking() {
            self.assert_clean();
        }
    }
}

impl Ended {
    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Asserts that standard output contains these words.
    #[track_caller]
    pub(crate) fn out_has(&self, words: &str) {
        assert!(self.out.contains(words), "{words:?} is not in:\n{}", self.out);
    }

    /// Asserts that standard error contains these words.
    #[track_caller]
    pub(crate) fn err_has(&self, words: &str) {
        assert!(self.err.contains(words), "{words:?} is not in:\n{}", self.err);
    }

    /// Asserts that standard error begins with these words.
    #[track_caller]
    pub(crate) fn err_begins(&self, words: &str) {
        assert!(self.err.starts_with(words), "{words:?} does not begin:\n{}", self.err);
    }
}

/// Waits until `missing` returns nothing; fails with its last result.
pub(crate) async fn eventually(what: &str, missing: impl Fn() -> Vec<String>) {
    harness::eventually(WAIT_LIMIT, what, async || {
        let now = missing();
        if now.is_empty() { Ok(()) } else { Err(now) }
    })
    .await;
}

fn ended(output: Output) -> Ended {
    Ended {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Processes whose command line or environment contains `root`, except the test itself.
fn processes(root: &Path) -> Vec<String> {
    let root = root.to_str().unwrap().as_bytes();
    let names = |file: PathBuf| {
        std::fs::read(file)
            .is_ok_and(|bytes| bytes.windows(root.len()).any(|window| window == root))
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let path = entry.path();
        if names(path.join("cmdline")) || names(path.join("environ")) {
            let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&line).replace('\0', " ");
            found.push(format!("process {} {words}", entry.file_name().to_string_lossy()));
        }
    }
    found
}

/// A running command.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Set once lines of standard error have been read.
    err_lines: Option<Lines<BufReader<ChildStderr>>>,
    seen: Vec<String>,
}

impl Running {
    /// Starts a command whose standard output and error are pipes.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, err_lines: None, seen: Vec::new() }
    }

    /// Reads lines until one contains `text`.
    pub(crate) async fn line_with(&mut self, text: &str) -> String {
        let found = tokio::time::timeout(WAIT_LIMIT, async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                self.seen.push(line.clone());
                if line.contains(text) {
                    return Some(line);
                }
            }
            None
        });
        match found.await {
            Ok(Some(line)) => line,
            Ok(None) => {
                let seen = self.seen.clone();
                let err = self.err().await;
                panic!("the output ended without {text:?}: {seen:#?}\nstandard error: {err}");
            }
            Err(_) => panic!("no line with {text:?} within {WAIT_LIMIT:?}: {:#?}", self.seen),
        }
    }

    /// Reads lines of standard error until one contains `text`. [`Running::end`] then does not return these lines.
    pub(crate) async fn err_line_with(&mut self, text: &str) -> String {
        let err = self.child.stderr.take().map(|err| BufReader::new(err).lines());
        let lines = self.err_lines.get_or_insert_with(|| err.unwrap());
        let mut seen = Vec::new();
        let found = tokio::time::timeout(WAIT_LIMIT, async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if line.contains(text) {
                    return Some(line);
                }
                seen.push(line);
            }
            None
        });
        let found = found.await.unwrap_or_default();
        found.unwrap_or_else(|| panic!("no line with {text:?} in the standard error: {seen:#?}"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// Sends SIGINT, and waits for the end.
    pub(crate) async fn interrupt(self) -> Ended {
        self.signal(Signal::SIGINT);
        self.end().await
    }

    /// Stops a server, so that it removes what it created: a dropped one is killed.
    pub(crate) async fn stop(self) {
        self.signal(Signal::SIGTERM);
        self.end().await.exits(0);
    }

    /// Closes the reading end of its standard output.
    pub(crate) fn stop_reading(self) -> Child {
        self.child
    }

    async fn err(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut err) = self.child.stderr.take() {
            tokio::io::AsyncReadExt::read_to_string(&mut err, &mut text).await.unwrap();
        }
        text
    }

    /// Waits for its end.
    pub(crate) async fn end(mut self) -> Ended {
        let ended = tokio::time::timeout(WAIT_LIMIT, async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                self.seen.push(line);
            }
            let err = self.err().await;
            (self.child.wait().await.unwrap().code(), err)
        });
        match ended.await {
            Ok((code, err)) => Ended { code, out: self.seen.join("\n"), err },
            Err(_) => panic!("it did not end within {WAIT_LIMIT:?}: {:#?}", self.seen),
        }
    }
}
