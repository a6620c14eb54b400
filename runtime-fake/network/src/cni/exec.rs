//! Runs one CNI plugin with its environment variables and the configuration on standard input.
//!
//! Standard input and output are memory files instead of pipes, so that the runtime never waits for a plugin that
//! does not read its input, or for a background process that a plugin leaves behind.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::{
    fs::{MemfdFlags, memfd_create},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};
use serde_json::Value;
use std::os::fd::AsFd as _;

use super::answer::error_message;

/// Limit on a plugin's output.
const LONGEST: u64 = 1 << 20;

/// Number of further attempts to start a plugin whose file is being written, and the delay before each (libcni's, in
/// pkg/invoke/raw_exec.go).
const BUSY_RETRIES: usize = 5;
const BUSY_DELAY: Duration = Duration::from_secs(1);

/// One invocation of a plugin.
#[derive(Debug)]
pub(super) struct PluginCall<'a> {
    /// ADD, DEL, CHECK, STATUS or GC.
    pub(super) command: &'static str,
    pub(super) plugin: &'a str,
    pub(super) network: &'a str,
    /// The directories of plugins.
    pub(super) bin_dirs: &'a [PathBuf],
    /// Additional environment variables.
    pub(super) variables: Vec<(&'static str, String)>,
    pub(super) input: &'a Value,
    pub(super) timeout: Duration,
}

/// Why an invocation of a plugin failed.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// There is no such executable.
    #[error(
        "there is no CNI plugin {plugin:?} in {places}: install it, or name its directory with --cni-bin-dir"
    )]
    Missing {
        /// The plugin's name.
        plugin: String,
        /// The directories that were searched.
        places: String,
    },
    /// It could not be run.
    #[error("failed to run the CNI plugin {plugin}")]
    Run {
        /// The plugin's name.
        plugin: String,
        /// The cause.
        source: io::Error,
    },
    /// It did not end within its timeout.
    #[error(
        "the CNI plugin {plugin} did not end its {command} of the network {network} within {seconds} s, and was killed"
    )]
    Timeout {
        /// The plugin's name.
        plugin: String,
        /// ADD, DEL, CHECK, STATUS or GC.
        command: &'static str,
        /// The network.
        network: String,
        /// The timeout in seconds.
        seconds: u64,
    },
    /// The plugin reported an error.
    #[error("the CNI plugin {plugin} failed to {command} the network {network}: {error_message}")]
    Failed {
        /// The plugin's name.
        plugin: String,
        /// ADD, DEL, CHECK, STATUS or GC.
        command: &'static str,
        /// The network.
        network: String,
        /// Its error message.
        error_message: String,
        /// The specification's error code; 0 if it gave none.
        code: u64,
    },
    /// Its output is not valid JSON, or not a result as the specification defines it.
    #[error(
        "the CNI plugin {plugin} returned an invalid result for {command} of the network {network}: {problem}"
    )]
    InvalidAnswer {
        /// The plugin's name.
        plugin: String,
        /// ADD, DEL, CHECK, STATUS or GC.
        command: &'static str,
        /// The network.
        network: String,
        /// The reason.
        problem: String,
    },
}

/// Starts the program. Calls `wait` and tries again while its file is open for writing, as during an update (ETXTBSY).
fn spawn(command: &mut Command, mut wait: impl FnMut()) -> io::Result<Child> {
    for _ in 0..BUSY_RETRIES {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => wait(),
            outcome => return outcome,
        }
    }
    command.spawn()
}

/// Runs the plugin and waits for it to end. Returns null if it wrote no output.
pub(super) fn run(ask: &PluginCall<'_>) -> Result<Value, PluginError> {
    let program = find(ask)?;
    let failed = |source| PluginError::Run { plugin: ask.plugin.to_owned(), source };
    let mut input = memory().map_err(failed)?;
    serde_json::to_writer(&mut input, ask.input).map_err(|error| failed(error.into()))?;
    input.flush().and_then(|()| input.rewind()).map_err(failed)?;
    let (stdout, stderr) = (memory().map_err(failed)?, memory().map_err(failed)?);
    let paths = std::env::join_paths(ask.bin_dirs).unwrap_or_default();
    let mut command = Command::new(program);
    command
        .env("CNI_COMMAND", ask.command)
        .env("CNI_PATH", paths)
        .envs(ask.variables.iter().map(|(name, value)| (*name, value)))
        .stdin(input)
        .stdout(stdout.try_clone().map_err(failed)?)
        .stderr(stderr.try_clone().map_err(failed)?)
        .current_dir("/")
        // A process group of its own, so that killing it kills its children too.
        .process_group(0);
    let mut child = spawn(&mut command, || thread::sleep(BUSY_DELAY)).map_err(failed)?;
    let pid = Pid::from_child(&child);
    let in_time = ended(pid, ask.timeout);
    if !matches!(in_time, Ok(true)) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let status = child.wait().map_err(failed)?;
    if !in_time.map_err(failed)? {
        return Err(PluginError::Timeout {
            plugin: ask.plugin.to_owned(),
            command: ask.command,
            network: ask.network.to_owned(),
            seconds: ask.timeout.as_secs(),
        });
    }
    let (stdout, stderr) = (read(stdout).map_err(failed)?, read(stderr).map_err(failed)?);
    if !status.success() {
        let error: Option<Value> = serde_json::from_slice(&stdout).ok();
        return Err(PluginError::Failed {
            plugin: ask.plugin.to_owned(),
            command: ask.command,
            network: ask.network.to_owned(),
            error_message: error_message(&stdout, &stderr),
            code: error.and_then(|error| error.get("code")?.as_u64()).unwrap_or_default(),
        });
    }
    if stdout.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&stdout).map_err(|error| PluginError::InvalidAnswer {
        plugin: ask.plugin.to_owned(),
        command: ask.command,
        network: ask.network.to_owned(),
        problem: error.to_string(),
    })
}

