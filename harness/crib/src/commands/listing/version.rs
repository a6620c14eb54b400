//! `crib version`: versions of crib, the CRI and the runtime.

use crib_base::args::Output;
use serde_json::{Value, json};

use crate::commands::prelude::*;

/// Print the versions of crib, the CRI and any running runtime
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib version
  crib version --output json

If no endpoint is configured and no runtime answers, `crib version` prints only the versions of crib and the CRI."))]
pub(crate) struct VersionArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// The output.
#[derive(Debug)]
struct Version {
    /// The version of this package.
    crib: &'static str,
    /// The version of the Container Runtime Interface.
    cri: &'static str,
    /// The commit of the build and its date, if they were available.
    commit: Option<&'static str>,
    /// The runtime's response to Version.
    runtime: Option<v1::VersionResponse>,
}

/// Prints the versions.
pub(crate) async fn run(args: &VersionArgs) -> Result<Exit, CallError> {
    let version = Version {
        crib: env!("CARGO_PKG_VERSION"),
        cri: "v1",
        commit: option_env!("CRIB_COMMIT"),
        runtime: match runtime(&args.connection).await {
            Ok(runtime) => Some(runtime),
            Err(error) if args.connection.endpoints.settings()?.names_runtime() => {
                return Err(error);
            }
            Err(_) => None,
        },
    };
    match args.output {
        Output::Text => print(&plain(&version))?,
        Output::Json => print_json(&json(&version))?,
    }
    Ok(Exit::Success)
}

async fn runtime(connection: &Connection) -> Result<v1::VersionResponse, CallError> {
    let cri = connection.open()?;
    cri.call("Version", cri.runtime.version()).await
}

fn plain(version: &Version) -> String {
    let commit = version.commit.map(|commit| format!(" ({commit})")).unwrap_or_default();
    let mut lines = vec![
        format!("crib {}{commit}", version.crib),
        format!("Container Runtime Interface {}", version.cri),
    ];
    if let Some(runtime) = &version.runtime {
        // The format of crictl, including its spaces.
        lines.push(format!("Version:  {}", runtime.version));
        lines.push(format!("RuntimeName:  {}", runtime.runtime_name));
        lines.push(format!("RuntimeVersion:  {}", runtime.runtime_version));
        lines.push(format!("RuntimeApiVersion:  {}", runtime.runtime_api_version));
    }
    lines.join("\n")
}

fn json(version: &Version) -> String {
    let mut all = json!({"crib": version.crib, "cri": version.cri});
    if let Some(commit) = version.commit {
        all["commit"] = commit.into();
    }
    if let Some(runtime) = &version.runtime {
        all["runtime"] = json!({
            "version": runtime.version,
            "runtimeName": runtime.runtime_name,
            "runtimeVersion": runtime.runtime_version,
            "runtimeApiVersion": runtime.runtime_api_version,
        });
    }
    Value::to_string(&all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_omits_unknown_commit() {
        let version = Version { crib: "1.2.3", cri: "v1", commit: None, runtime: None };
        assert_eq!(plain(&version), "crib 1.2.3\nContainer Runtime Interface v1");
        assert_eq!(json(&version), r#"{"cri":"v1","crib":"1.2.3"}"#);
        let version = Version { commit: Some("abc"), ..version };
        assert_eq!(json(&version), r#"{"commit":"abc","cri":"v1","crib":"1.2.3"}"#);
        assert_eq!(plain(&version), "crib 1.2.3 (abc)\nContainer Runtime Interface v1");
    }

    #[test]
    fn version_matches_crictl_output() {
        let version = Version {
            crib: "1.2.3",
            cri: "v1",
            commit: None,
            runtime: Some(v1::VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: "x".to_owned(),
                runtime_version: "1".to_owned(),
                runtime_api_version: "v1".to_owned(),
            }),
        };
        assert!(plain(&version).ends_with(
            "\nVersion:  0.1.0\nRuntimeName:  x\nRuntimeVersion:  1\nRuntimeApiVersion:  v1"
        ));
    }
}
