//! Texts that a user names, read up to a limit: a path may lead to an endless device, or to the wrong file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// The limit on a text, in bytes: 64 MiB.
pub const MOST: u64 = 64 << 20;
/// The limit on a file that a command writes while it runs, such as a recording: 1 GiB.
pub const MOST_WRITTEN: u64 = 1 << 30;

/// Reads a text of at most [`MOST`] bytes.
///
/// # Errors
/// If the file cannot be read, exceeds the limit, or is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    read_text_of(path, MOST)
}

/// Like [`read_text`], with another limit.
///
/// # Errors
/// The same as for [`read_text`].
pub fn read_text_of(path: &Path, most: u64) -> io::Result<String> {
    text(read_bytes(open(path)?, most)?)
}

/// Reads a file of at most `most` bytes without blocking, for a daemon that reads it while serving. A FIFO is refused, because
/// reading it could wait for a writer forever.
///
/// # Errors
/// If the file cannot be read, exceeds the limit, or is a FIFO.
pub fn read_nonblocking(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let file = File::from(opened.map_err(|errno| explain(path, errno.into()))?);
    if file.metadata()?.file_type().is_fifo() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a FIFO, not a file"));
    }
    read_bytes(file, most)
}

/// Like [`read_nonblocking`], for a text.
///
/// # Errors
/// The same as for [`read_nonblocking`], or if the file is not UTF-8.
pub fn read_text_nonblocking(path: &Path, most: u64) -> io::Result<String> {
    text(read_nonblocking(path, most)?)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

/// Opens a file to read it. Opening a FIFO waits for a writer.
///
/// # Errors
/// If it cannot be opened. For a socket the error replaces the kernel's misleading message.
pub fn open(path: &Path) -> io::Result<File> {
    File::open(path).map_err(|error| explain(path, error))
}

fn explain(path: &Path, error: io::Error) -> io::Error {
    match path.metadata() {
        Ok(found) if found.file_type().is_socket() => {
            io::Error::new(error.kind(), "it is a socket, not a file")
        }
        Ok(_) | Err(_) => error,
    }
}

/// Reads at most `most` bytes.
///
/// # Errors
/// If reading fails, or there are more bytes.
pub fn read_bytes(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let message = format!("it has more than {} MiB", most >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_named_as_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        for read in [read_text(&path), read_text_nonblocking(&path, MOST)] {
            let error = read.map_err(|error| error.to_string());
            assert_eq!(error, Err("it is a socket, not a file".to_owned()));
        }
    }

    #[test]
    fn nonblocking_read_refuses_fifo_and_endless_device() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RWXU).unwrap();
        let read =
            |path: &Path| read_text_nonblocking(path, 1 << 20).map_err(|error| error.to_string());
        assert_eq!(read(&path), Err("it is a FIFO, not a file".to_owned()));
        assert_eq!(read(Path::new("/dev/zero")), Err("it has more than 1 MiB".to_owned()));
        assert_eq!(read(Path::new("/dev/null")), Ok(String::new()));
        let file = directory.path().join("file");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read(&file), Ok("text".to_owned()));
        let missing = read_nonblocking(&directory.path().join("missing"), MOST);
        assert_eq!(missing.map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn text_ends_at_the_limit() {
        assert_eq!(read_bytes(&b"abc"[..], 3).ok(), Some(b"abc".to_vec()));
        let error = read_bytes(io::repeat(b'x'), 2 << 20).map_err(|error| error.to_string());
        assert_eq!(error, Err("it has more than 2 MiB".to_owned()));
        let error = read_text(Path::new("/dev/zero")).map_err(|error| error.to_string());
        assert_eq!(error, Err("it has more than 64 MiB".to_owned()));
    }
}
