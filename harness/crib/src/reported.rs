//! The files that reports are written to.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;
use compact::Set;

use crate::client::CallError;

/// A report, and the file that it is written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination<Form> {
    pub(crate) form: Form,
    pub(crate) file: PathBuf,
}

impl<Form: ValueEnum> FromStr for Destination<Form> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = text.split_once('=').filter(|(_, file)| !file.is_empty());
        let form = form.and_then(|(form, file)| Some((Form::from_str(form, false).ok()?, file)));
        if let Some((form, file)) = form {
            return Ok(Self { form, file: file.into() });
        }
        let forms = Form::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let mut forms: Vec<String> =
            forms.map(|form| format!("{}=FILE", form.get_name())).collect();
        let last = forms.pop().unwrap_or_default();
        Err(format!("expected {} or {last}, not {text:?}", forms.join(", ")))
    }
}

/// Fails where a file cannot be written, before what is to be reported takes minutes. It leaves the file as it is.
///
/// # Errors
/// Bad usage: the file cannot be written.
pub(crate) fn ensure_writable(file: &Path) -> Result<(), CallError> {
    let opened = match std::fs::metadata(file) {
        // Opening a FIFO would wait for its reader, and end what it reads.
        Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => Ok(()),
        Ok(_) => File::options().append(true).open(file).map(drop),
        Err(_) => File::create(file).and_then(|_| std::fs::remove_file(file)),
    };
    opened
        .map_err(|source| CallError::Usage(format!("failed to write {}: {source}", file.display())))
}

/// Fails where two reports would go to one file.
///
/// # Errors
/// Bad usage: the file that is named twice.
pub(crate) fn ensure_distinct<'a>(
    files: impl Iterator<Item = &'a PathBuf>,
) -> Result<(), CallError> {
    let mut seen = Set::new();
    for file in files {
        // What is no file takes any number of them, as /dev/stdout.
        let is_special = file.metadata().is_ok_and(|found| !found.is_file());
        if !is_special && !seen.insert(std::path::absolute(file).unwrap_or_else(|_| file.clone())) {
            let message = format!("two outputs have the same file {}", file.display());
            return Err(CallError::Usage(message));
        }
    }
    Ok(())
}

/// Writes a report.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_file(file: &Path, text: &str) -> Result<(), CallError> {
    std::fs::write(file, text)
        .map_err(|source| CallError::Io { doing: format!("write {}", file.display()), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, ValueEnum)]
    enum Form {
        Json,
        Markdown,
        Html,
    }

    #[test]
    fn report_names_form_and_file() {
        let expected = Destination { form: Form::Markdown, file: "a=b.md".into() };
        assert_eq!("markdown=a=b.md".parse(), Ok(expected));
        for bad in ["json", "json=", "junit=x", ""] {
            let error = bad.parse::<Destination<Form>>().unwrap_err();
            let expected = format!("expected json=FILE, markdown=FILE or html=FILE, not {bad:?}");
            assert_eq!(error, expected);
        }
    }
}
