//! ◆ Times in the API's formats. Pure.

use jiff::Timestamp;

/// A `Time`: whole seconds.
pub(crate) fn whole_seconds(at: Timestamp) -> String {
    let seconds = Timestamp::from_second(at.as_second()).unwrap_or(at);
    seconds.to_string()
}

/// A `MicroTime`: six digits after the second.
pub(crate) fn micros(at: Timestamp) -> String {
    format!("{at:.6}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn times_have_the_digits_of_their_types() {
        let at: Timestamp = "2026-11-28T10:00:00.25Z".parse().unwrap();
        assert_eq!(whole_seconds(at), "2026-11-28T10:00:00Z");
        assert_eq!(micros(at), "2026-11-28T10:00:00.250000Z");
    }
}
