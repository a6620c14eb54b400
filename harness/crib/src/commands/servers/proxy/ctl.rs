//! `crib proxy ctl`: lists and changes the rules of a running proxy.

use crib_base::args::UnixEndpoint;
use crib_base::report::print_error;
use proxy::Fault;
use proxy::control::{Request, send_request};

use crate::commands::prelude::*;

/// List, enable, disable, add and remove the rules of a running proxy
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crib proxy ctl --control /tmp/c.sock list
  crib proxy ctl --control /tmp/c.sock off slow-stop
  crib proxy ctl --control /tmp/c.sock add 'full: PullImage fail UNKNOWN'
  crib proxy ctl --control /tmp/c.sock remove full

Each command ends by printing all rules, one JSON object per line. A rule's object has the rule's name or number, its \
state (on or off), the numbers of matching and of affected calls, and its text. Switching on a rule that was off resets \
the rule's counters. A new rule is added after the others; without a name, it gets the next number.

Exit codes:
    0  success
    1  the proxy does not answer, or has no such rule
    2  bad usage, or the rule is invalid")]
pub(super) struct CtlArgs {
    /// The proxy's control socket
    #[arg(long, value_name = "unix:///PATH")]
    control: UnixEndpoint,
    #[command(subcommand)]
    command: CtlCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
enum CtlCommand {
    /// List the rules
    List,
    /// Switch rules on
    On {
        /// Name or number of the rules
        rule: String,
    },
    /// Switch rules off
    Off {
        /// Name or number of the rules
        rule: String,
    },
    /// Add a rule
    Add {
        /// The rule, in the form of --fault
        rule: Fault,
    },
    /// Remove rules
    Remove {
        /// Name or number of the rules
        rule: String,
    },
}

/// Sends a request to the proxy, and prints its rules.
pub(super) async fn run(args: &CtlArgs) -> Result<Exit, CallError> {
    let request = match &args.command {
        CtlCommand::List => Request::List {},
        CtlCommand::On { rule } => Request::On { rule: rule.clone() },
        CtlCommand::Off { rule } => Request::Off { rule: rule.clone() },
        CtlCommand::Add { rule } => Request::Add { rule: rule.text().to_owned() },
        CtlCommand::Remove { rule } => Request::Remove { rule: rule.clone() },
    };
    let rules = match send_request(args.control.path(), &request).await {
        Ok(rules) => rules,
        Err(error) => {
            print_error(&error);
            return Ok(Exit::Failed);
        }
    };
    for rule in rules {
        // Cannot fail: its keys are strings.
        print_json(&serde_json::to_string(&rule).unwrap_or_default())?;
    }
    Ok(Exit::Success)
}
