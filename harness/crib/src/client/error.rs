//! Errors of commands that call a runtime, and their exit codes.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crib_base::args::UnixEndpoint;
use crib_base::exit::Exit;
use crib_base::live::RunName;
use harness::streaming::DialError;

use crate::endpoint::EndpointError;
use crate::template::TemplateError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// No runtime socket was found.
    #[error(
        "no runtime found at {}: start one with `crib runtime` or set --runtime-endpoint",
        list(tried)
    )]
    NoRuntime {
        /// The sockets that were tried.
        tried: Vec<PathBuf>,
    },
    /// Connecting to the socket failed.
    #[error("failed to connect to the runtime at {endpoint}; {}", connect_hint(source))]
    Unreachable {
        /// The endpoint.
        endpoint: UnixEndpoint,
        /// The cause.
        source: io::Error,
    },
    /// The runtime returned an error.
    #[error("{call}: {} ({:?})", status.message(), status.code())]
    Refused {
        /// The call's name in the CRI.
        call: &'static str,
        /// The status that it returned.
        status: Box<tonic::Status>,
    },
    /// The connection broke during a call.
    #[error("the connection to the runtime was lost")]
    Lost,
    /// Connecting to the stream URL failed.
    #[error(transparent)]
    Stream(#[from] DialError),
    /// The runtime failed to start the command.
    #[error("{}", without_prefix(.0))]
    NotRun(String),
    /// The runtime did not answer in time.
    #[error("{call}: no answer within {} s; wait longer with --timeout", timeout.as_secs_f64())]
    NoAnswer {
        /// The call's name in the CRI.
        call: &'static str,
        /// The timeout.
        timeout: Duration,
    },
    /// No object has the id or name.
    #[error("{what} {name:?} not found")]
    NotFound {
        /// The kind of object.
        what: &'static str,
        /// Its id or name.
        name: String,
    },
    /// No object of a run has the name.
    #[error("{resource} {name:?} not found")]
    NoObject {
        /// The resource, as kubectl names it.
        resource: String,
        /// The object's name.
        name: String,
    },
    /// An object has no pods.
    #[error("{0} has no pods")]
    NoPods(
        /// The object, as kubectl names it.
        String,
    ),
    /// An object does not meet the condition.
    #[error("{0}")]
    Unmet(String),
    /// No run is active.
    #[error(
        "no run found: start one with `crib run`; `crib pods` and `crib ps` list pods and containers of other runtimes"
    )]
    NoRun,
    /// A pod has no container of the name.
    #[error("pod {pod:?} has no container {name:?}: it has {}", known.join(", "))]
    NoSuchContainer {
        /// The pod, as the user gave it.
        pod: String,
        /// The container's name.
        name: String,
        /// The names of its containers.
        known: Vec<String>,
    },
    /// The object to remove is still running.
    #[error("{what} {name} is running: stop it first, or use --force")]
    StillRunning {
        /// The kind of object.
        what: &'static str,
        /// Its id.
        name: String,
    },
    /// No object matches the filters.
    #[error("no {0} matches the filters")]
    NothingFits(&'static str),
    /// Several objects match the name.
    #[error("{name:?} matches more than one {what}{}", choices(candidates))]
    Ambiguous {
        /// The kind of object.
        what: &'static str,
        /// Its id or name.
        name: String,
        /// The matches, in a form that the user can give instead.
        candidates: Vec<String>,
    },
    /// No runtime was given, and several are active.
    #[error("several runtimes are running: choose one with {}", .0.join(" or "))]
    SeveralRuntimes(
        /// The options that select them.
        Vec<String>,
    ),
    /// No background run has the name.
    #[error("no run is named {name}: {}", there_are(known))]
    UnknownRun {
        /// The name.
        name: RunName,
        /// The existing names.
        known: Vec<RunName>,
    },
    /// The process of a background run does not answer.
    #[error(
        "run {name} did not answer within {timeout:?}: its process {pid} is stopped or hangs; run kill -CONT {pid} to continue a stopped process, or kill -KILL {pid} and then crib down {name} to end the run"
    )]
    SilentRun {
        /// Its name.
        name: RunName,
        /// The id of its process.
        pid: rustix::process::Pid,
        /// The timeout.
        timeout: Duration,
    },
    /// A socket cannot be listened on.
    #[error(transparent)]
    Listen(#[from] EndpointError),
    /// The arguments are invalid.
    #[error("{0}")]
    Usage(String),
    /// The template does not fit the document.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A local operation failed.
    #[error("failed to {doing}")]
    Io {
        /// The operation that failed.
        doing: String,
        /// The cause.
        source: io::Error,
    },
    /// Writing the output failed. A closed output is not an error.
    #[error("failed to write to standard output")]
    Output(#[source] io::Error),
    /// Files were not copied.
    #[error(transparent)]
    Copy(#[from] file_copy::CopyError),
    /// A command in a container failed, or a run refused a change; this is the message.
    #[error("{0}")]
    Denied(String),
    /// Some operations failed and were reported already.
    #[error("some operations failed")]
    AlreadyReported,
}

fn there_are(known: &[RunName]) -> String {
    let known: Vec<&str> = known.iter().map(RunName::as_str).collect();
    match known.as_slice() {
        [] => "no run has a name".to_owned(),
        [one] => format!("the only named run is {one}"),
        some => format!("the named runs are {}", some.join(", ")),
    }
}

fn choices(all: &[String]) -> String {
    match all {
        [] => ": use a longer id prefix".to_owned(),
        all => format!(": choose one of {}", all.join(", ")),
    }
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

fn connect_hint(source: &io::Error) -> &'static str {
    let known = [
        (io::ErrorKind::NotFound, "check that the runtime is running and that this is its socket"),
        (
            io::ErrorKind::PermissionDenied,
            "run crib as the socket's owner, as root or in the socket's group, or choose another runtime with --runtime-endpoint",
        ),
        (io::ErrorKind::ConnectionRefused, "the socket is stale: start the runtime again"),
    ];
    let connect_hint = known.into_iter().find(|(kind, _)| *kind == source.kind());
    connect_hint
        .map_or("check that this is the socket of a runtime", |(_, connect_hint)| connect_hint)
}

impl CallError {
    /// The error of a failed call.
    pub(crate) fn refused(call: &'static str, status: tonic::Status) -> Self {
        // Codes that the client itself generated have the cause as their source. The code Unavailable alone identifies a runtime
        // that was not reached.
        if status.source().is_some() && status.code() != tonic::Code::Unavailable {
            return Self::Lost;
        }
        Self::Refused { call, status: Box::new(status) }
    }

    /// Whether no message is needed: it was printed already, or the reader has closed the output.
    pub(crate) fn is_silent(&self) -> bool {
        let nobody_reads =
            matches!(self, Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe);
        nobody_reads || matches!(self, Self::AlreadyReported)
    }

    /// The exit code of the error.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::NoRuntime { .. }
            | Self::NoRun
            | Self::Unreachable { .. }
            | Self::Lost
            | Self::Stream(DialError::Io { .. }) => Exit::NoRuntime,
            Self::Refused { status, .. } if status.code() == tonic::Code::Unavailable => {
                Exit::NoRuntime
            }
            Self::NotRun(message) => {
                start_failure_exit_code(message).map_or(Exit::Failed, Exit::Remote)
            }
            Self::Refused { .. }
            | Self::Stream(DialError::Url(_) | DialError::Refused { .. })
            | Self::NotFound { .. }
            | Self::NoObject { .. }
            | Self::NoPods(_)
            | Self::Unmet(_)
            | Self::NoSuchContainer { .. }
            | Self::NothingFits(_)
            | Self::UnknownRun { .. }
            | Self::StillRunning { .. }
            | Self::Ambiguous { .. }
            | Self::Template(_)
            | Self::Io { .. }
            | Self::Listen(_)
            | Self::Copy(_)
            | Self::Denied(_)
            | Self::AlreadyReported => Exit::Failed,
            Self::NoAnswer { .. } | Self::SilentRun { .. } => Exit::TimedOut,
            Self::Usage(_) | Self::SeveralRuntimes(_) => Exit::BadInput,
            Self::Output(_) if self.is_silent() => Exit::Interrupted,
            Self::Output(_) => Exit::Failed,
        }
    }
}

