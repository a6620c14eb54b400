//! ◆ Colours of a terminal. Pure.

/// A colour of a terminal, as the number in its escape sequence (ECMA-48 SGR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Colour(u8);

impl Colour {
    /// Failed.
    pub(crate) const RED: Self = Self(31);
    /// Done.
    pub(crate) const GREEN: Self = Self(32);
    /// Failed and retried.
    pub(crate) const YELLOW: Self = Self(33);
    /// Waiting.
    pub(crate) const BLUE: Self = Self(34);
    /// Running.
    pub(crate) const CYAN: Self = Self(36);
    /// The colours that containers get in turn; red is reserved for failures.
    pub(crate) const CONTAINERS: [Self; 10] = [
        Self(36),
        Self(33),
        Self(32),
        Self(35),
        Self(34),
        Self(96),
        Self(93),
        Self(92),
        Self(95),
        Self(94),
    ];
}

/// `text` in a colour, if `coloured`.
pub(crate) fn paint(coloured: bool, colour: Colour, text: &str) -> String {
    if coloured { format!("\x1b[{}m{text}\x1b[0m", colour.0) } else { text.to_owned() }
}
