//! ◆ Parses DER elements (tag, length, content), as far as certificates need them. Pure.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// The tag of a SEQUENCE.
pub const SEQUENCE: u8 = 0x30;
/// UTF8String, PrintableString and IA5String: names do not use the other string types.
const STRINGS: [u8; 3] = [0x0c, 0x13, 0x16];
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The unread elements of a DER value. Malformed input yields `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    /// The elements in these bytes.
    #[must_use]
    pub fn new(der: &'a [u8]) -> Self {
        Self(der)
    }

    /// Whether all have been read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The unread bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }

    /// The tag of the next element.
    #[must_use]
    pub fn tag(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The content of the next element, if it has this tag.
    pub fn next(&mut self, tag: u8) -> Option<Elements<'a>> {
        let (found, content) = self.element()?;
        (found == tag).then_some(Elements(content))
    }

    /// The next element, if it is a string.
    pub fn text(&mut self) -> Option<String> {
        let (tag, content) = self.element()?;
        let text = std::str::from_utf8(content).ok()?;
        STRINGS.contains(&tag).then(|| text.to_owned())
    }

    /// The next element, if it is a time.
    pub fn time(&mut self) -> Option<Timestamp> {
        let (tag, content) = self.element()?;
        let text = std::str::from_utf8(content).ok()?.strip_suffix('Z')?;
        let text = match tag {
            // Years from 1950 to 2049 (RFC 5280, 4.1.2.5.1).
            UTC_TIME => {
                let century = if text.get(..1)? < "5" { "20" } else { "19" };
                format!("{century}{text}")
            }
            GENERALIZED_TIME => text.to_owned(),
            _ => return None,
        };
        let at = DateTime::strptime("%Y%m%d%H%M%S", text).ok()?;
        TimeZone::UTC.to_timestamp(at).ok()
    }

    /// The tag and the content of the next element.
    pub fn element(&mut self) -> Option<(u8, &'a [u8])> {
        let (tag, rest) = self.0.split_first()?;
        let (first, mut rest) = rest.split_first()?;
        let mut length = usize::from(*first);
        if length >= 0x80 {
            // At most three length bytes: a certificate has less than 16 MiB.
            let (bytes, after) = rest.split_at_checked(length & 0x7f)?;
            if bytes.is_empty() || bytes.len() > 3 {
                return None;
            }
            length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            rest = after;
        }
        let (content, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((*tag, content))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::short(b"\x0c\x02ab", Some("ab"))]
    #[case::long(b"\x13\x81\x02ab", Some("ab"))]
    #[case::too_long_a_length(b"\x13\x84\0\0\0\x02ab", None)]
    #[case::no_length(b"\x13\x80ab", None)]
    #[case::cut(b"\x13\x03ab", None)]
    #[case::another_type(b"\x02\x02ab", None)]
    #[case::not_utf8(b"\x0c\x01\xff", None)]
    #[case::nothing(b"", None)]
    fn text_is_read(#[case] der: &[u8], #[case] expected: Option<&str>) {
        assert_eq!(Elements::new(der).text().as_deref(), expected);
    }

    #[rstest]
    #[case::of_two_digits(b"\x17\x0d261128100000Z", Some("2026-11-28T10:00:00Z"))]
    #[case::of_the_last_century(b"\x17\x0d501128100000Z", Some("1950-11-28T10:00:00Z"))]
    #[case::of_four_digits(b"\x18\x0f20560203000000Z", Some("2056-02-03T00:00:00Z"))]
    #[case::no_time(b"\x17\x01Z", None)]
    #[case::no_zone(b"\x17\x0c261128100000", None)]
    fn time_is_read(#[case] der: &[u8], #[case] expected: Option<&str>) {
        let expected = expected.and_then(|text| text.parse().ok());
        assert_eq!(Elements::new(der).time(), expected);
    }

    #[test]
    fn elements_are_read_one_after_another() {
        let mut elements = Elements::new(b"\x30\x03\x02\x01\x05\x0c\x01a");
        assert_eq!(elements.tag(), Some(SEQUENCE));
        let mut inner = elements.next(SEQUENCE).unwrap_or(Elements(b""));
        assert_eq!((inner.element(), inner.is_empty()), (Some((2, &[5][..])), true));
        assert_eq!(elements.bytes(), b"\x0c\x01a");
        assert_eq!(elements.next(SEQUENCE), None);
    }
}
