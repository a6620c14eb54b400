//! [`Map`]: a sorted vector of keys and values, with the methods of `BTreeMap`.

use std::borrow::Borrow;
use std::fmt;
use std::iter;
use std::marker::PhantomData;
use std::ops::Index;
use std::slice;
use std::vec;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::sort_by;

/// A map with sorted keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Map<K, V> {
    entries: Vec<(K, V)>,
}

/// The entries of a map, in the order of their keys.
pub type Iter<'a, K, V> = iter::Map<slice::Iter<'a, (K, V)>, fn(&'a (K, V)) -> (&'a K, &'a V)>;
/// The entries of a map, with mutable values.
pub type IterMut<'a, K, V> =
    iter::Map<slice::IterMut<'a, (K, V)>, fn(&'a mut (K, V)) -> (&'a K, &'a mut V)>;
/// The keys of a map, in order.
pub type Keys<'a, K, V> = iter::Map<slice::Iter<'a, (K, V)>, fn(&'a (K, V)) -> &'a K>;
/// The values of a map, in the order of their keys.
pub type Values<'a, K, V> = iter::Map<slice::Iter<'a, (K, V)>, fn(&'a (K, V)) -> &'a V>;

impl<K, V> Map<K, V> {
    /// An empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// The number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the map is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// The entries, in the order of their keys.
    pub fn iter(&self) -> Iter<'_, K, V> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// The entries, with mutable values.
    pub fn iter_mut(&mut self) -> IterMut<'_, K, V> {
        self.entries.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// The keys, in order.
    pub fn keys(&self) -> Keys<'_, K, V> {
        self.entries.iter().map(|(key, _)| key)
    }

    /// The values, in the order of their keys.
    pub fn values(&self) -> Values<'_, K, V> {
        self.entries.iter().map(|(_, value)| value)
    }

    /// The mutable values, in the order of their keys.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> + ExactSizeIterator {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    /// Converts the map to its keys.
    pub fn into_keys(self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator {
        self.entries.into_iter().map(|(key, _)| key)
    }

    /// Converts the map to its values.
    pub fn into_values(self) -> impl DoubleEndedIterator<Item = V> + ExactSizeIterator {
        self.entries.into_iter().map(|(_, value)| value)
    }

    /// Keeps the entries for which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.entries.retain_mut(|(key, value)| keep(key, value));
    }
}

impl<K: Ord, V> Map<K, V> {
    /// The index of the key, or the index at which to insert it.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.entries.binary_search_by(|(have, _)| have.borrow().cmp(key))
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        Some(&self.entries[self.find(key).ok()?].1)
    }

    /// The mutable value of a key.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(&mut self.entries[at].1)
    }

    /// Whether the key has a value.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// Sets the value of a key, and returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.entries[at].1, value)),
            Err(at) => {
                self.entries.insert(at, (key, value));
                None
            }
        }
    }

    /// Removes a key, and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.remove_entry(key).map(|(_, value)| value)
    }

    /// Removes a key, and returns the key and its value.
    pub fn remove_entry<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(self.entries.remove(at))
    }

    /// The entry of a key, occupied or vacant.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        match self.find(&key) {
            Ok(at) => Entry::Occupied(OccupiedEntry { map: self, at }),
            Err(at) => Entry::Vacant(VacantEntry { map: self, at, key }),
        }
    }

    /// The entries from this key on.
    pub fn from_key<Q: Ord + ?Sized>(&self, first: &Q) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(first).unwrap_or_else(|at| at);
        self.entries[at..].iter().map(|(key, value)| (key, value))
    }
}

/// An entry of a [`Map`].
#[derive(Debug)]
pub enum Entry<'a, K, V> {
    /// The key has a value.
    Occupied(OccupiedEntry<'a, K, V>),
    /// The key has no value.
    Vacant(VacantEntry<'a, K, V>),
}

/// The entry of a key that has a value.
#[derive(Debug)]
pub struct OccupiedEntry<'a, K, V> {
    map: &'a mut Map<K, V>,
    at: usize,
}

/// The vacant entry of a key without a value.
#[derive(Debug)]
pub struct VacantEntry<'a, K, V> {
    map: &'a mut Map<K, V>,
    at: usize,
    key: K,
}

