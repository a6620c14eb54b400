//! Checks the commands in the documents: the command line's definition parses each of them, so that a document cannot contain a
//! command or a flag that does not exist.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser as _};

use super::Cli;

/// Commands that execute another command, which starts at the word `crib`.
const WRAPPERS: [&str; 3] = ["systemd-run", "sudo", "timeout"];
/// Flags of other programs in the text.
const FOREIGN_FLAGS: [&str; 1] = ["--privileged"];

/// A piece of code in a document.
struct Code {
    text: String,
    /// Whether it is part of a sentence, which may name a command without its arguments.
    inline: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The documents in the top-level directory and in `docs`, by path.
fn documents() -> Vec<(String, String)> {
    let mut documents = Vec::new();
    for directory in ["", "docs"] {
        for entry in std::fs::read_dir(root().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|name| name == "md") {
                let name = path.file_name().unwrap().to_string_lossy();
                let name = Path::new(directory).join(&*name).display().to_string();
                documents.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    documents.sort();
    documents
}

/// The lines of code blocks, and the inline code.
fn code(document: &str) -> Vec<Code> {
    let mut found = Vec::new();
    let (mut fenced, mut paragraph) = (false, String::new());
    let mut lines = document.lines().chain([""]);
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if fenced || line.starts_with("    ") {
            let mut text = line.trim().to_owned();
            while let Some(begun) = text.strip_suffix('\\') {
                text = format!("{begun} {}", lines.next().unwrap().trim());
            }
            found.push(Code { text, inline: false });
        } else if line.is_empty() {
            let spans = std::mem::take(&mut paragraph);
            let spans = spans.split('`').skip(1).step_by(2);
            found.extend(spans.map(|text| Code { text: text.to_owned(), inline: true }));
        } else {
            paragraph += line;
            paragraph.push(' ');
        }
    }
    found
}

/// The simple commands in a shell line, as words without quotes. A command ends at an operator, a comment, or two spaces, after
/// which an example has its explanation.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let (mut word, mut quote, mut spaces) = (None::<String>, None, 0);
    for character in line.chars().chain([' ']) {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(character),
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, ' ') => {
                spaces += 1;
                commands.last_mut().unwrap().extend(word.take());
                if spaces == 2 {
                    commands.push(Vec::new());
                }
                continue;
            }
            (None, '|' | ';' | '&' | '<' | '>' | '(' | ')' | '#') => {
                commands.last_mut().unwrap().extend(word.take());
                commands.push(Vec::new());
            }
            (None, _) => word.get_or_insert_default().push(character),
        }
        spaces = 0;
    }
    commands
}

/// The arguments of each `crib` command in a line, including `crib`.
fn crib_commands(line: &str) -> Vec<Vec<String>> {
    let line =
        ["$ ", "- run: "].iter().find_map(|prompt| line.strip_prefix(prompt)).unwrap_or(line);
    // The usage line of a command with subcommands is not a command.
    if line.ends_with("<COMMAND>") {
        return Vec::new();
    }
    let commands = simple_commands(line).into_iter().filter_map(|mut words| {
        let assignments = words.iter().take_while(|word| word.contains('='));
        words.drain(..assignments.count());
        if WRAPPERS.contains(&words.first()?.as_str()) {
            words.drain(..words.iter().position(|word| word == "crib")?);
        }
        // A usage line such as "Usage: crib ps [OPTIONS]" is not a command.
        let synopsis = words.iter().any(|word| word == "[OPTIONS]");
        (words.first()? == "crib" && !synopsis).then_some(words)
    });
    commands.collect()
}

/// Why `crib` rejects a command; `None` if it accepts it.
fn rejection(words: &[String], inline: bool) -> Option<String> {
    match words.get(1).map(String::as_str) {
        // The program's name, or an internal process of the runtime.
        None | Some("__keeper" | "__egress") => return None,
        Some(_) => {}
    }
    match Cli::try_parse_from(Cli::rewritten(words.iter().map(OsString::from).collect())) {
        Ok(mut cli) => {
            let flag = cli.command.inherit(&cli.client).err()?;
            Some(format!("{flag} has no effect before this command"))
        }
        Err(error) => {
            let kind = error.kind();
            let shown = matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            let incomplete = matches!(
                kind,
                ErrorKind::MissingRequiredArgument
                    | ErrorKind::MissingSubcommand
                    | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            );
            let no_value = kind == ErrorKind::InvalidValue
                && error.get(ContextKind::InvalidValue)
                    == Some(&ContextValue::String(String::new()));
            let fine = shown || inline && (incomplete || no_value);
            (!fine).then(|| error.to_string())
        }
    }
}

