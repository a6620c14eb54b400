//! Tracing: the servers log to standard error; `crib run` logs to a file, because its terminal shows the pods.

use std::fs::File;
use std::io::IsTerminal as _;
use std::sync::Mutex;

use clap::ValueEnum;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::debug_fn;

use crate::args::LogFormat;
use crate::terminal_text::plain;

/// The lowest level that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Errors only.
    Error,
    /// Errors and warnings.
    Warn,
    /// Errors, warnings and state changes.
    #[default]
    Info,
    /// Errors, warnings, state changes and every call.
    Debug,
    /// Everything.
    Trace,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// Logging options of the servers.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct LogArgs {
    /// Format of log lines on standard error [default: text]
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// Log level [default: info]
    #[arg(long, value_enum)]
    pub log_level: Option<LogLevel>,
}

/// Configures logging to standard error.
pub fn to_stderr(args: LogArgs) {
    let builder = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::from(args.log_level.unwrap_or_default()))
        .with_target(false)
        // tracing-subscriber reports internal errors on standard error and panics if that cannot be written: a full disk must not
        // end a task.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    // Field values contain text from clients, runtimes and manifests; escape sequences in them must not reach the terminal.
    let shown = debug_fn(|line, field, value| {
        let value = plain(&format!("{value:?}"));
        match field.name() {
            "message" => write!(line, "{value}"),
            name => write!(line, "{name}={value}"),
        }
    });
    match args.log_format.unwrap_or_default() {
        LogFormat::Text if std::io::stderr().is_terminal() => {
            builder.with_ansi(!no_color()).fmt_fields(shown.delimited(" ")).init();
        }
        LogFormat::Text => builder.with_ansi(false).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}

/// Configures logging to `file`.
pub fn to_file(file: File) {
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::INFO)
        .with_target(false)
        .with_ansi(false)
        .log_internal_errors(false)
        .with_writer(Mutex::new(file))
        .init();
}

/// Whether the user disabled colours (<https://no-color.org>).
pub fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}
