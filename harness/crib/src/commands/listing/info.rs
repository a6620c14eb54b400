//! `crib info`: the status of a runtime. `crib runtime-config`: its configuration.

use clap::Args;
use cri::v1;
use crib_base::exit::Exit;
use serde_json::Value;

use crate::client::document::DocumentArgs;
use crate::client::output::json;
use crate::client::{CallError, Connection, status, with_codes};
use crate::commands::prelude::*;

/// Show the status of the runtime
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib info
  crib info -o go-template --template '{{range .status.conditions}}{{.type}}={{.status}} {{end}}'

`crib inspect --help` describes the syntax of --template."))]
pub(crate) struct InfoArgs {
    /// Omit the runtime's additional information (verbose info)
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    document: DocumentArgs,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Prints the status.
pub(crate) async fn run(args: &InfoArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let request = v1::StatusRequest { verbose: !args.quiet };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("Status", client.status(request)).await?.into_inner();
    args.document.print_document(&document(answer)?)?;
    Ok(Exit::Success)
}

fn document(answer: v1::StatusResponse) -> Result<Value, CallError> {
    let status = json("RuntimeStatus", &answer.status.unwrap_or_default())?;
    let mut document = status::merge(status, answer.info)?;
    if !answer.runtime_handlers.is_empty() {
        let mut handlers = Vec::new();
        for handler in &answer.runtime_handlers {
            handlers.push(go_struct(json("RuntimeHandler", handler)?));
        }
        document["runtimeHandlers"] = handlers.into();
    }
    if let Some(features) = &answer.features {
        document["features"] = go_struct(json("RuntimeFeatures", features)?);
    }
    Ok(document)
}

/// crictl prints these fields as Go structs: names in snake case, without empty fields.
fn go_struct(value: Value) -> Value {
    let Value::Object(fields) = value else {
        return value;
    };
    let is_empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::Object(_) => false,
    };
    fields
        .into_iter()
        .filter(|(_, value)| !is_empty(value))
        .map(|(name, value)| (snake_case(&name), go_struct(value)))
        .collect()
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_uppercase() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}

/// Show the cgroup driver of the runtime
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib runtime-config"))]
pub(crate) struct RuntimeConfigArgs {
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Prints the configuration.
pub(crate) async fn runtime_config(args: &RuntimeConfigArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let mut client = cri.runtime.runtime.clone();
    let request = v1::RuntimeConfigRequest {};
    let answer = cri.call("RuntimeConfig", client.runtime_config(request));
    if let Some(linux) = answer.await?.into_inner().linux {
        let driver = linux.cgroup_driver().as_str_name();
        print(&format!("cgroup driver:   {driver}"))?;
    }
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn features_have_names_of_go_structs_and_omit_what_is_empty() {
        let value = json!({"name": "", "features": {"userNamespaces": true, "recursiveReadOnlyMounts": false}});
        let expected = json!({"features": {"user_namespaces": true}});
        assert_eq!(go_struct(value), expected);
    }
}
