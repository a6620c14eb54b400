//! ◆ The exit codes of `crib`, and their tables in the help: one table for `crib run`, and one for the commands that call a
//! runtime.

use std::process::ExitCode;

/// The result of a command, as its exit code reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success; for `crib run`: every pod Succeeded.
    Success,
    /// A pod Failed.
    PodFailed,
    /// An operation failed.
    Failed,
    /// The exit code of a command in a container.
    Remote(u8),
    /// The command line or a manifest is invalid; nothing was started.
    BadInput,
    /// The runtime failed to start, exited unexpectedly, or lacks a feature that `--strict` requires.
    NoRuntime,
    /// `--timeout` expired.
    TimedOut,
    /// The command received a signal, or standard output was closed.
    Interrupted,
}

/// The table in the help of `crib run`.
pub const TABLE: &str = "Exit codes:
    0  every pod and Job succeeded
    1  a pod or Job failed, or can never run
    2  bad usage or an invalid manifest; nothing was started
    3  the runtime failed to start or exited unexpectedly; with --strict, the runtime cannot apply limits or serve Services; or a ulimit of the crib process is too low
  124  --timeout expired before all pods had ended
  130  interrupted by SIGINT, SIGTERM or SIGHUP, or because standard output was closed";

/// The table in the help of the commands that call a runtime.
pub const CALLS: &str = "Exit codes:
    0  success
    1  the runtime returned an error, or an operation failed
    2  bad usage
    3  no runtime was found, the connection was lost, or a ulimit of this process is too low
  124  the runtime did not answer a call in time
  130  interrupted by a signal, or because standard output was closed";

impl Exit {
    /// The exit code as a number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::PodFailed | Self::Failed => 1,
            Self::Remote(code) => code,
            Self::BadInput => 2,
            Self::NoRuntime => 3,
            Self::TimedOut => 124,
            Self::Interrupted => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lists_every_exit_code() {
        for exit in [
            Exit::Success,
            Exit::PodFailed,
            Exit::BadInput,
            Exit::NoRuntime,
            Exit::TimedOut,
            Exit::Interrupted,
        ] {
            let code = format!("{:>5}  ", exit.code());
            assert_eq!(TABLE.lines().filter(|line| line.starts_with(&code)).count(), 1, "{exit:?}");
        }
        assert_eq!(TABLE.lines().count(), 7, "a heading and six codes");
    }
}
