//! ◆ Splits long lists into several messages, each far below the clients' limit.

/// Approximate length of one message in bytes. Clients accept 16 MiB, some by default only 4.
const BYTES: usize = 1 << 20;

/// Splits `items` so that no part exceeds about a mebibyte, unless a single item does. `length` is an item's
/// length on the wire. An empty list is one empty part, so that a client learns that the list is empty.
pub(crate) fn chunks<T>(items: Vec<T>, length: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for item in items {
        // An item also takes its tag and its length.
        let more = length(&item) + 8;
        if bytes > 0 && bytes + more > BYTES {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        if let Some(part) = parts.last_mut() {
            part.push(item);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing(&[], &[0])]
    #[case::small(&[10; 5], &[5])]
    #[case::full(&[BYTES / 2 - 8; 4], &[2, 2])]
    #[case::a_byte_more(&[BYTES / 2 - 7; 4], &[1, 1, 1, 1])]
    #[case::too_long_alone(&[1, BYTES * 3, 1], &[1, 1, 1])]
    fn chunks_stay_below_message_limit(#[case] lengths: &[usize], #[case] want: &[usize]) {
        let parts = chunks(lengths.to_vec(), |length| *length);
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), want);
        assert_eq!(parts.concat(), lengths);
    }
}