fn find(ask: &PluginCall<'_>) -> Result<PathBuf, PluginError> {
    let mut candidates = ask.bin_dirs.iter().map(|dir| dir.join(ask.plugin));
    candidates.find(|path| path.is_file()).ok_or_else(|| {
        let places: Vec<String> =
            ask.bin_dirs.iter().map(|dir| dir.display().to_string()).collect();
        PluginError::Missing { plugin: ask.plugin.to_owned(), places: places.join(", ") }
    })
}

/// Whether the process ended within the timeout.
fn ended(pid: Pid, timeout: Duration) -> io::Result<bool> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn memory() -> io::Result<File> {
    Ok(memfd_create("cni", MemfdFlags::CLOEXEC)?.into())
}

fn read(mut file: File) -> io::Result<Vec<u8>> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    fn plugin(script: &str, timeout: Duration) -> (Result<Value, PluginError>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let result = run(&PluginCall {
            command: "ADD",
            plugin: "plugin",
            network: "net",
            bin_dirs: &[dir.path().join("empty"), dir.path().to_owned()],
            variables: vec![("CNI_ARGS", "a=b".to_owned())],
            input: &json!({"long": "x".repeat(200_000)}),
            timeout,
        });
        (result, dir)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn spawn_waits_until_the_program_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin");
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut writer = Some(File::options().append(true).open(&path).unwrap());
        let mut waits = 0;
        let child = spawn(&mut Command::new(&path), || {
            waits += 1;
            drop(writer.take());
            // A child that another test has forked holds the writer until it executes its own program.
            while Command::new(&path).status().is_err() {
                thread::yield_now();
            }
        });
        assert!(child.unwrap().wait().unwrap().success());
        assert!(waits >= 1);

        let writer = File::options().append(true).open(&path).unwrap();
        let error = spawn(&mut Command::new(&path), || ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ExecutableFileBusy);
        drop(writer);
    }

    #[test]
    fn run_passes_input_and_returns_result() {
        let script = r#"[ "$CNI_COMMAND $CNI_ARGS" = "ADD a=b" ] || exit 1
            printf '{"length": %d}' "$(wc -c)""#;
        let (answer, _dir) = plugin(script, LONG);
        assert_eq!(answer.unwrap(), json!({"length": 200_011}));
        // A plugin that reads nothing and writes nothing.
        assert_eq!(plugin("exit 0", LONG).0.unwrap(), Value::Null);
    }

    /// A background child inherits the plugin's output, but the runtime does not wait for it.
    #[test]
    fn run_does_not_wait_for_background_children() {
        let began = Instant::now();
        let (answer, _dir) = plugin("sleep 20 & echo $!", LONG);
        assert!(began.elapsed() < Duration::from_secs(19));
        let pid = answer.unwrap().as_i64().unwrap();
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }

    #[test]
    fn run_kills_process_group_after_timeout() {
        let (answer, dir) =
            plugin("cd $(dirname $0); sleep 1000 & echo $! > child; wait", Duration::from_secs(1));
        let error = answer.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the CNI plugin plugin did not end its ADD of the network net within 1 s, and was killed"
        );
        let child = std::fs::read_to_string(dir.path().join("child")).unwrap();
        let child = Pid::from_raw(child.trim().parse().unwrap()).unwrap();
        // It may be reaped already.
        assert!(ended(child, LONG).unwrap_or(true));
    }

    #[test]
    fn run_rejects_invalid_result() {
        let (answer, _dir) = plugin("echo hello", LONG);
        let error = answer.unwrap_err().to_string();
        assert!(error.contains("returned an invalid result for ADD of the network net"), "{error}");
        let (answer, _dir) = plugin("echo why >&2; exit 3", LONG);
        let error = answer.unwrap_err().to_string();
        assert_eq!(error, "the CNI plugin plugin failed to ADD the network net: why");
    }
}
