//! The runtime's endpoint and the timeout of calls, from flags before and after the command, environment variables and crictl's
//! file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use crib_base::args::{UnixEndpoint, duration};
use crib_base::live::RunName;
use crib_base::named_text;
use crib_base::report::chain;
use serde::Deserialize;

use super::{CALL_TIMEOUT, CallError, completion};

/// The default configuration file of crictl.
const CRICTL_FILE: &str = "/etc/crictl.yaml";

/// Flags before the command, for commands that call a runtime, with crictl's names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Connection, for the commands that call a runtime")]
pub(crate) struct ClientArgs {
    /// The runtime's CRI endpoint
    #[arg(short, long, value_name = "unix:///PATH")]
    runtime_endpoint: Option<UnixEndpoint>,
    /// The image service's CRI endpoint
    #[arg(short, long, value_name = "unix:///PATH")]
    image_endpoint: Option<UnixEndpoint>,
    /// Timeout of each CRI call, such as 10, 1.5s or 2m; 0: the default of 10s
    #[arg(short, long, value_name = "TIME", value_parser = timeout)]
    timeout: Option<Duration>,
    /// File with the endpoints and the timeout, in the format of crictl.yaml [env: CRI_CONFIG_FILE]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// No effect; accepted because crictl has this flag
    #[arg(short = 'D', long)]
    debug: bool,
}

/// Flags for the endpoints, with crictl's names.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Endpoints {
    /// The runtime's CRI endpoint [env: CONTAINER_RUNTIME_ENDPOINT] [default: the first existing socket: crib's, the one in
    /// /etc/crictl.yaml, containerd's, CRI-O's, then those of `crib run`]
    #[arg(long, value_name = "unix:///PATH")]
    runtime_endpoint: Option<UnixEndpoint>,
    /// The image service's CRI endpoint [env: IMAGE_SERVICE_ENDPOINT] [default: the runtime's endpoint]
    #[arg(long, value_name = "unix:///PATH")]
    image_endpoint: Option<UnixEndpoint>,
    /// Use the runtime that `crib run --name NAME` started
    #[arg(long, value_name = "NAME", conflicts_with = "runtime_endpoint", add = completion::runs())]
    pub(super) run: Option<RunName>,
    #[arg(skip)]
    before: ClientArgs,
}

/// Flags for the endpoints and the timeout.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    #[command(flatten)]
    pub(crate) endpoints: Endpoints,
    /// Timeout of each CRI call, such as 10, 1.5s or 2m [default: 10s; none for pulls]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
}

/// The merged settings of flags, variables and files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(super) runtime_endpoint: Option<UnixEndpoint>,
    pub(super) image_endpoint: Option<UnixEndpoint>,
    pub(super) timeout: Option<Duration>,
    /// Whether `create` pulls the image.
    pub(crate) pull_on_create: bool,
}

impl Settings {
    /// Whether a runtime endpoint is set.
    pub(crate) fn names_runtime(&self) -> bool {
        self.runtime_endpoint.is_some()
    }
}

/// crictl's configuration file. Other keys are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct File {
    runtime_endpoint: String,
    image_endpoint: String,
    timeout: i64,
    pull_image_on_create: bool,
}

impl ClientArgs {
    /// The first given flag, for commands without use for it.
    pub(crate) fn given(&self) -> Option<&'static str> {
        [
            (self.runtime_endpoint.is_some(), "--runtime-endpoint"),
            (self.image_endpoint.is_some(), "--image-endpoint"),
            (self.timeout.is_some(), "--timeout"),
            (self.config.is_some(), "--config"),
            (self.debug, "--debug"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }
}

impl Connection {
    /// Applies the flags before the command; flags after the command take precedence.
    pub(crate) fn inherit(&mut self, before: &ClientArgs) {
        self.endpoints.inherit(before);
    }
}

impl Endpoints {
    /// Applies the flags before the command; flags after the command take precedence.
    pub(crate) fn inherit(&mut self, before: &ClientArgs) {
        self.before = before.clone();
    }

