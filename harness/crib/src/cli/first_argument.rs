//! Where the flags of `crib exec` end ◆
//!
//! As with crictl, the flags of the executed command need no `--`. If a container is given, clap separates them: `crib exec web ls
//! -l`. If a filter is given, the command is the first argument, and `--` is inserted before it: `crib exec --name web ls -l`.
//!
//! `-n` is a number with crictl, and a namespace with kubectl: `crib exec -n shop web ls`.

use std::ffi::OsString;

use clap::{Arg, Command};

use super::boolean_flags::is_called;
use crate::client::containers::FILTERS;

/// The flag that replaces kubectl's `-n`.
const NAMESPACE: &str = "--pod-namespace";

/// Inserts `--` before the command to execute if filters select the containers, and replaces kubectl's `-n`.
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
    let Some(exec) = exec else {
        return arguments;
    };
    replace_namespace(&mut arguments, flags, exec);
    if let Some((first, true)) = first_argument(arguments.get(flags..).unwrap_or_default(), exec) {
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
        if word == "--" {
            return None;
        }
        if !is_flag(word) {
            return Some((at, filtered));
        }
        let flags = flags_in(word, command)?;
        filtered |= flags.iter().any(is_filter);
        at += consumed(&flags);
    }
}

/// Replaces a `-n` whose value is not a number, unless it belongs to the command to execute.
fn replace_namespace(arguments: &mut Vec<OsString>, first: usize, exec: &Command) {
    let (mut at, mut filtered, mut positionals) = (first, false, 0);
    while let Some(word) = arguments.get(at).and_then(|word| word.to_str()) {
        if word == "--" {
            return;
        }
        if !is_flag(word) {
            positionals += 1;
            // The command begins after the container, or after the filters.
            if filtered || positionals > 1 {
                return;
            }
            at += 1;
            continue;
        }
        let Some(flags) = flags_in(word, exec) else {
            return;
        };
        let until = at + consumed(&flags);
        let short = flags
            .last()
            .filter(|(flag, _)| flag.get_short() == Some('n') && !word.starts_with("--"));
        let value = short.and_then(|(_, joined)| {
            joined.or_else(|| arguments.get(at + 1).and_then(|next| next.to_str()))
        });
        let value = value.map(|value| value.strip_prefix('=').unwrap_or(value));
        if let Some(namespace) = value.filter(|value| value.parse::<usize>().is_err()) {
            let replacement = OsString::from(format!("{NAMESPACE}={namespace}"));
            // The other flags of a word such as `-itn`.
            let others: String = word.chars().take(flags.len()).collect();
            let others = (flags.len() > 1).then(|| OsString::from(others));
            arguments.splice(at..until, others.into_iter().chain([replacement]));
            return;
        }
        filtered |= flags.iter().any(is_filter);
        at = until;
    }
}

/// A flag, and its value in the same word.
type Flag<'c, 'w> = (&'c Arg, Option<&'w str>);

fn is_flag(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-')
}

/// The flags in a word: one long flag, or short flags. `None` if one is unknown.
fn flags_in<'c, 'w>(word: &'w str, command: &'c Command) -> Option<Vec<Flag<'c, 'w>>> {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) =
            long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        return Some(vec![(find(command, |flag| is_called(flag, name))?, value)]);
    }
    let mut flags = Vec::new();
    let mut shorts = word.chars();
    shorts.next();
    while let Some(short) = shorts.next() {
        let flag = find(command, |flag| flag.get_short() == Some(short))?;
        let rest = shorts.as_str();
        let takes_value = flag.get_action().takes_values();
        flags.push((flag, (takes_value && !rest.is_empty()).then_some(rest)));
        if takes_value {
            break;
        }
    }
    Some(flags)
}

fn find(command: &Command, is_it: impl Fn(&Arg) -> bool) -> Option<&Arg> {
    command.get_arguments().find(|flag| is_it(flag))
}

/// The number of words that the flags of a word and their value consume.
fn consumed(flags: &[Flag<'_, '_>]) -> usize {
    let takes_next = flags
        .last()
        .is_some_and(|(flag, value)| flag.get_action().takes_values() && value.is_none());
    1 + usize::from(takes_next)
}

fn is_filter((flag, _): &Flag<'_, '_>) -> bool {
    FILTERS.contains(&flag.get_id().as_str())
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
    #[case::alias("crib exec --stdin --name web ls -l", "crib exec --stdin --name web -- ls -l")]
    #[case::namespace("crib exec -n shop web ls", "crib exec --pod-namespace=shop web ls")]
    #[case::joined_namespace("crib exec -nshop web ls", "crib exec --pod-namespace=shop web ls")]
    #[case::namespace_and_flags(
        "crib exec -itn shop web -- ls",
        "crib exec -it --pod-namespace=shop web -- ls"
    )]
    #[case::namespace_after(
        "crib exec web -n shop -c a -- ls -n b",
        "crib exec web --pod-namespace=shop -c a -- ls -n b"
    )]
    #[case::flag_of_command("crib exec web head -n x", "crib exec web head -n x")]
    #[case::flag_of_filtered("crib exec -l head -n x", "crib exec -l -- head -n x")]
    #[case::nothing("crib", "crib")]
    fn flags_of_exec_are_separated_from_the_command(#[case] line: &str, #[case] expected: &str) {
        let arguments = line.split(' ').map(OsString::from).collect();
        let separated = separate(arguments, &mut crate::cli::Cli::command());
        let separated: Vec<String> =
            separated.into_iter().map(|word| word.display().to_string()).collect();
        assert_eq!(separated.join(" "), expected);
    }
}
