//! Commands for shell completion and manual pages.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_complete::env::Shells;
use clap_mangen::Man;
use crib_base::exit::Exit;

use crate::client::completion::VARIABLE;
use crate::client::{CallError, finish};

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  source <(crib completions bash)
  crib completions zsh > ~/.zfunc/_crib
  crib completions fish > ~/.config/fish/completions/crib.fish

The script completes commands and flags, and the names of pods, containers, objects and runs.")]
pub(crate) struct CompletionsArgs {
    /// Shell to print the script for
    #[arg(default_value = "bash")]
    shell: Shell,
}

/// Prints the script.
pub(crate) fn completions(args: &CompletionsArgs) -> Exit {
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

/// Print one manual page, or write the manual pages of all commands to files
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  crib man exec | man -l -
  crib man --output ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Command whose manual page is printed [default: crib itself]
    command: Option<String>,
    /// Write the manual pages of all commands to this directory
    #[arg(short, long, value_name = "DIR", conflicts_with = "command")]
    output: Option<PathBuf>,
}

/// Prints or writes the manual pages.
pub(crate) fn man(args: &ManArgs, crib: Command) -> Exit {
    finish(async {
        let pages = pages(crib);
        if let Some(directory) = &args.output {
            write_all(directory, &pages)?;
            return Ok(Exit::Success);
        }
        let wanted = match &args.command {
            Some(command) => format!("crib-{command}"),
            None => "crib".to_owned(),
        };
        let page = pages.into_iter().find(|page| name(page) == wanted);
        let page = page.ok_or_else(|| {
            CallError::Usage(format!("no page for {wanted}: `crib --help` lists the commands"))
        })?;
        let text = text(page).map_err(CallError::Output)?;
        io::stdout().write_all(&text).map_err(CallError::Output)?;
        Ok(Exit::Success)
    })
}

/// `crib` and all of its commands.
fn pages(mut crib: Command) -> Vec<Command> {
    // Sets the page name of each command.
    crib.build();
    let commands = crib.get_subcommands().filter(|command| !command.is_hide_set());
    let commands = commands.filter(|command| command.get_name() != "help");
    let commands: Vec<Command> = commands.cloned().collect();
    [vec![crib], commands].concat()
}

fn name(page: &Command) -> &str {
    page.get_display_name().unwrap_or(page.get_name())
}

fn text(page: Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    Man::new(page).render(&mut text)?;
    Ok(text)
}

fn write_all(directory: &Path, pages: &[Command]) -> Result<(), CallError> {
    let write = |page: &Command| {
        file_tree::directory::make(directory, 0o777)?;
        let path = directory.join(format!("{}.1", name(page)));
        fs::write(path, text(page.clone())?)
    };
    for page in pages {
        write(page).map_err(|source| CallError::Io {
            doing: format!("write manual pages to {}", directory.display()),
            source,
        })?;
    }
    Ok(())
}
