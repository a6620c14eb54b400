//! ◆ Files of environment variables (`fileKeyRef`).
//!
//! Source: Kubernetes 1.36, pkg/kubelet/util/env: a strict subset of shell syntax. A value is in single quotes and may have several
//! lines.

use std::collections::{BTreeMap, BTreeSet};

/// The text is not a file of environment variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not NAME='value'")]
pub(super) struct FileError {
    line: usize,
}

/// The maximum length of a line.
const LINE: usize = 64 * 1024;

const BLANK: [char; 2] = [' ', '\t'];

/// The wanted variables of a file up to its first error.
#[derive(Debug, Default)]
pub(super) struct FileVariables {
    values: BTreeMap<String, String>,
    error: Option<FileError>,
}

/// Parses the text of a file. Only the wanted variables are kept: a file may have a million others.
pub(super) fn parse(text: &str, wanted: &BTreeSet<&str>) -> FileVariables {
    let mut variables = FileVariables::default();
    let error = variables.read(text, wanted).err();
    FileVariables { error, ..variables }
}

impl FileVariables {
    /// The value of a variable; empty if the file does not have it. An error in the text after the variable has no effect.
    pub(super) fn value(&self, key: &str) -> Result<&str, FileError> {
        match (self.values.get(key), self.error) {
            (Some(value), _) => Ok(value),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(""),
        }
    }

    fn read(&mut self, text: &str, wanted: &BTreeSet<&str>) -> Result<(), FileError> {
        let mut lines = text
            .strip_suffix('\n')
            .unwrap_or(text)
            .split('\n')
            .enumerate()
            .map(|(at, line)| {
                let line = line.strip_suffix('\r').unwrap_or(line);
                let fits = line.len() < LINE;
                fits.then_some(line).ok_or(FileError { line: at + 1 })
            })
            .zip(1..);
        while let Some((line, at)) = lines.next() {
            let line = line?.trim_start_matches(BLANK);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = FileError { line: at };
            let (name, value) = line.split_once('=').ok_or(wrong)?;
            if name.is_empty() || name.ends_with(BLANK) {
                return Err(wrong);
            }
            if value.starts_with(BLANK) {
                // A shell parses this as an empty value and a command.
                if wanted.contains(name) {
                    self.add(name, String::new());
                }
                continue;
            }
            let mut rest = value.strip_prefix('\'').ok_or(wrong)?;
            let mut value = String::new();
            let after = loop {
                if let Some((last, after)) = rest.split_once('\'') {
                    value.push_str(last);
                    break after.trim_start_matches(BLANK);
                }
                value.push_str(rest);
                value.push('\n');
                rest = lines.next().ok_or(wrong)?.0?;
            };
            if !after.is_empty() && !after.starts_with('#') {
                return Err(wrong);
            }
            if wanted.contains(name) {
                self.add(name, value);
            }
        }
        Ok(())
    }

    /// The first value of a variable counts.
    fn add(&mut self, name: &str, value: String) {
        self.values.entry(name.to_owned()).or_insert(value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("A='1'\nB='2' # two\n", "B", Some("2"))]
    #[case("  # comment\n\n\tA='one\ntwo'\n", "A", Some("one\ntwo"))]
    #[case("A= 'x'\n", "A", Some(""))]
    #[case("A='1'\nnonsense", "A", Some("1"))]
    #[case("nonsense\nA='1'", "A", None)]
    #[case("A ='1'", "A", None)]
    #[case("A=1", "A", None)]
    #[case("A='1", "A", None)]
    #[case("A='1'x", "B", None)]
    #[case("", "A", Some(""))]
    #[case("A='1'\nA='2'", "A", Some("1"))]
    fn value_is_read_strictly(#[case] text: &str, #[case] key: &str, #[case] read: Option<&str>) {
        assert_eq!(parse(text, &BTreeSet::from([key])).value(key).ok(), read);
    }

    #[test]
    fn only_wanted_variables_are_kept() {
        let wanted = BTreeSet::from(["B", "C"]);
        let variables = parse("A='1'\nB='2'\nC= x\nD= y\n", &wanted);
        let expected = [("B", "2"), ("C", "")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables.values, BTreeMap::from(expected));
    }

    proptest! {
        #[test]
        fn value_never_panics(text in ".*", key in ".*") {
            let _ = parse(&text, &BTreeSet::from([key.as_str()])).value(&key);
        }
    }
}
