//! The live view on the terminal of standard error.
//!
//! The cursor rests at the first character of the picture. Whatever the terminal prints on its own, such as `^C` or a line that a
//! new width wraps, appears inside or below the picture. Clearing from the cursor to the end of the screen removes all of it,
//! except for rows that the terminal has moved into its scrollback.
//!
//! A program may learn of a new size after the terminal has changed it: tmux delays the signal by a quarter of a second. A picture
//! for the old size must not scroll a smaller screen, which would move the first rows of the picture into the scrollback.

use std::io::{self, Write as _};

use rustix::termios::tcgetwinsize;

use crate::output::view::Size;

/// The size of a terminal that does not report it.
const UNKNOWN: Size = Size { columns: 80, rows: 24 };

/// The picture on the terminal.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    drawn: Option<DrawnFrame>,
}

#[derive(Debug, Clone, Copy)]
struct DrawnFrame {
    /// The size of the terminal when the picture was drawn.
    size: Size,
    /// The number of rows from the cursor down that earlier pictures have used; these rows exist without scrolling.
    rows: usize,
}

impl Screen {
    /// The current size of the terminal.
    pub(crate) fn size() -> Size {
        match tcgetwinsize(io::stderr()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                Size { columns: size.ws_col.into(), rows: size.ws_row.into() }
            }
            Ok(_) | Err(_) => UNKNOWN,
        }
    }

    /// Replaces the picture by one for a terminal of this size.
    pub(crate) fn draw(&mut self, lines: &[String], size: Size) {
        let there = self.drawn.filter(|drawn| drawn.size == size).map_or(1, |drawn| drawn.rows);
        // A terminal remembers which rows a new width has wrapped, even after they are overwritten, so they are cleared first.
        let resized = self.drawn.is_some_and(|drawn| drawn.size != size);
        let clear = if resized { CLEAR } else { "" };
        self.drawn = Some(DrawnFrame { size, rows: there.max(lines.len()) });
        write(&(clear.to_owned() + &room(there, lines.len()) + &picture(lines)));
    }

    /// Removes the picture, so that lines can be printed in its place.
    pub(crate) fn clear(&mut self) {
        if self.drawn.take().is_some() {
            write(CLEAR);
        }
    }
}

/// Clears to the end of the screen (ECMA-48 ED) from the second column on, then the first row (EL): if ED starts in the upper left
/// corner, tmux moves the cleared rows into its scrollback.
const CLEAR: &str = "\r \x1b[J\r\x1b[2K";

/// The bytes that scroll until `wanted` rows exist from the cursor down, of which `there` exist already, and restore the cursor.
fn room(there: usize, wanted: usize) -> String {
    if wanted <= there {
        return String::new();
    }
    let down = if there > 1 { format!("\x1b[{}B", there - 1) } else { String::new() };
    format!("{down}{}\x1b[{}A", "\r\n".repeat(wanted - there), wanted - 1)
}

/// The bytes that draw lines from the cursor down, over the old contents, and restore the cursor (DECSC, DECRC). The lines neither
/// wrap (DECAWM) nor scroll (CUD), in case the terminal became smaller after its size was read.
fn picture(lines: &[String]) -> String {
    format!("\r\x1b7\x1b[?7l{}\x1b[J\x1b[?7h\x1b8", lines.join("\x1b[K\r\x1b[B"))
}

/// Writes to the terminal and flushes; ignores a closed terminal.
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
            "\r\x1b7\x1b[?7la\x1b[K\r\x1b[Bb\x1b[K\r\x1b[Bc\x1b[J\x1b[?7h\x1b8"
        );
        assert_eq!(picture(&lines[..1]), "\r\x1b7\x1b[?7la\x1b[J\x1b[?7h\x1b8");
    }

    #[test]
    fn only_missing_rows_are_scrolled_for() {
        assert_eq!(room(1, 3), "\r\n\r\n\x1b[2A");
        assert_eq!(room(3, 4), "\x1b[2B\r\n\x1b[3A");
        assert_eq!(room(3, 3), "");
        assert_eq!(room(3, 1), "");
    }
}
