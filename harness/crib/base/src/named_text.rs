//! Texts that a user names, read up to a limit: a path may lead to a device that never ends, or to another file than was meant.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// The most that a text may have, in bytes: 64 MiB.
pub const MOST: u64 = 64 << 20;
/// The most that a file may have which a command writes while it runs, such as a recording: 1 GiB.
pub const MOST_WRITTEN: u64 = 1 << 30;

/// Reads a text of at most [`MOST`] bytes.
///
/// # Errors
/// Also if it has more, or is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    read_text_of(path, MOST)
}

/// Like [`read_text`], with another limit.
///
/// # Errors
/// As [`read_text`].
pub fn read_text_of(path: &Path, most: u64) -> io::Result<String> {
    let bytes = read_bytes(open(path)?, most)?;
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

/// Opens a file to read it.
///
/// # Errors
/// For a socket the kernel's words are no help.
pub fn open(path: &Path) -> io::Result<File> {
    File::open(path).map_err(|error| match path.metadata() {
        Ok(found) if found.file_type().is_socket() => {
            io::Error::new(error.kind(), "it is a socket, not a file")
        }
        Ok(_) | Err(_) => error,
    })
}

/// Reads at most that many bytes.
///
/// # Errors
/// Also if there are more.
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
        let error = read_text(&path).map_err(|error| error.to_string());
        assert_eq!(error, Err("it is a socket, not a file".to_owned()));
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
