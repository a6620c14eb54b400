//! `/logs/`: serves the files of the machine's log directory.
//!
//! | path | response |
//! |---|---|
//! | a directory | an HTML list of its entries |
//! | a file | its bytes, up to its size when it was opened |
//! | a directory without a trailing slash, a file with one | 301 to the right path |
//! | a symbolic link that leads out of the log directory, a special file | 403 |
//!
//! Unlike the kubelet's, this server does not follow symbolic links out of the directory: a pod that can write there could expose
//! any file of the machine.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet.go (logServer, without enableSystemLogQuery); Go's net/http FileServer.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::path::{Component, Path};

use bytes::Bytes;
use file_tree::part::{find as find_part, open_part};
use futures_util::stream;
use http::header::{CONTENT_LENGTH, HeaderValue, LOCATION};
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::response::{self, Body, ErrorResponse, with_media_type};

/// The size of a read, and the length of the prefix that determines whether a file is text.
const CHUNK: usize = 64 << 10;
const SNIFFED: usize = 512;
/// The maximum number of directory entries in a list.
const MAX_ENTRIES: usize = 100_000;
/// The bytes that stay unescaped in a path.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The object at a path.
enum Found {
    /// The entries of a directory; a subdirectory ends with a slash.
    Names(Vec<String>),
    /// A file, its size, and its first bytes.
    File(File, u64, Vec<u8>),
    /// A redirect to another path.
    Moved(String),
}

/// Serves a path below `/logs/`.
pub(crate) async fn serve(directory: &Path, path: &str) -> Result<Response<Body>, ErrorResponse> {
    if !is_below(path) {
        return Err(failed(&io::ErrorKind::NotFound.into()));
    }
    let (directory, path) = (directory.to_owned(), path.to_owned());
    let finding = tasks::spawn_blocking(move || find(&directory, &path));
    let found = finding.await.map_err(|error| ErrorResponse::internal(error.to_string()))?;
    match found.map_err(|error| failed(&error))? {
        Found::Names(names) => {
            Ok(with_media_type("text/html; charset=utf-8", response::full_body(html(&names))))
        }
        Found::File(file, size, start) => Ok(whole(file, size, start)),
        Found::Moved(location) => {
            let mut response = response::text("");
            *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
            let location = HeaderValue::try_from(location);
            let location = location.map_err(|error| ErrorResponse::internal(error.to_string()))?;
            response.headers_mut().insert(LOCATION, location);
            Ok(response)
        }
    }
}

/// ◆ Whether a path lexically stays below the directory.
fn is_below(path: &str) -> bool {
    let is_name = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    !path.contains('\0') && Path::new(path).components().all(is_name)
}

