//! Report files.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;
use compact::Set;
use rustix::fs::{Mode, OFlags};

use crate::client::CallError;

/// A report format, and the file for the report.
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

/// Checks that a file can be written, before a check or benchmark that takes minutes, and leaves it unchanged. For a FIFO, returns
/// the open write end: without a writer, its reader would see end of file before the report is written.
///
/// # Errors
/// A usage error if the file cannot be written.
pub(crate) fn ensure_writable(file: &Path) -> Result<Option<File>, CallError> {
    let opened = match std::fs::metadata(file) {
        Ok(metadata) if metadata.file_type().is_fifo() => open_fifo(file).map(Some),
        Ok(metadata) if metadata.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a socket, not a file"))
        }
        Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => Ok(None),
        Ok(_) => File::options().append(true).open(file).map(|_| None),
        Err(_) => File::create(file).and_then(|_| std::fs::remove_file(file)).map(|()| None),
    };
    opened
        .map_err(|source| CallError::Usage(format!("failed to write {}: {source}", file.display())))
}

/// Opens a FIFO for writing. Fails without a reader instead of blocking.
fn open_fifo(file: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(file, flags, Mode::empty())?;
    rustix::fs::fcntl_setfl(&opened, OFlags::empty())?;
    Ok(File::from(opened))
}

/// Checks that no two reports have the same file.
///
/// # Errors
/// A usage error that names the file.
pub(crate) fn ensure_distinct<'a>(
    files: impl Iterator<Item = &'a PathBuf>,
) -> Result<(), CallError> {
    let mut seen = Set::new();
    for file in files {
        // Devices and pipes, such as /dev/stdout, may be used for several reports.
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
/// Fails if the file cannot be written.
pub(crate) fn write_file(file: &Path, text: &str) -> Result<(), CallError> {
    let is_fifo = file.metadata().is_ok_and(|found| found.file_type().is_fifo());
    let opened = if is_fifo { open_fifo(file) } else { File::create(file) };
    opened
        .and_then(|mut opened| opened.write_all(text.as_bytes()))
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
    fn fifo_without_reader_and_socket_are_not_writable() {
        let directory = tempfile::tempdir().unwrap();
        let (fifo, socket) = (directory.path().join("fifo"), directory.path().join("socket"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RWXU).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (file, why) in [(&fifo, "No such device"), (&socket, "it is a socket, not a file")] {
            let error = ensure_writable(file).unwrap_err().to_string();
            let expected = format!("failed to write {}: {why}", file.display());
            assert!(error.starts_with(&expected), "{error}");
        }
        write_file(&fifo, "text").unwrap_err();

        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut reader = File::from(rustix::fs::open(&fifo, flags, Mode::empty()).unwrap());
        let kept = ensure_writable(&fifo).unwrap();
        assert!(kept.is_some());
        write_file(&fifo, "text").unwrap();
        drop(kept);
        assert_eq!(io::read_to_string(&mut reader).unwrap(), "text");
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
