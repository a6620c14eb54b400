//! Boolean flags with a value ◆
//!
//! kubectl and crictl also accept a value after `=`: `--no-headers=true` means `--no-headers`, and `--watch=false` means no flag.
//! clap accepts none for such flags, so they are rewritten before it parses them.

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgAction, Command};

/// Rewrites boolean flags with a value to flags without one. Keeps the arguments of a command to execute.
pub(crate) fn without_values(arguments: Vec<OsString>, definition: &mut Command) -> Vec<OsString> {
    if !arguments.iter().any(|word| has_boolean(word)) {
        return arguments;
    }
    definition.build();
    let mut command: &Command = definition;
    let mut positionals = 0;
    let mut words = arguments.into_iter();
    let mut rewritten: Vec<OsString> = words.next().into_iter().collect();
    while let Some(word) = words.next() {
        // A flag is always UTF-8.
        let text = word.to_str().unwrap_or_default().to_owned();
        if let Some(long) = text.strip_prefix("--").filter(|long| !long.is_empty()) {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let flag = command.get_arguments().find(|flag| is_called(flag, name));
            match (flag, value.and_then(boolean)) {
                (Some(flag), Some(is_set)) if is_boolean(flag) => {
                    rewritten.extend(is_set.then(|| OsString::from(format!("--{name}"))));
                }
                (flag, _) => {
                    rewritten.push(word);
                    let takes_next = value.is_none() && flag.is_some_and(takes_next_word);
                    rewritten.extend(if takes_next { words.next() } else { None });
                }
            }
            continue;
        }
        let shorts = text.strip_prefix('-').filter(|shorts| !shorts.is_empty());
        let takes_next = shorts.is_some_and(|shorts| last_takes_next_word(shorts, command));
        rewritten.push(word);
        if text == "--" {
            break;
        } else if shorts.is_some() {
            rewritten.extend(if takes_next { words.next() } else { None });
        } else if let Some(subcommand) = command.find_subcommand(&text).filter(|_| positionals == 0)
        {
            command = subcommand;
        } else {
            let argument = command.get_positionals().nth(positionals);
            if argument.is_some_and(Arg::is_trailing_var_arg_set) {
                break;
            }
            positionals += 1;
        }
    }
    rewritten.extend(words);
    rewritten
}

/// Whether an argument may be a boolean flag with a value.
fn has_boolean(word: &OsStr) -> bool {
    let flag = word.to_str().and_then(|word| word.strip_prefix("--")?.split_once('='));
    flag.is_some_and(|(_, value)| boolean(value).is_some())
}

/// The values that Go's strconv.ParseBool accepts.
fn boolean(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn is_boolean(flag: &Arg) -> bool {
    matches!(flag.get_action(), ArgAction::SetTrue)
}

/// Whether this is the name of a long flag, or an alias of it.
pub(super) fn is_called(flag: &Arg, name: &str) -> bool {
    let aliases = flag.get_all_aliases().unwrap_or_default();
    flag.get_long() == Some(name) || aliases.contains(&name)
}

fn takes_next_word(flag: &Arg) -> bool {
    flag.get_action().takes_values() && !flag.is_require_equals_set()
}

/// Whether the last of these short flags takes the next word as its value: `-An shop`, but not `-nshop`.
fn last_takes_next_word(shorts: &str, command: &Command) -> bool {
    for (place, short) in shorts.char_indices() {
        let flag = command.get_arguments().find(|flag| flag.get_short() == Some(short));
        if let Some(flag) = flag.filter(|flag| flag.get_action().takes_values()) {
            return takes_next_word(flag) && place + short.len_utf8() == shorts.len();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::set("crib get pods --no-headers=true", "crib get pods --no-headers")]
    #[case::not_set("crib get pods --watch=false -A", "crib get pods -A")]
    #[case::numbers("crib logs web --follow=1 --prefix=0", "crib logs web --follow")]
    #[case::alias("crib attach --stdin=true web", "crib attach --stdin web")]
    #[case::nested(
        "crib rollout status deploy/web --watch=false",
        "crib rollout status deploy/web --watch=false"
    )]
    #[case::value("crib get pods -l a --sort-by=true", "crib get pods -l a --sort-by=true")]
    #[case::value_of_flag("crib get pods -n --watch=true", "crib get pods -n --watch=true")]
    #[case::value_of_long(
        "crib get pods --namespace --watch=true",
        "crib get pods --namespace --watch=true"
    )]
    #[case::joined_value("crib get pods -nshop --watch=true", "crib get pods -nshop --watch")]
    #[case::other_value("crib get pods --watch=yes", "crib get pods --watch=yes")]
    #[case::unknown("crib get pods --dance=true", "crib get pods --dance=true")]
    #[case::before_command("crib exec web --tty=false -- ls", "crib exec web -- ls")]
    #[case::of_command("crib exec web ls --tty=true", "crib exec web ls --tty=true")]
    #[case::behind_separator("crib exec web -- ls --tty=true", "crib exec web -- ls --tty=true")]
    #[case::nothing("crib", "crib")]
    fn boolean_values_are_removed(#[case] line: &str, #[case] expected: &str) {
        let arguments = line.split(' ').map(OsString::from).collect();
        let rewritten = without_values(arguments, &mut crate::cli::Cli::command());
        let rewritten: Vec<String> =
            rewritten.into_iter().map(|word| word.display().to_string()).collect();
        assert_eq!(rewritten.join(" "), expected);
    }
}
