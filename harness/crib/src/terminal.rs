//! The caller's terminal during exec and attach: raw mode and window size changes.

use std::io::{self, IsTerminal as _};

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
            // A terminal that is gone needs nothing.
            let _ = tcsetattr(io::stdin(), OptionalActions::Drain, before);
        }
    }
}

/// Reads a line from standard input; a terminal does not show what is typed.
pub(crate) fn read_hidden() -> io::Result<String> {
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
    // Dropping it restores the terminal.
    let _restore = Raw(before);
    let mut line = String::new();
    stdin.read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// Tells the size of the terminal of standard output: at first, and when it changes.
#[derive(Debug)]
pub(crate) struct TerminalSize {
    changes: Signal,
    reported: bool,
}

impl TerminalSize {
    /// Changes are heard from now on.
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
