//! `crib completions`: a completion script for a shell, on standard output.

use std::io::Write as _;

use clap::{Args, Command};
use clap_complete::Shell;
use crib_base::exit::Exit;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  source <(crib completions bash)
  crib completions zsh > ~/.zfunc/_crib
  crib completions fish > ~/.config/fish/completions/crib.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell the script is for
    #[arg(default_value = "bash")]
    shell: Shell,
}

/// Prints the script for `command`.
pub(crate) fn run(args: &CompletionsArgs, command: &mut Command) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "crib", &mut script);
    match std::io::stdout().write_all(&script) {
        Ok(()) => Exit::Success,
        Err(_) => Exit::Interrupted,
    }
}
