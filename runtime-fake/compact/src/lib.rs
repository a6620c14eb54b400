//! Maps, sets and sorting that compile to less machine code: the generic code of std is compiled again for each type, and was a
//! third of the agent's code (docs/performance.md).
//!
//! | module | contents | instead of |
//! |---|---|---|
//! | `map`, `set` | [`Map`] and [`Set`]: sorted vectors | `BTreeMap`, `BTreeSet` |
//! | | [`sort_by`], [`sort_by_key`]: the indices are sorted, then the elements are moved into place | the methods of slices |
//!
//! They behave like std's, but an insertion or removal in a map or set of n elements moves up to n of them. For tens of thousands
//! of elements, or for a type that is compiled anyway (`BTreeMap<String, String>`), use std's.

use std::cmp::Ordering;

pub mod map;
mod set;

pub use map::Map;
pub use set::Set;

/// Like `slice::sort_by`.
pub fn sort_by<T>(items: &mut [T], mut compare: impl FnMut(&T, &T) -> Ordering) {
    let mut places = places(items.len(), &mut |one, other| compare(&items[one], &items[other]));
    for at in 0..items.len() {
        while places[at] != at {
            let place = places[at];
            items.swap(at, place);
            places.swap(at, place);
        }
    }
}

/// Like `slice::sort_by_key`.
pub fn sort_by_key<T, K: Ord>(items: &mut [T], mut key: impl FnMut(&T) -> K) {
    sort_by(items, |one, other| key(one).cmp(&key(other)));
}

/// The sorted position of each element.
fn places(count: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut sorted: Vec<usize> = (0..count).collect();
    sorted.sort_by(|one, other| compare(*one, *other));
    let mut places = vec![0; count];
    for (place, at) in sorted.into_iter().enumerate() {
        places[at] = place;
    }
    places
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sort_matches_std_sort(mut items: Vec<(u8, u32)>) {
            let mut expected = items.clone();
            expected.sort_by_key(|(key, _)| *key);
            sort_by_key(&mut items, |(key, _)| *key);
            prop_assert_eq!(items, expected);
        }
    }
}
