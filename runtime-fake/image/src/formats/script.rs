//! ◆ Behaviour scripts: the behaviour of a container in a test, in words that fit into an image's name.
//!
//! A script consists of steps, separated by `/` or `,`: `log-10-a-second/exit-1-after-2s`. All steps apply together, so their
//! order has no meaning. [`FORMS`] lists them. docs/testing.md explains them.

mod grammar;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use grammar::ScriptError;

/// The form of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// The form, with values in capital letters and optional parts in brackets.
    pub form: &'static str,
    /// A step of this form.
    pub example: &'static str,
}

/// The forms of all steps, in the order in which a script is written.
pub const FORMS: [Form; 13] = [
    form("run", "run"),
    form("exit-CODE[-after-TIME]", "exit-1-after-2s"),
    form("exit-CODE-on-term[-after-TIME]", "exit-0-on-term-after-3s"),
    form("ignore-term", "ignore-term"),
    form("log-COUNT-a-second[-to-stderr]", "log-100-a-second-to-stderr"),
    form("allocate-SIZE[-after-TIME]", "allocate-64mi"),
    form("allocate-until-oom[-after-TIME]", "allocate-until-oom"),
    form("fork-COUNT[-after-TIME]", "fork-20"),
    form("create-takes-TIME", "create-takes-5s"),
    form("create-fails", "create-fails"),
    form("start-takes-TIME", "start-takes-5s"),
    form("start-fails", "start-fails"),
    form("exec-hangs", "exec-hangs"),
];

const fn form(form: &'static str, example: &'static str) -> Form {
    Form { form, example }
}

/// One action of a container, or of the runtime for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The process runs until SIGTERM.
    Run,
    /// The process exits with this code, this long after its start.
    Exit {
        /// The exit code.
        code: u8,
        /// Zero: immediately.
        after: Duration,
    },
    /// The process exits with this code, this long after SIGTERM.
    ExitOnTerm {
        /// The exit code.
        code: u8,
        /// Zero: immediately.
        after: Duration,
    },
    /// SIGTERM has no effect.
    IgnoreTerm,
    /// The process writes numbered lines.
    Log {
        /// Lines per second, from the start on.
        per_second: u32,
        /// Write to standard error instead of standard output.
        stderr: bool,
    },
    /// The process allocates memory, and writes to it.
    Allocate {
        /// The number of bytes; `None`: until the kernel kills the process.
        bytes: Option<u64>,
        /// Zero: at its start.
        after: Duration,
    },
    /// The process forks children, which run until it ends.
    Fork {
        /// The number of children.
        count: u32,
        /// Zero: at its start.
        after: Duration,
    },
    /// CreateContainer takes this much longer.
    CreateTakes(Duration),
    /// CreateContainer fails.
    CreateFails,
    /// StartContainer takes this much longer.
    StartTakes(Duration),
    /// StartContainer fails, and the container is then exited.
    StartFails,
    /// A process of ExecSync and Exec hangs instead of running its command.
    ExecHangs,
}

/// The aspect of behaviour that a step sets. A script has at most one step for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Topic {
    Exit,
    Term,
    Log,
    Allocate,
    Fork,
    CreateTakes,
    CreateFails,
    StartTakes,
    StartFails,
    Exec,
}

impl Step {
    fn topic(self) -> Topic {
        match self {
            Self::Run | Self::Exit { .. } => Topic::Exit,
            Self::ExitOnTerm { .. } | Self::IgnoreTerm => Topic::Term,
            Self::Log { .. } => Topic::Log,
            Self::Allocate { .. } => Topic::Allocate,
            Self::Fork { .. } => Topic::Fork,
            Self::CreateTakes(_) => Topic::CreateTakes,
            Self::CreateFails => Topic::CreateFails,
            Self::StartTakes(_) => Topic::StartTakes,
            Self::StartFails => Topic::StartFails,
            Self::ExecHangs => Topic::Exec,
        }
    }

    /// Whether the container's process carries it out, in place of a command. Otherwise the runtime does.
    #[must_use]
    pub fn is_of_process(self) -> bool {
        self.topic() <= Topic::Fork
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = |f: &mut fmt::Formatter<'_>, after: Duration| match after {
            Duration::ZERO => Ok(()),
            after => write!(f, "-after-{}", Time(after)),
        };
        match *self {
            Self::Run => f.write_str("run"),
            Self::Exit { code, after: time } => {
                write!(f, "exit-{code}")?;
                after(f, time)
            }
            Self::ExitOnTerm { code, after: time } => {
                write!(f, "exit-{code}-on-term")?;
                after(f, time)
            }
            Self::IgnoreTerm => f.write_str("ignore-term"),
            Self::Log { per_second, stderr } => {
                let to = if stderr { "-to-stderr" } else { "" };
                write!(f, "log-{per_second}-a-second{to}")
            }
            Self::Allocate { bytes, after: time } => {
                match bytes {
                    Some(bytes) => write!(f, "allocate-{}", Size(bytes))?,
                    None => f.write_str("allocate-until-oom")?,
                }
                after(f, time)
            }
            Self::Fork { count, after: time } => {
                write!(f, "fork-{count}")?;
                after(f, time)
            }
            Self::CreateTakes(time) => write!(f, "create-takes-{}", Time(time)),
            Self::CreateFails => f.write_str("create-fails"),
            Self::StartTakes(time) => write!(f, "start-takes-{}", Time(time)),
            Self::StartFails => f.write_str("start-fails"),
            Self::ExecHangs => f.write_str("exec-hangs"),
        }
    }
}

/// A time, in the largest unit of which it is a whole multiple.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let units = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")];
        let whole = units.iter().find(|(unit, _)| millis.is_multiple_of(*unit));
        let (unit, name) = whole.copied().unwrap_or((1, "ms"));
        write!(f, "{}{name}", millis / unit)
    }
}

/// A number of bytes, in the largest unit of which it is a whole multiple.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1 << 30, "gi"), (1 << 20, "mi")];
        let whole = units.iter().find(|(unit, _)| self.0.is_multiple_of(*unit));
        let (unit, name) = whole.copied().unwrap_or((1 << 10, "ki"));
        write!(f, "{}{name}", self.0 / unit)
    }
}

/// A script: at least one step, and at most one for each topic. `Display` writes the steps in the order of [`FORMS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Script(Vec<Step>);

impl Script {
    /// Its steps.
    pub fn steps(&self) -> impl Iterator<Item = Step> {
        self.0.iter().copied()
    }

    /// Whether it has this step.
    #[must_use]
    pub fn has(&self, step: Step) -> bool {
        self.0.contains(&step)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "/" };
            write!(f, "{separator}{step}")?;
        }
        Ok(())
    }
}

impl FromStr for Script {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Self, ScriptError> {
        let mut steps: Vec<Step> = Vec::new();
        for word in text.split(['/', ',']) {
            let step = grammar::step(word.trim())?;
            if let Some(other) = steps.iter().find(|other| other.topic() == step.topic()) {
                return Err(ScriptError::Contradiction {
                    first: other.to_string(),
                    second: step.to_string(),
                });
            }
            steps.push(step);
        }
        compact::sort_by_key(&mut steps, |step| step.topic());
        Ok(Self(steps))
    }
}

impl TryFrom<String> for Script {
    type Error = ScriptError;

    fn try_from(text: String) -> Result<Self, ScriptError> {
        text.parse()
    }
}

impl From<Script> for String {
    fn from(script: Script) -> Self {
        script.to_string()
    }
}
