//! Parses terminal sizes from a stream: consecutive JSON objects, split anywhere ◆

use serde::Deserialize;

use super::target::Size;

/// Limit on the bytes buffered for one object.
const LONGEST: usize = 1024;

#[derive(Deserialize)]
struct SizeMessage {
    #[serde(rename = "Width")]
    width: u16,
    #[serde(rename = "Height")]
    height: u16,
}

/// Bytes received and not yet parsed.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    rest: Vec<u8>,
    /// The input was invalid, so the rest is ignored.
    broken: bool,
}

impl Sizes {
    /// The latest size that `bytes` completes.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<Size> {
        if self.broken {
            return None;
        }
        self.rest.extend_from_slice(bytes);
        let mut objects =
            serde_json::Deserializer::from_slice(&self.rest).into_iter::<SizeMessage>();
        let mut latest = None;
        let mut taken = 0;
        loop {
            match objects.next() {
                Some(Ok(SizeMessage { width, height })) => {
                    latest = Some(Size { width, height });
                    taken = objects.byte_offset();
                }
                Some(Err(error)) => {
                    self.broken = !error.is_eof();
                    break;
                }
                None => break,
            }
        }
        self.rest.drain(..taken);
        self.broken |= self.rest.len() > LONGEST;
        if self.broken {
            self.rest = Vec::new();
        }
        latest
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const fn size(width: u16, height: u16) -> Option<Size> {
        Some(Size { width, height })
    }

    #[rstest]
    #[case::one(&[r#"{"Width":80,"Height":24}"#], &[size(80, 24)])]
    #[case::lines(&["{\"Width\":80,\"Height\":24}\n", "{\"Width\":1,\"Height\":2}\n"], &[size(80, 24), size(1, 2)])]
    #[case::the_latest(&[r#"{"Width":80,"Height":24}{"Height":2,"Width":1}"#], &[size(1, 2)])]
    #[case::cut(&[r#"{"Wid"#, r#"th":80,"Height":24"#, "}"], &[None, None, size(80, 24)])]
    #[case::nonsense(&["{]", r#"{"Width":80,"Height":24}"#], &[None, None])]
    #[case::after_a_good_one(&[r#"{"Width":80,"Height":24}{"Width":-1}"#, r#"{"Width":1,"Height":1}"#], &[size(80, 24), None])]
    #[case::too_wide(&[r#"{"Width":65536,"Height":24}"#], &[None])]
    #[case::more_members(&[r#"{"Width":1,"Height":1,"X":[1,{}]}"#], &[size(1, 1)])]
    fn resize_messages_are_parsed(#[case] chunks: &[&str], #[case] expected: &[Option<Size>]) {
        let mut sizes = Sizes::default();
        let read: Vec<_> = chunks.iter().map(|c| sizes.feed(c.as_bytes())).collect();
        assert_eq!(read, expected);
    }

    #[test]
    fn unterminated_resize_message_is_discarded() {
        let mut sizes = Sizes::default();
        sizes.feed(b"\"");
        for _ in 0..100 {
            assert_eq!(sizes.feed(&[b'a'; 100]), None);
        }
        assert!(sizes.broken && sizes.rest.is_empty());
    }
}
