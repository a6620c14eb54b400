//! ◆ Lists of completion indexes, such as `0,2-4`. Pure.

use std::collections::BTreeSet;

/// The maximum index in a policy.
const HIGHEST: u32 = 100_000;

/// The indexes in `text`; `None` if it is malformed, or they do not ascend.
#[must_use]
pub fn parse(text: &str) -> Option<BTreeSet<u32>> {
    let mut indexes = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let rises = indexes.last().is_none_or(|highest| *highest < first);
        if !rises || first > last || last > HIGHEST {
            return None;
        }
        indexes.extend(first..=last);
    }
    Some(indexes)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0", Some(&[0][..]))]
    #[case("0,2-4", Some(&[0, 2, 3, 4][..]))]
    #[case("", None)]
    #[case("4-2", None)]
    #[case("2,1", None)]
    #[case("a", None)]
    #[case("0-4000000000", None)]
    fn lists_of_indexes_rise(#[case] text: &str, #[case] expected: Option<&[u32]>) {
        let indexes = parse(text).map(|indexes| indexes.into_iter().collect::<Vec<_>>());
        assert_eq!(indexes.as_deref(), expected);
    }
}
