//! Why a command that speaks to a runtime failed, and what it ends with then.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use harness::streaming::DialError;

use crate::args::UnixEndpoint;
use crate::exit::Exit;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// No socket is where runtimes have theirs.
    #[error(
        "there is no runtime at {}: start one with `crib runtime`, or say where it is with --runtime-endpoint",
        list(tried)
    )]
    NoRuntime {
        /// Where it was looked for.
        tried: Vec<PathBuf>,
    },
    /// Nobody answers there.
    #[error("no runtime answers at {endpoint}; {}", hint(source))]
    Unreachable {
        /// Where.
        endpoint: UnixEndpoint,
        /// Why.
        source: io::Error,
    },
    /// The runtime said no.
    #[error("{call}: {} ({:?})", status.message(), status.code())]
    Refused {
        /// The call's name in the contract.
        call: &'static str,
        /// What it answered.
        status: Box<tonic::Status>,
    },
    /// The runtime went away in the middle of it.
    #[error("the connection to the runtime was lost")]
    Lost,
    /// The runtime gave a URL that leads nowhere.
    #[error(transparent)]
    Stream(#[from] DialError),
    /// The runtime took a command and could not run it.
    #[error("{}", bare(.0))]
    NotRun(String),
    /// The runtime said nothing.
    #[error("{call}: no answer within {} s; wait longer with --timeout", patience.as_secs_f64())]
    Late {
        /// The call's name in the contract.
        call: &'static str,
        /// How long it was waited for.
        patience: Duration,
    },
    /// Nothing has the id or name.
    #[error("there is no {what} {name:?}")]
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// Its id or name.
        name: String,
    },
    /// Several things have it.
    #[error("{name:?} means more than one {what}: give more of an id")]
    Ambiguous {
        /// What was looked for.
        what: &'static str,
        /// Its id or name.
        name: String,
    },
    /// What was typed cannot be done.
    #[error("{0}")]
    Usage(String),
    /// Something on this machine failed.
    #[error("cannot {doing}")]
    Io {
        /// What was being done, to what.
        doing: String,
        /// Why it failed.
        source: io::Error,
    },
    /// Nobody reads the output.
    #[error("nobody reads the output")]
    Output(#[source] io::Error),
    /// Some of several things failed, and each was told.
    #[error("not everything could be done")]
    Told,
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(", ")
}

fn hint(source: &io::Error) -> &'static str {
    let known = [
        (
            io::ErrorKind::NotFound,
            "is it started, and is this its socket?",
        ),
        (
            io::ErrorKind::PermissionDenied,
            "only its owner, root and its group may speak to it",
        ),
        (
            io::ErrorKind::ConnectionRefused,
            "it has ended and left its socket: start it again",
        ),
    ];
    let hint = known.into_iter().find(|(kind, _)| *kind == source.kind());
    hint.map_or("is this the socket of a runtime?", |(_, hint)| hint)
}

impl CallError {
    /// What came of a call in the place of an answer.
    pub(crate) fn refused(call: &'static str, status: tonic::Status) -> Self {
        // Codes that the client made itself have the reason as their source. A runtime that was never reached is
        // told by its code, too.
        if status.source().is_some() && status.code() != tonic::Code::Unavailable {
            return Self::Lost;
        }
        Self::Refused {
            call,
            status: Box::new(status),
        }
    }

    /// How the command ends with it.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::NoRuntime { .. }
            | Self::Unreachable { .. }
            | Self::Lost
            | Self::Stream(DialError::Io { .. }) => Exit::NoRuntime,
            Self::Refused { status, .. } if status.code() == tonic::Code::Unavailable => {
                Exit::NoRuntime
            }
            Self::NotRun(said) => never_ran(said).map_or(Exit::Failed, Exit::Remote),
            Self::Refused { .. }
            | Self::Stream(DialError::Url(_) | DialError::Refused { .. })
            | Self::NotFound { .. }
            | Self::Ambiguous { .. }
            | Self::Io { .. }
            | Self::Told => Exit::Failed,
            Self::Late { .. } => Exit::TimedOut,
            Self::Usage(_) => Exit::BadInput,
            Self::Output(_) => Exit::Interrupted,
        }
    }
}

/// A failure without the words that Kubernetes puts before all of them.
fn bare(said: &str) -> &str {
    let mut said = said;
    for idle in [
        "Internal error occurred: ",
        "error executing command in container: ",
    ] {
        said = said.strip_prefix(idle).unwrap_or(said);
    }
    said
}

/// What shells and `podman exec` end with when a program is not there, and when it cannot be executed. A runtime has only
/// words for it: its own, or those of runc and crun.
pub(crate) fn never_ran(said: &str) -> Option<u8> {
    let has = |word: &&str| said.contains(word);
    let missing = ["executable file not found in $PATH", "not found in $PATH: "];
    let about_a_program = ["exec: \"", "exec /", "open executable: "];
    if missing.iter().any(has) {
        return Some(127);
    }
    if !about_a_program.iter().any(has) {
        return None;
    }
    let not_there = [
        ": no such file or directory",
        ": its interpreter or loader is not",
    ];
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
    #[case::in_path(
        r#"exec: "nope": executable file not found in $PATH (/bin)"#,
        Some(127)
    )]
    #[case::by_path(
        r#"exec: "/no": no such file or directory in the container's image"#,
        Some(127)
    )]
    #[case::loader(r#"exec: "/x": its interpreter or loader is not in the"#, Some(127))]
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
    #[case::crun(
        "executable file `nope` not found in $PATH: No such file or directory",
        Some(127)
    )]
    #[case::crun_mode("open executable: Permission denied", Some(126))]
    #[case::a_directory(
        "failed to make the working directory /x: no such file or directory",
        None
    )]
    #[case::another_thing("the pod's keeper is gone", None)]
    fn programs_that_never_ran(#[case] said: &str, #[case] code: Option<u8>) {
        assert_eq!(never_ran(said), code);
        let words = format!("Internal error occurred: {said}");
        let error = CallError::NotRun(words);
        assert_eq!(error.to_string(), said);
        assert_eq!(error.exit(), code.map_or(Exit::Failed, Exit::Remote));
    }
}