    /// The settings, in order of precedence: flags after the command, flags before it, environment variables, the file.
    pub(crate) fn settings(&self) -> Result<Settings, CallError> {
        let file = match self.before.config.clone().or_else(|| path_in("CRI_CONFIG_FILE")) {
            Some(path) => read(&path)?,
            None => Settings::default(),
        };
        let choose =
            |after: &Option<UnixEndpoint>, before: &Option<UnixEndpoint>, variable| match after
                .as_ref()
                .or(before.as_ref())
            {
                Some(endpoint) => Ok(Some(endpoint.clone())),
                None => endpoint_in(variable),
            };
        let runtime = choose(
            &self.runtime_endpoint,
            &self.before.runtime_endpoint,
            "CONTAINER_RUNTIME_ENDPOINT",
        )?;
        let images =
            choose(&self.image_endpoint, &self.before.image_endpoint, "IMAGE_SERVICE_ENDPOINT")?;
        Ok(Settings {
            runtime_endpoint: runtime.or(file.runtime_endpoint),
            image_endpoint: images.or(file.image_endpoint),
            timeout: self.before.timeout.or(file.timeout),
            pull_on_create: file.pull_on_create,
        })
    }
}

/// The settings in this machine's crictl configuration, if it exists.
pub(super) fn of_this_machine() -> Result<Settings, CallError> {
    let path = Path::new(CRICTL_FILE);
    match path.exists() {
        true => read(path),
        false => Ok(Settings::default()),
    }
}

/// Parses a timeout; 0 is the default timeout.
fn timeout(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(CALL_TIMEOUT),
        text => duration(text),
    }
}

fn path_in(variable: &str) -> Option<PathBuf> {
    let value = std::env::var_os(variable).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

fn endpoint_in(variable: &str) -> Result<Option<UnixEndpoint>, CallError> {
    let text = std::env::var(variable).unwrap_or_default();
    endpoint(&text).map_err(|error| CallError::Usage(format!("invalid {variable}: {error}")))
}

fn endpoint(text: &str) -> Result<Option<UnixEndpoint>, String> {
    match text {
        "" => Ok(None),
        text => text.parse().map(Some),
    }
}

fn read(path: &Path) -> Result<Settings, CallError> {
    let text = named_text::read_text(path).map_err(|source| {
        let doing = format!("read the configuration {}", path.display());
        match source.kind() == ErrorKind::NotFound {
            true => CallError::Usage(format!("failed to {doing}: {source}")),
            false => CallError::Io { doing, source },
        }
    })?;
    settings(&text).map_err(|error| {
        CallError::Usage(format!("invalid configuration {}: {error}", path.display()))
    })
}

fn settings(text: &str) -> Result<Settings, String> {
    // An empty document is not a mapping.
    let file: Option<File> = serde_saphyr::from_str(text).map_err(|error| chain(&error))?;
    let file = file.unwrap_or_default();
    Ok(Settings {
        runtime_endpoint: endpoint(&file.runtime_endpoint)?,
        image_endpoint: endpoint(&file.image_endpoint)?,
        timeout: u64::try_from(file.timeout)
            .ok()
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs),
        pull_on_create: file.pull_image_on_create,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_of_crictl_is_read() {
        let text = "runtime-endpoint: unix:///r\nimage-endpoint: \"\"\ntimeout: 7\ndebug: true\npull-image-on-create: true\n";
        let expected = Settings {
            runtime_endpoint: Some("unix:///r".parse().unwrap()),
            image_endpoint: None,
            timeout: Some(Duration::from_secs(7)),
            pull_on_create: true,
        };
        assert_eq!(settings(text).unwrap(), expected);
        assert_eq!(settings("").unwrap(), Settings::default());
        assert_eq!(settings("timeout: 0\n").unwrap(), Settings::default());
        settings("runtime-endpoint: tcp://x:1\n").unwrap_err();
        settings("- a list\n").unwrap_err();
    }

    #[test]
    fn flags_after_the_command_win_over_flags_before_it() {
        let endpoint = |text: &str| Some(text.parse::<UnixEndpoint>().unwrap());
        let mut endpoints = Endpoints {
            runtime_endpoint: endpoint("/after"),
            image_endpoint: None,
            run: None,
            before: ClientArgs::default(),
        };
        endpoints.inherit(&ClientArgs {
            runtime_endpoint: endpoint("/before"),
            image_endpoint: endpoint("/images"),
            timeout: Some(Duration::from_secs(3)),
            ..ClientArgs::default()
        });
        let settings = endpoints.settings().unwrap();
        assert_eq!(settings.runtime_endpoint, endpoint("/after"));
        assert_eq!(settings.image_endpoint, endpoint("/images"));
        assert_eq!(settings.timeout, Some(Duration::from_secs(3)));
    }
}