impl<'a, K, V> Entry<'a, K, V> {
    /// Returns the value, after inserting `value` if the key has none.
    pub fn or_insert(self, value: V) -> &'a mut V {
        match self {
            Self::Occupied(entry) => entry.into_mut(),
            Self::Vacant(entry) => entry.insert(value),
        }
    }

    /// Returns the value, after inserting the result of `make` if the key has none.
    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> &'a mut V {
        match self {
            Self::Occupied(entry) => entry.into_mut(),
            Self::Vacant(entry) => entry.insert(make()),
        }
    }

    /// Returns the value, after inserting the default if the key has none.
    pub fn or_default(self) -> &'a mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }

    /// Changes the value if there is one.
    #[must_use]
    pub fn and_modify(mut self, change: impl FnOnce(&mut V)) -> Self {
        if let Self::Occupied(entry) = &mut self {
            change(entry.get_mut());
        }
        self
    }
}

impl<'a, K, V> OccupiedEntry<'a, K, V> {
    /// The mutable value.
    pub fn get_mut(&mut self) -> &mut V {
        &mut self.map.entries[self.at].1
    }

    /// The mutable value, for as long as the map is borrowed.
    #[must_use]
    pub fn into_mut(self) -> &'a mut V {
        &mut self.map.entries[self.at].1
    }

    /// Removes the entry.
    #[must_use]
    pub fn remove(self) -> V {
        self.map.entries.remove(self.at).1
    }
}

impl<'a, K, V> VacantEntry<'a, K, V> {
    /// The key.
    pub const fn key(&self) -> &K {
        &self.key
    }

    /// Sets the value.
    pub fn insert(self, value: V) -> &'a mut V {
        self.map.entries.insert(self.at, (self.key, value));
        &mut self.map.entries[self.at].1
    }
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Borrow<Q> + Ord, V, Q: Ord + ?Sized> Index<&Q> for Map<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        match self.find(key) {
            Ok(at) => &self.entries[at].1,
            Err(_) => panic!("no entry for this key"),
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for Map<K, V> {
    /// Of several values of a key, the last one is kept.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Vec::from_iter(entries).into()
    }
}

impl<K: Ord, V> From<Vec<(K, V)>> for Map<K, V> {
    fn from(mut entries: Vec<(K, V)>) -> Self {
        sort_by(&mut entries, |one, other| one.0.cmp(&other.0));
        entries.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                std::mem::swap(later, kept);
            }
            same
        });
        Self { entries }
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for Map<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        Vec::from(entries).into()
    }
}

impl<K: Ord, V> Extend<(K, V)> for Map<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K, V> IntoIterator for Map<K, V> {
    type Item = (K, V);
    type IntoIter = vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl<'a, K, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, K, V> IntoIterator for &'a mut Map<K, V> {
    type Item = (&'a K, &'a mut V);
    type IntoIter = IterMut<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<K: Serialize, V: Serialize> Serialize for Map<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for Map<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

struct Entries<K, V>(PhantomData<(K, V)>);

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Entries<K, V> {
    type Value = Map<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(entries.into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn map_behaves_like_std_map(first: Vec<(u8, u16)>, changes: Vec<(u8, u8, u16)>) {
            let mut map: Map<u8, u16> = first.iter().copied().collect();
            let mut expected: BTreeMap<u8, u16> = first.into_iter().collect();
            for (what, key, value) in changes {
                match what % 6 {
                    0 => prop_assert_eq!(map.insert(key, value), expected.insert(key, value)),
                    1 => prop_assert_eq!(map.remove(&key), expected.remove(&key)),
                    2 => prop_assert_eq!(map.entry(key).or_insert(value), expected.entry(key).or_insert(value)),
                    3 => {
                        map.retain(|have, _| have % 2 == key % 2);
                        expected.retain(|have, _| have % 2 == key % 2);
                    }
                    4 => {
                        map.entry(key).and_modify(|have| *have = value).or_default();
                        expected.entry(key).and_modify(|have| *have = value).or_default();
                    }
                    _ => prop_assert!(map.from_key(&key).eq(expected.range(key..))),
                }
                prop_assert_eq!(map.get(&key), expected.get(&key));
                prop_assert!(map.iter().eq(&expected));
            }
            prop_assert_eq!(format!("{map:?}"), format!("{expected:?}"));
        }
    }

    #[test]
    fn map_round_trips_through_serde() {
        let map = Map::from([("b".to_owned(), 2), ("a".to_owned(), 1)]);
        let text = serde_json::to_string(&map).expect("JSON");
        assert_eq!(text, r#"{"a":1,"b":2}"#);
        assert_eq!(serde_json::from_str::<Map<String, i32>>(&text).expect("a map"), map);
    }
}
