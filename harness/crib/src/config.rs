//! The file of `crib runtime --config`: YAML, in which unknown fields are errors.
//!
//! A string may be quoted or not (`yes`, `010`). A boolean may be `yes` or `on`. A number with a leading zero is an error, because
//! YAML 1.1 and 1.2 interpret it differently.
//!
//! Each section is a submodule. `examples/runtime.yaml` shows all sections.

use std::io;
use std::path::{Path, PathBuf};

use crib_base::named_text;
use runtime_fake::Config;
use serde::Deserialize;

mod registries;
mod sections;

use registries::{Pull, RegistriesSection};
use sections::{
    BehaveSection, CdiSection, HandlersSection, LogsSection, NetworkSection, SecuritySection,
    StreamsSection,
};

pub(crate) use registries::MirrorFlag;
pub(crate) use sections::{NetworkArgs, stream_address};

/// The whole file. Every section is optional.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    handlers: HandlersSection,
    network: NetworkSection,
    registries: RegistriesSection,
    pull: Pull,
    streams: StreamsSection,
    logs: LogsSection,
    cdi: CdiSection,
    security: SecuritySection,
    behave: BehaveSection,
}

/// Why the configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file does not exist, or is not text.
    #[error("failed to read the configuration {}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A part of the file is invalid.
    #[error("{}:{line}:{column}: {at}{problem}", .file.display())]
    Content {
        /// The file.
        file: PathBuf,
        /// The line.
        line: u64,
        /// The column.
        column: u64,
        /// The field, such as `registries.docker.io.mirrors[0]: `; empty if the problem is not in a field.
        at: String,
        /// The problem.
        problem: String,
    },
}

impl File {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// Fails with the location of the first problem.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = named_text::read_text(path)
            .map_err(|source| ConfigError::Read { file: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut track = serde_path_to_error::Track::new();
        let read = serde_saphyr::with_deserializer_from_str(text, |yaml| {
            Self::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
        });
        read.map_err(|error| {
            let place = error.location();
            let (line, column) = place.map_or((1, 1), |place| (place.line(), place.column()));
            let message = error.without_snippet().to_string();
            let message = message.split(&format!(" at line {line}, column {column}")).next();
            let at = match track.path().to_string() {
                none if none == "." || none == "?" => String::new(),
                at => format!("{at}: "),
            };
            ConfigError::Content {
                file: path.to_owned(),
                line,
                column,
                at,
                problem: message.unwrap_or_default().to_owned(),
            }
        })
    }

    /// Applies the settings to `config`.
    pub(crate) fn apply(self, config: &mut Config) {
        self.handlers.apply(config);
        self.network.apply(config);
        self.registries.apply(&mut config.registries);
        self.pull.apply(&mut config.registries);
        self.streams.apply(&mut config.streams);
        self.logs.apply(config);
        self.cdi.apply(config);
        self.security.apply(config);
        self.behave.apply(config);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::unknown_section(
        "registry:\n",
        "c.yaml:1:1: registry: unknown field `registry`, expected one of handlers, network, registries, pull, streams, logs, cdi, security, behave"
    )]
    #[case::unknown_field(
        "registries:\n  docker.io:\n    mirror: x\n",
        "c.yaml:3:5: registries.docker.io.mirror: unknown field `mirror`"
    )]
    #[case::no_url(
        "registries:\n  docker.io:\n    mirrors:\n    - http://a\n    - b\n",
        "c.yaml:5:7: registries.docker.io.mirrors[1]: \"b\" is not the URL of a mirror"
    )]
    #[case::no_host(
        "registries:\n  docker.io/library: {}\n",
        "c.yaml:2:3: registries.docker.io/library: \"docker.io/library\" is not a registry host"
    )]
    #[case::no_boolean(
        "registries:\n  docker.io:\n    plain_http: 7\n",
        "c.yaml:3:17: registries.docker.io.plain_http: invalid boolean"
    )]
    #[case::no_yaml("registries: {\n", "c.yaml:")]
    #[case::twice("pull: {}\npull: {}\n", "c.yaml:2:1: duplicate mapping key: pull")]
    #[case::half_a_login(
        "registries:\n  docker.io:\n    credentials:\n      username: me\n",
        "registries.docker.io.credentials: give exactly one of these: username and password, identity_token, registry_token"
    )]
    #[case::everybodys_login(
        "registries:\n  '*':\n    credentials: {registry_token: x}\n",
        "credentials for host * would be sent to every registry: name the host"
    )]
    #[case::relative(
        "pull:\n  docker_config: config.json\n",
        "pull.docker_config: the path must be absolute"
    )]
    #[case::no_subnet(
        "network:\n  pod_cidr: 10.0.0.1/16\n",
        "network.pod_cidr: 10.0.0.1/16 has bits outside its prefix; did you mean 10.0.0.0/16?"
    )]
    #[case::no_plugins(
        "network:\n  cni:\n    conf_dir: net.d\n",
        "network.cni.conf_dir: the path must be absolute"
    )]
    #[case::no_duration(
        "pull:\n  progress_timeout: soon\n",
        "c.yaml:2:21: pull.progress_timeout: invalid duration \"soon\""
    )]
    #[case::no_address(
        "streams:\n  address: localhost\n",
        "c.yaml:2:12: streams.address: invalid address \"localhost\": expected ADDRESS:PORT"
    )]
    #[case::no_image(
        "pull:\n  pinned: [a, 'B A']\n",
        "pull.pinned[1]: invalid image reference \"B A\""
    )]
    #[case::no_handler("handlers:\n  Strict: {}\n", "handlers: \"Strict\" is not a handler name")]
    #[case::no_option("handlers:\n  strict:\n    fast: true\n", "unknown field `fast`")]
    #[case::a_log_of_nothing(
        "logs:\n  max_size: 100\n",
        "c.yaml:2:13: logs.max_size: 100 bytes is too small: set at least 1048576"
    )]
    #[case::a_number_that_may_be_octal(
        "pull:\n  parallel_layers: 010\n",
        "c.yaml:2:20: pull.parallel_layers: "
    )]
    #[case::no_script(
        "behave:\n  app: exit-1\n  registry.test/app:2: exit-1000\n",
        "behave: image registry.test/app:2: step \"exit-1000\": \"1000\" is not an exit code: 0 to 255"
    )]
    #[case::no_layers("pull:\n  parallel_layers: 0\n", "pull.parallel_layers: must be at least 1")]
    fn config_rejects_invalid_document(#[case] text: &str, #[case] want: &str) {
        let message = File::parse(Path::new("c.yaml"), text).unwrap_err().to_string();
        assert!(message.contains(want), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }

    #[rstest]
    #[case::nothing("")]
    #[case::a_comment("# nothing yet\n")]
    #[case::the_example(include_str!("../../../examples/runtime.yaml"))]
    fn config_accepts_valid_document(#[case] text: &str) {
        File::parse(Path::new("c.yaml"), text).unwrap();
    }

    #[test]
    fn config_reports_missing_file() {
        let error = File::read(Path::new("/nowhere/c.yaml")).unwrap_err();
        assert_eq!(error.to_string(), "failed to read the configuration /nowhere/c.yaml");
    }
}
