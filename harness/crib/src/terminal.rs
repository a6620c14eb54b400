//! The terminal during exec and attach: raw mode and window size.

use std::io::{self, BufRead, IsTerminal as _};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Raw mode of the terminal on standard input; dropping it restores the terminal.
#[derive(Debug)]
pub(crate) struct Raw(Option<Termios>);

impl Raw {
    /// Does nothing if standard input is not a terminal.
    pub(crate) fn stdin() -> io::Result<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(Self(None));
        }
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        Ok(Self(Some(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // A closed terminal needs no restoring.
            let _ = tcsetattr(io::stdin(), OptionalActions::Drain, before);
        }
    }
}

/// The maximum length of a hidden line: registry tokens used as passwords have a few KiB.
const LONGEST_HIDDEN: usize = 16 << 10;

/// Reads a line from standard input without echo on a terminal. Reads on another thread, because the line may never end, and
/// signals must be handled meanwhile. Dropping the future restores the terminal.
pub(crate) async fn read_hidden() -> io::Result<String> {
    let stdin = io::stdin();
    let before = match stdin.is_terminal() {
        true => Some(tcgetattr(&stdin)?),
        false => None,
    };
    if let Some(before) = &before {
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&stdin, OptionalActions::Now, &hidden)?;
    }
    let _restore = Raw(before);
    tasks::blocking(|| line_of(io::stdin().lock())).await
}

/// The first line, without its line ending.
fn line_of(from: impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    // Includes space for the line ending.
    from.take(LONGEST_HIDDEN as u64 + 2).read_until(b'\n', &mut line)?;
    while matches!(line.last(), Some(b'\r' | b'\n')) {
        line.pop();
    }
    if line.len() > LONGEST_HIDDEN {
        let message = format!("the line has more than {} KiB", LONGEST_HIDDEN >> 10);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    String::from_utf8(line)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

/// The size of the terminal on standard output: its initial size, and changes.
#[derive(Debug)]
pub(crate) struct TerminalSize {
    changes: Signal,
    reported: bool,
}

impl TerminalSize {
    /// Starts to receive changes.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self { changes: signal(SignalKind::window_change())?, reported: false })
    }

    /// The next size as columns and rows. Cancel-safe. Pending forever without a terminal.
    pub(crate) async fn next(&mut self) -> (u16, u16) {
        loop {
            if self.reported && self.changes.recv().await.is_none() {
                return std::future::pending().await;
            }
            self.reported = true;
            if let Ok(size) = tcgetwinsize(io::stdout())
                && size.ws_col > 0
                && size.ws_row > 0
            {
                return (size.ws_col, size.ws_row);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::line("secret\nmore\n", "secret")]
    #[case::carriage_return("secret\r\n", "secret")]
    #[case::no_line_end("secret", "secret")]
    #[case::nothing("", "")]
    fn hidden_line_ends_at_line_feed(#[case] text: &str, #[case] line: &str) {
        assert_eq!(line_of(text.as_bytes()).unwrap(), line);
    }

    #[test]
    fn hidden_line_has_a_limit() {
        let longest = "x".repeat(LONGEST_HIDDEN);
        for end in ["", "\n", "\r\n"] {
            assert_eq!(line_of(format!("{longest}{end}").as_bytes()).unwrap(), longest);
        }
        for text in [format!("{longest}x\n"), format!("{longest}xyz")] {
            let error = line_of(text.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), "the line has more than 16 KiB");
        }
        let endless = io::BufReader::new(io::repeat(b'x'));
        assert_eq!(line_of(endless).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(line_of(&b"\xff\n"[..]).unwrap_err().to_string(), "it is not UTF-8");
    }
}
