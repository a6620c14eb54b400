//! `crib completions`: a script that has a shell ask `crib` what may come next, on standard output.

use std::io::Write as _;

use clap::Args;
use clap_complete::Shell;
use clap_complete::env::Shells;
use crib_base::exit::Exit;

use crate::client::completion::VARIABLE;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  source <(crib completions bash)
  crib completions zsh > ~/.zfunc/_crib
  crib completions fish > ~/.config/fish/completions/crib.fish

The shell asks crib for commands and flags, and for the names of pods, containers, objects and runs.")]
pub(crate) struct CompletionsArgs {
    /// The shell the script is for
    #[arg(default_value = "bash")]
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(args: &CompletionsArgs) -> Exit {
    let shells = Shells::builtins();
    let mut script = Vec::new();
    let written = match shells.completer(&args.shell.to_string()) {
        Some(shell) => shell.write_registration(VARIABLE, "crib", "crib", "crib", &mut script),
        None => Ok(()),
    };
    match written.and_then(|()| std::io::stdout().write_all(&script)) {
        Ok(()) => Exit::Success,
        Err(_) => Exit::Interrupted,
    }
}
