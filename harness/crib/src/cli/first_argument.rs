//! Where the flags of `crib exec` end ◆
//!
//! As with crictl, the flags of the executed command need no `--`. If a container is given, clap separates them: `crib exec web ls
//! -l`. If a filter is given, the command is the first argument, and `--` is inserted before it: `crib exec --name web ls -l`.

use std::ffi::OsString;

use clap::Command;

use crate::client::containers::FILTERS;

/// Inserts `--` before the command to execute if filters select the containers.
pub(crate) fn separate(mut arguments: Vec<OsString>, definition: &mut Command) -> Vec<OsString> {
    if !arguments.iter().any(|word| word == "exec") {
        return arguments;
    }
    definition.build();
    let program = 1;
    let Some((command, _)) =
        first_argument(arguments.get(program..).unwrap_or_default(), definition)
    else {
        return arguments;
    };
    let flags = program + command + 1;
    let exec = definition
        .find_subcommand("exec")
        .filter(|_| arguments.get(flags - 1).is_some_and(|word| word == "exec"));
    if let Some(exec) = exec
        && let Some((first, true)) =
            first_argument(arguments.get(flags..).unwrap_or_default(), exec)
    {
        arguments.insert(flags + first, "--".into());
    }
    arguments
}

/// The index of the first argument that is neither a flag nor a flag's value, and whether a filter precedes it. `None` if there is
/// no such argument, if `--` precedes it, or if it is ambiguous.
fn first_argument(arguments: &[OsString], command: &Command) -> Option<(usize, bool)> {
    let (mut at, mut filtered) = (0, false);
    loop {
        let word = arguments.get(at)?.to_str()?;
        let mut consumed = 1;
        let mut seen = |flag: &clap::Arg, has_value: bool| {
            filtered |= FILTERS.contains(&flag.get_id().as_str());
            consumed += usize::from(flag.get_action().takes_values() && !has_value);
        };
        if word == "--" {
            return None;
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let flag = command.get_arguments().find(|flag| flag.get_long() == Some(name))?;
            seen(flag, value.is_some());
        } else if let Some(shorts) = word.strip_prefix('-').filter(|shorts| !shorts.is_empty()) {
            for (place, short) in shorts.char_indices() {
                let flag = command.get_arguments().find(|flag| flag.get_short() == Some(short))?;
                let last = place + short.len_utf8() == shorts.len();
                seen(flag, !last);
                if flag.get_action().takes_values() {
                    break;
                }
            }
        } else {
            return Some((at, filtered));
        }
        at += consumed;
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::filter("crib exec --name web ls -l", "crib exec --name web -- ls -l")]
    #[case::value_in_word("crib exec --name=web ls -l", "crib exec --name=web -- ls -l")]
    #[case::short_flags("crib exec -xql ls -l", "crib exec -xql -- ls -l")]
    #[case::short_value("crib exec -n2 ls -n 3", "crib exec -n2 -- ls -n 3")]
    #[case::flags_before("crib -r unix:///s exec -sl ls", "crib -r unix:///s exec -sl -- ls")]
    #[case::separated("crib exec -l -- ls -l", "crib exec -l -- ls -l")]
    #[case::container("crib exec web ls -l", "crib exec web ls -l")]
    #[case::flags_after("crib exec pod/web -c main -- ls", "crib exec pod/web -c main -- ls")]
    #[case::no_command("crib exec -l", "crib exec -l")]
    #[case::unknown_flag("crib exec --dance ls", "crib exec --dance ls")]
    #[case::other_command("crib ps --name web ls", "crib ps --name web ls")]
    #[case::nothing("crib", "crib")]
    fn separator_precedes_the_command_of_filtered_exec(#[case] line: &str, #[case] expected: &str) {
        let arguments = line.split(' ').map(OsString::from).collect();
        let separated = separate(arguments, &mut crate::cli::Cli::command());
        let separated: Vec<String> =
            separated.into_iter().map(|word| word.display().to_string()).collect();
        assert_eq!(separated.join(" "), expected);
    }
}