/// The response to an error, as Go's file server sends it.
fn failed(error: &io::Error) -> ErrorResponse {
    let kind = error.kind();
    let is_none = matches!(
        kind,
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename
    );
    let (status, message) = if is_none {
        (StatusCode::NOT_FOUND, "404 page not found\n")
    } else if kind == io::ErrorKind::PermissionDenied {
        (StatusCode::FORBIDDEN, "403 Forbidden\n")
    } else {
        tracing::warn!(%error, "failed to read a system log");
        (StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error\n")
    };
    ErrorResponse::new(status, message)
}

fn find(directory: &Path, path: &str) -> io::Result<Found> {
    let place = File::from(open_part(&find_part(directory, Path::new(path))?)?);
    let metadata = place.metadata()?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // Open the object that was checked, even if the path now names another one.
    let mut file = File::open(format!("/proc/self/fd/{}", place.as_raw_fd()))?;
    let has_slash = path.is_empty() || path.ends_with('/');
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = utf8_percent_encode(name, ESCAPED);
    if metadata.is_dir() && !has_slash {
        return Ok(Found::Moved(format!("{name}/")));
    }
    if metadata.is_dir() {
        let entries = std::fs::read_dir(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let mut names = Vec::new();
        for entry in entries.take(MAX_ENTRIES) {
            let entry = entry?;
            let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
            names.push(format!("{}{slash}", entry.file_name().to_string_lossy()));
        }
        names.sort();
        return Ok(Found::Names(names));
    }
    if has_slash {
        return Ok(Found::Moved(format!("../{name}")));
    }
    let start = next(&mut file, metadata.len())?;
    Ok(Found::File(file, metadata.len(), start))
}

/// Reads the next bytes of a file, of which `left` remain.
fn next(file: &mut File, left: u64) -> io::Result<Vec<u8>> {
    let size = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
    let mut bytes = vec![0; size];
    let mut length = 0;
    while let Some(free) = bytes.get_mut(length..).filter(|free| !free.is_empty()) {
        match file.read(free)? {
            0 => break,
            more => length += more,
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// The response with a file, whose first bytes are already read.
fn whole(file: File, size: u64, start: Vec<u8>) -> Response<Body> {
    let kind = media_type(&start);
    let left = size.saturating_sub(start.len() as u64);
    let frames = stream::unfold((Some(start), file, left), |(ready, mut file, left)| async move {
        if let Some(start) = ready.filter(|start| !start.is_empty()) {
            return Some((Ok(Frame::data(Bytes::from(start))), (None, file, left)));
        }
        if left == 0 {
            return None;
        }
        let reading = tasks::spawn_blocking(move || {
            let bytes = next(&mut file, left)?;
            Ok::<_, io::Error>((bytes, file))
        });
        let read = reading.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        match read {
            // The file was truncated meanwhile, so the connection is aborted.
            Ok((bytes, _)) if bytes.is_empty() => None,
            Ok((bytes, file)) => {
                let left = left.saturating_sub(bytes.len() as u64);
                Some((Ok(Frame::data(bytes.into())), (None, file, left)))
            }
            Err(error) => {
                tracing::warn!(%error, "failed to read a system log");
                None
            }
        }
    });
    let mut response = with_media_type(kind, StreamBody::new(frames).boxed_unsync());
    response.headers_mut().insert(CONTENT_LENGTH, size.into());
    response
}

/// ◆ The media type: text, unless the bytes contain some that do not occur in text.
fn media_type(start: &[u8]) -> &'static str {
    let is_control = |byte: &u8| matches!(byte, 0x00..=0x08 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    match start.iter().take(SNIFFED).any(is_control) {
        true => "application/octet-stream",
        false => "text/plain; charset=utf-8",
    }
}

/// ◆ The page that Go's file server returns for a directory.
fn html(names: &[String]) -> String {
    let escaped = |name: &str| {
        let name = name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        name.replace('"', "&#34;").replace('\'', "&#39;")
    };
    let line = |name: &String| {
        // A colon in the first segment of a relative URL would be parsed as a scheme.
        let dot = if name.contains(':') { "./" } else { "" };
        format!("<a href=\"{dot}{}\">{}</a>\n", utf8_percent_encode(name, ESCAPED), escaped(name))
    };
    let lines: String = names.iter().map(line).collect();
    format!(
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n{lines}</pre>\n"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use rstest::rstest;

    use super::*;

    async fn got(directory: &Path, path: &str) -> (u16, String) {
        match serve(directory, path).await {
            Ok(response) => {
                let location = response.headers().get(LOCATION).cloned();
                let status = response.status().as_u16();
                let body = response.into_body().collect().await.unwrap().to_bytes();
                let body = String::from_utf8_lossy(&body).into_owned();
                (status, location.map_or(body, |to| to.to_str().unwrap().to_owned()))
            }
            Err(refusal) => (refusal.status.as_u16(), refusal.message),
        }
    }

    #[tokio::test]
    async fn files_and_directories_are_those_of_the_log_directory() {
        let place = tempfile::tempdir().unwrap();
        let logs = place.path().join("log");
        std::fs::create_dir_all(logs.join("pods/a:b")).unwrap();
        std::fs::write(place.path().join("secret"), "secret").unwrap();
        std::fs::write(logs.join("syslog"), "line\n".repeat(50_000)).unwrap();
        std::fs::write(logs.join("<b>.log"), "").unwrap();
        std::fs::write(logs.join("pods/a:b/0.log"), "hello\n").unwrap();
        symlink(logs.join("pods/a:b/0.log"), logs.join("link")).unwrap();
        symlink("../secret", logs.join("out")).unwrap();
        symlink("/", logs.join("root")).unwrap();
        let page = |lines: &str| {
            format!(
                "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n{lines}</pre>\n"
            )
        };
        let all = "<a href=\"%3Cb%3E.log\">&lt;b&gt;.log</a>\n<a href=\"link\">link</a>\n<a href=\"out\">out</a>\n\
                   <a href=\"pods/\">pods/</a>\n<a href=\"root\">root</a>\n<a href=\"syslog\">syslog</a>\n";
        let none = "404 page not found\n".to_owned();
        let forbidden = "403 Forbidden\n".to_owned();
        for (path, expected) in [
            ("", (200, page(all))),
            ("pods/", (200, page("<a href=\"./a%3Ab/\">a:b/</a>\n"))),
            ("pods", (301, "pods/".to_owned())),
            ("pods/a:b/0.log", (200, "hello\n".to_owned())),
            ("pods/./a:b//0.log", (200, "hello\n".to_owned())),
            ("pods/a:b/0.log/", (301, "../0.log".to_owned())),
            ("link", (200, "hello\n".to_owned())),
            ("syslog", (200, "line\n".repeat(50_000))),
            ("<b>.log", (200, String::new())),
            ("none", (404, none.clone())),
            ("syslog/x", (404, none.clone())),
            ("../secret", (404, none.clone())),
            ("pods/../../secret", (404, none.clone())),
            ("/etc/passwd", (404, none.clone())),
            ("a\0b", (404, none)),
            ("out", (403, forbidden.clone())),
            ("root/etc/passwd", (403, forbidden)),
        ] {
            assert_eq!(got(&logs, path).await, expected, "{path:?}");
        }
        let away = got(&place.path().join("none"), "").await;
        assert_eq!(away, (404, "404 page not found\n".to_owned()));
    }

    #[tokio::test]
    async fn fifo_is_rejected_without_blocking() {
        let place = tempfile::tempdir().unwrap();
        let fifo = place.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        assert_eq!(got(place.path(), "fifo").await, (403, "403 Forbidden\n".to_owned()));
    }

    #[rstest]
    #[case(b"", "text/plain; charset=utf-8")]
    #[case("grün\tx\r\n\x1b[0m".as_bytes(), "text/plain; charset=utf-8")]
    #[case(b"\x1f\x8b\x08", "application/octet-stream")]
    fn media_type_is_that_of_the_first_bytes(#[case] start: &[u8], #[case] expected: &str) {
        assert_eq!(media_type(start), expected);
    }
}
