//! ◆ A map of limited size that forgets the entry that was used least recently.

use std::collections::BTreeMap;

/// The map.
#[derive(Clone, Debug)]
pub(super) struct Lru<K, V> {
    limit: usize,
    entries: BTreeMap<K, (u64, V)>,
    /// The keys by their last use.
    uses: BTreeMap<u64, K>,
    next_use: u64,
}

impl<K: Ord + Copy, V> Lru<K, V> {
    /// A map of at most `limit` entries.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, entries: BTreeMap::new(), uses: BTreeMap::new(), next_use: 0 }
    }

    /// The entry of a key, which `make` provides if there is none.
    pub(super) fn entry(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        if !self.entries.contains_key(&key)
            && self.entries.len() >= self.limit
            && let Some((_, oldest)) = self.uses.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.next_use += 1;
        let used = self.next_use;
        self.uses.insert(used, key);
        let (last, value) = self.entries.entry(key).or_insert_with(|| (used, make()));
        if *last != used {
            self.uses.remove(last);
            *last = used;
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_used_least_recently_is_forgotten() {
        let mut lru = Lru::new(2);
        for key in ["a", "b", "a", "c"] {
            *lru.entry(key, || 0) += 1;
        }
        assert_eq!(*lru.entry("a", || 0), 2);
        assert_eq!(*lru.entry("b", || 0), 0, "forgotten for c");
        assert_eq!(*lru.entry("c", || 0), 0, "forgotten for b");
        assert_eq!((lru.entries.len(), lru.uses.len()), (2, 2));
    }
}
