//! The live view on the terminal of standard error.
//!
//! The cursor rests at the first character of the picture. So whatever the terminal does on its own, a `^C` or a line that
//! a new width breaks in two, happens inside or below the picture, and clearing from the cursor to the end removes all of it,
//! but for rows that the terminal has moved out of the screen and into its history.

use std::io::{self, Write as _};

use rustix::termios::tcgetwinsize;

use super::view::Size;

/// What a terminal has that does not tell its size.
const UNKNOWN: Size = Size {
    columns: 80,
    rows: 24,
};

/// The picture that is on the terminal.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    /// The size that the terminal had when the picture was drawn.
    drawn: Option<Size>,
}

impl Screen {
    /// The present size of the terminal.
    pub(crate) fn size() -> Size {
        match tcgetwinsize(io::stderr()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => Size {
                columns: size.ws_col.into(),
                rows: size.ws_row.into(),
            },
            Ok(_) | Err(_) => UNKNOWN,
        }
    }

    /// Replaces the picture by one for a terminal of this size.
    pub(crate) fn draw(&mut self, lines: &[String], size: Size) {
        // A terminal remembers of its rows that a new width broke a line there, also when something else is written to them.
        let resized = self.drawn.is_some_and(|drawn| drawn != size);
        let clear = if resized { CLEAR } else { "" };
        self.drawn = Some(size);
        write(&(clear.to_owned() + &picture(lines)));
    }

    /// Removes the picture, so that lines can be printed in its place.
    pub(crate) fn clear(&mut self) {
        if self.drawn.take().is_some() {
            write(CLEAR);
        }
    }
}

/// Clears to the end of the screen (ECMA-48 ED) from the second column on, then the first row (EL): a clearing that begins
/// in the upper left corner makes tmux keep what was there in its history.
const CLEAR: &str = "\r \x1b[J\r\x1b[2K";

/// The bytes that draw lines below the cursor and leave it where it was: each line over what was there, without wrapping
/// (DECAWM), in case the terminal has become narrower since it was asked for its size.
fn picture(lines: &[String]) -> String {
    let mut text = "\r\x1b[?7l".to_owned();
    text.push_str(&lines.join("\x1b[K\r\n"));
    text.push_str("\x1b[J\x1b[?7h\r");
    if lines.len() > 1 {
        text.push_str(&format!("\x1b[{}A", lines.len() - 1));
    }
    text
}

/// Writes to the terminal at once; ignores one that is gone.
fn write(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_ends_where_it_begins() {
        let lines = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        assert_eq!(
            picture(&lines),
            "\r\x1b[?7la\x1b[K\r\nb\x1b[K\r\nc\x1b[J\x1b[?7h\r\x1b[2A"
        );
        assert_eq!(picture(&lines[..1]), "\r\x1b[?7la\x1b[J\x1b[?7h\r");
    }
}