/// Strips the prefixes that Kubernetes clients add to messages.
fn without_prefix(message: &str) -> &str {
    let mut message = message;
    for idle in ["Internal error occurred: ", "error executing command in container: "] {
        message = message.strip_prefix(idle).unwrap_or(message);
    }
    message
}

/// The exit code of shells and `podman exec` for a program that is missing (127) or not executable (126). Runtimes report this only
/// in the message; the messages are those of crib, runc and crun.
pub(crate) fn start_failure_exit_code(message: &str) -> Option<u8> {
    let has = |word: &&str| message.contains(word);
    let missing = ["executable file not found in $PATH", "not found in $PATH: "];
    let about_a_program = ["exec: \"", "exec /", "open executable: "];
    if missing.iter().any(has) {
        return Some(127);
    }
    if !about_a_program.iter().any(has) {
        return None;
    }
    let not_there = [": no such file or directory", ": its interpreter ", ": the interpreter "];
    let not_executable = [
        ": permission denied",
        ": Permission denied",
        ": is a directory",
        ": exec format error",
        ": not a program for this machine",
    ];
    if not_there.iter().any(has) {
        return Some(127);
    }
    not_executable.iter().any(has).then_some(126)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::in_path(r#"exec: "nope": executable file not found in $PATH (/bin)"#, Some(127))]
    #[case::by_path(
        r#"exec: "/no": no such file or directory in the container's image"#,
        Some(127)
    )]
    #[case::interpreter(r#"exec: "/x": its interpreter "/lib/ld.so" is not in the"#, Some(127))]
    #[case::loader(
        r#"exec: "/x": the interpreter "/lib/ld.so" of "/bin/sh" is not in the"#,
        Some(127)
    )]
    #[case::mode(r#"exec: "/x": permission denied: it is not an exec"#, Some(126))]
    #[case::format(r#"exec: "/x": not a program for this machine, nor"#, Some(126))]
    #[case::runc(
        r#"failed to exec in container: failed to start exec "1f": OCI runtime exec failed: exec failed: unable to start container process: exec: "/no": stat /no: no such file or directory"#,
        Some(127)
    )]
    #[case::runc_directory(
        r#"unable to start container process: exec: "/etc": is a directory"#,
        Some(126)
    )]
    #[case::runc_format("exec /x.sh: exec format error", Some(126))]
    #[case::crun("executable file `nope` not found in $PATH: No such file or directory", Some(127))]
    #[case::crun_mode("open executable: Permission denied", Some(126))]
    #[case::a_directory("failed to make the working directory /x: no such file or directory", None)]
    #[case::another_thing("the pod's keeper is gone", None)]
    fn start_errors_of_runtimes_map_to_126_or_127(#[case] message: &str, #[case] code: Option<u8>) {
        assert_eq!(start_failure_exit_code(message), code);
        let words = format!("Internal error occurred: {message}");
        let error = CallError::NotRun(words);
        assert_eq!(error.to_string(), message);
        assert_eq!(error.exit(), code.map_or(Exit::Failed, Exit::Remote));
    }
}
