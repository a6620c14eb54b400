//! `crib version`: versions of crib and the CRI.

use std::io::Write as _;

use clap::Args;

use crate::args::Output;
use crate::exit::Exit;

/// Print the versions of crib and of the CRI
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  crib version
  crib version --output json")]
pub(crate) struct VersionArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// What is printed.
#[derive(Debug)]
struct Version {
    /// The version of this crate.
    crib: &'static str,
    /// The version of the Container Runtime Interface.
    cri: &'static str,
    /// The commit it was built from, when the build was told by the variable `CRIB_COMMIT`.
    commit: Option<&'static str>,
}

/// Prints the versions.
pub(crate) fn run(args: VersionArgs) -> Exit {
    let version = Version {
        crib: env!("CARGO_PKG_VERSION"),
        cri: "v1",
        commit: option_env!("CRIB_COMMIT"),
    };
    let text = match args.output {
        Output::Text => plain(&version),
        Output::Json => json(&version),
    };
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => Exit::Success,
        Err(_) => Exit::Interrupted,
    }
}

fn plain(version: &Version) -> String {
    let commit = version
        .commit
        .map(|commit| format!(" ({commit})"))
        .unwrap_or_default();
    format!(
        "crib {}{commit}\nContainer Runtime Interface {}",
        version.crib, version.cri
    )
}

fn json(version: &Version) -> String {
    let commit = version
        .commit
        .map(|commit| format!(r#","commit":{}"#, serde_json::json!(commit)))
        .unwrap_or_default();
    format!(
        r#"{{"crib":"{}","cri":"{}"{commit}}}"#,
        version.crib, version.cri
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_omits_unknown_commit() {
        let version = Version {
            crib: "1.2.3",
            cri: "v1",
            commit: None,
        };
        assert_eq!(
            plain(&version),
            "crib 1.2.3\nContainer Runtime Interface v1"
        );
        assert_eq!(json(&version), r#"{"crib":"1.2.3","cri":"v1"}"#);
        let version = Version {
            commit: Some("abc"),
            ..version
        };
        assert_eq!(
            json(&version),
            r#"{"crib":"1.2.3","cri":"v1","commit":"abc"}"#
        );
        assert_eq!(
            plain(&version),
            "crib 1.2.3 (abc)\nContainer Runtime Interface v1"
        );
    }
}