#[test]
fn documents_show_commands_that_exist() {
    let (mut wrong, mut in_readme, mut all) = (Vec::new(), 0, 0);
    for (name, text) in documents() {
        for Code { text, inline } in code(&text) {
            for words in crib_commands(&text) {
                all += 1;
                in_readme += usize::from(name == "README.md");
                if let Some(why) = rejection(&words, inline) {
                    wrong.push(format!("{name}: {}: {why}", words.join(" ")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Guards against a parser that finds no commands.
    assert!(in_readme >= 20 && all >= 150, "{in_readme} {all}");
}

/// Checks four documents for users. Others are left out because they name flags that crib lacks (docs/crictl.md) or flags of docker
/// (docs/ci.md).
#[test]
fn documents_name_flags_that_exist() {
    let command = Cli::command();
    let commands = std::iter::once(&command).chain(command.get_subcommands());
    let flags: Vec<String> = commands
        .flat_map(|command| command.get_arguments())
        .filter_map(|argument| Some(format!("--{}", argument.get_long()?)))
        .collect();
    let mut named = 0;
    for (name, text) in documents() {
        if !["README.md", "docs/pods.md", "docs/testing.md", "docs/cri.md"].contains(&name.as_str())
        {
            continue;
        }
        for code in code(&text).iter().filter(|code| code.inline) {
            let Some(flag) =
                code.text.split([' ', '=']).next().filter(|word| word.starts_with("--"))
            else {
                continue;
            };
            named += 1;
            assert!(
                flags.iter().any(|known| known == flag) || FOREIGN_FLAGS.contains(&flag),
                "{name}: no command has {flag}"
            );
        }
    }
    assert!(named >= 10, "{named}");
}

#[rstest::rstest]
#[case::prompt("$ crib ps -a", &["crib ps -a"])]
#[case::pipe("generate | crib run - | tail", &["crib run -"])]
#[case::substitution("source <(crib completions bash)", &["crib completions bash"])]
#[case::assignment("A=b crib ps # all", &["crib ps"])]
#[case::wrapper("systemd-run --user crib run a.yaml", &["crib run a.yaml"])]
#[case::quotes("crib exec x sh -c 'a; b'", &["crib exec x sh -c a; b"])]
#[case::explanation("crib run pod.yaml     run a pod", &["crib run pod.yaml"])]
#[case::workflow("- run: crib ps && crib pods", &["crib ps", "crib pods"])]
#[case::others("cargo build --package crib", &[])]
#[case::message("crib: isolation: root", &[])]
fn commands_are_found_in_lines(#[case] line: &str, #[case] expected: &[&str]) {
    let found: Vec<String> = crib_commands(line).iter().map(|words| words.join(" ")).collect();
    assert_eq!(found, expected);
}

#[rstest::rstest]
#[case::command("crib dance", true)]
#[case::flag("crib ps --every", true)]
#[case::arguments("crib run", false)]
fn commands_that_do_not_exist_are_found(#[case] line: &str, #[case] inline: bool) {
    let words = crib_commands(line).remove(0);
    assert!(rejection(&words, inline).is_some());
}

#[test]
fn code_is_found_in_blocks_and_sentences() {
    let document = "Write `crib rmp --all\n--force`, or:\n\n    crib ps \\\n      -a\n\n```sh\ncrib pods\n```\n";
    let found: Vec<(String, bool)> =
        code(document).into_iter().map(|code| (code.text, code.inline)).collect();
    let expected = [("crib rmp --all --force", true), ("crib ps  -a", false), ("crib pods", false)];
    assert_eq!(found, expected.map(|(text, inline)| (text.to_owned(), inline)));
}
