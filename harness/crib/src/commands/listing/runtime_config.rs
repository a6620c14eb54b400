//! `crib runtime-config`: what a runtime tells of its configuration.

use crate::commands::prelude::*;

/// Show the runtime's configuration: its cgroup driver
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib runtime-config"))]
pub(crate) struct RuntimeConfigArgs {
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Shows it.
pub(crate) async fn run(args: &RuntimeConfigArgs) -> Result<Exit, CallError> {
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
