//! [`Set`]: a sorted vector, with the methods of `BTreeSet`.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{BitAnd, BitOr, Sub};
use std::slice;
use std::vec;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

use crate::sort_by;

/// A sorted set.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Set<T> {
    items: Vec<T>,
}

impl<T> Set<T> {
    /// An empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { items: Vec::new() }
    }

    /// The number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Removes all elements.
    pub fn clear(&mut self) {
        self.items.clear();
    }

    /// The elements, in order.
    pub fn iter(&self) -> slice::Iter<'_, T> {
        self.items.iter()
    }

    /// Keeps the elements for which `keep` is true.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        self.items.retain(keep);
    }

    /// The lowest element.
    #[must_use]
    pub fn first(&self) -> Option<&T> {
        self.items.first()
    }

    /// Removes the highest element.
    pub fn pop_last(&mut self) -> Option<T> {
        self.items.pop()
    }
}

impl<T: Ord> Set<T> {
    fn find<Q: Ord + ?Sized>(&self, item: &Q) -> Result<usize, usize>
    where
        T: Borrow<Q>,
    {
        self.items.binary_search_by(|have| have.borrow().cmp(item))
    }

    /// Whether the set contains the element.
    pub fn contains<Q: Ord + ?Sized>(&self, item: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.find(item).is_ok()
    }

    /// Adds an element, and returns whether it is new.
    pub fn insert(&mut self, item: T) -> bool {
        match self.find(&item) {
            Ok(_) => false,
            Err(at) => {
                self.items.insert(at, item);
                true
            }
        }
    }

    /// Removes an element, and returns whether it existed.
    pub fn remove<Q: Ord + ?Sized>(&mut self, item: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.take(item).is_some()
    }

    /// Removes an element, and returns it.
    pub fn take<Q: Ord + ?Sized>(&mut self, item: &Q) -> Option<T>
    where
        T: Borrow<Q>,
    {
        let at = self.find(item).ok()?;
        Some(self.items.remove(at))
    }

    /// The elements that the other set lacks.
    pub fn difference<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> + Clone {
        self.items.iter().filter(|item| !other.contains(*item))
    }

    /// The elements that both sets have.
    pub fn intersection<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> + Clone {
        self.items.iter().filter(|item| other.contains(*item))
    }

    /// The elements that either set has, in order.
    pub fn union<'a>(&'a self, other: &'a Self) -> vec::IntoIter<&'a T> {
        let both: Vec<&T> = self.items.iter().chain(&other.items).collect();
        Set::from(both).into_iter()
    }

    /// Whether no element is in both.
    #[must_use]
    pub fn is_disjoint(&self, other: &Self) -> bool {
        !self.items.iter().any(|item| other.contains(item))
    }

    /// Whether the other set has all of its elements.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.items.iter().all(|item| other.contains(item))
    }
}

impl<T: Ord + Clone> BitAnd<&Set<T>> for &Set<T> {
    type Output = Set<T>;

    fn bitand(self, other: &Set<T>) -> Set<T> {
        Set { items: self.intersection(other).cloned().collect() }
    }
}

impl<T: Ord + Clone> BitOr<&Set<T>> for &Set<T> {
    type Output = Set<T>;

    fn bitor(self, other: &Set<T>) -> Set<T> {
        Set { items: self.union(other).cloned().collect() }
    }
}

impl<T: Ord + Clone> Sub<&Set<T>> for &Set<T> {
    type Output = Set<T>;

    fn sub(self, other: &Set<T>) -> Set<T> {
        Set { items: self.difference(other).cloned().collect() }
    }
}

impl<T> Default for Set<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for Set<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(&self.items).finish()
    }
}

impl<T: Ord> FromIterator<T> for Set<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Vec::from_iter(items).into()
    }
}

impl<T: Ord> From<Vec<T>> for Set<T> {
    fn from(mut items: Vec<T>) -> Self {
        sort_by(&mut items, T::cmp);
        items.dedup();
        Self { items }
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for Set<T> {
    fn from(items: [T; N]) -> Self {
        Vec::from(items).into()
    }
}

impl<T: Ord> Extend<T> for Set<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.insert(item);
        }
    }
}

impl<'a, T: Ord + Copy + 'a> Extend<&'a T> for Set<T> {
    fn extend<I: IntoIterator<Item = &'a T>>(&mut self, items: I) {
        self.extend(items.into_iter().copied());
    }
}

impl<T> IntoIterator for Set<T> {
    type Item = T;
    type IntoIter = vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Set<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: Serialize> Serialize for Set<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.items.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de> + Ord> Deserialize<'de> for Set<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn set_behaves_like_std_set(one: Vec<u8>, other: Vec<u8>, items: Vec<(u8, u8)>) {
            let mut set: Set<u8> = one.iter().copied().collect();
            let mut expected: BTreeSet<u8> = one.into_iter().collect();
            let (others, also): (Set<u8>, BTreeSet<u8>) = (other.clone().into(), other.into_iter().collect());
            for (what, item) in items {
                match what % 3 {
                    0 => prop_assert_eq!(set.insert(item), expected.insert(item)),
                    1 => prop_assert_eq!(set.remove(&item), expected.remove(&item)),
                    _ => prop_assert_eq!(set.pop_last(), expected.pop_last()),
                }
                prop_assert_eq!(set.contains(&item), expected.contains(&item));
                prop_assert!(set.iter().eq(&expected));
            }
            prop_assert!(set.difference(&others).eq(expected.difference(&also)));
            prop_assert!(set.intersection(&others).eq(expected.intersection(&also)));
            prop_assert!(set.union(&others).eq(expected.union(&also)));
            prop_assert!((&set & &others).iter().eq(&(&expected & &also)));
            prop_assert!((&set | &others).iter().eq(&(&expected | &also)));
            prop_assert!((&set - &others).iter().eq(&(&expected - &also)));
            prop_assert_eq!(set.is_disjoint(&others), expected.is_disjoint(&also));
            prop_assert_eq!(set.is_subset(&others), expected.is_subset(&also));
            prop_assert_eq!(format!("{set:?}"), format!("{expected:?}"));
        }
    }
}
