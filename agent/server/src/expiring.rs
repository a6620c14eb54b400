//! ◆ A bounded map whose entries expire: a cache of token reviews and access reviews. Pure.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Instant;

/// The maximum number of entries. Each token that a client invents takes one.
const MAX_ENTRIES: usize = 4096;

/// The map.
#[derive(Debug)]
pub(crate) struct ExpiringCache<K, V>(HashMap<K, (V, Instant)>);

impl<K, V> Default for ExpiringCache<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash + Clone, V> ExpiringCache<K, V> {
    /// The value of a key, unless it has expired.
    pub(crate) fn get(&self, key: &K, now: Instant) -> Option<&V> {
        self.0.get(key).filter(|(_, until)| now < *until).map(|(value, _)| value)
    }

    /// Adds an entry. If the map is full, it removes expired entries, or else the entry that expires first.
    pub(crate) fn insert(&mut self, key: K, value: V, until: Instant, now: Instant) {
        if self.0.len() >= MAX_ENTRIES {
            self.0.retain(|_, (_, until)| now < *until);
        }
        if self.0.len() >= MAX_ENTRIES {
            let first = self.0.iter().min_by_key(|(_, (_, until))| *until);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                self.0.remove(&first);
            }
        }
        self.0.insert(key, (value, until));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn entries_expire_and_are_bounded() {
        let start = Instant::now();
        let at = |seconds: usize| start + Duration::from_secs(seconds as u64);
        let mut map = ExpiringCache::default();
        for key in 0..MAX_ENTRIES {
            map.insert(key, key, at(1 + key), start);
        }
        assert_eq!(map.get(&0, start), Some(&0));
        assert_eq!(map.get(&0, at(1)), None);
        map.insert(MAX_ENTRIES, 0, at(MAX_ENTRIES), start);
        assert_eq!(
            (map.0.len(), map.get(&0, start), map.get(&1, start)),
            (MAX_ENTRIES, None, Some(&1))
        );
        map.insert(MAX_ENTRIES + 1, 0, at(MAX_ENTRIES), at(MAX_ENTRIES - 10));
        assert_eq!(map.0.len(), 12);
    }
}
