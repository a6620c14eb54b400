//! The items of a list and the fields of a mapping, read one after the other; rejected ones are skipped.

use std::iter::Enumerate;
use std::slice::Iter;

use serde::de::{DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess};

use super::{Finding, Path, Reader, Refused};
use crate::manifest::decode::unknown_field;
use crate::manifest::tree::{Entry, Node};

/// The items of a list, one after the other.
pub(super) struct Items<'de, 'a> {
    pub(super) reader: Reader<'de, 'a>,
    pub(super) items: Enumerate<Iter<'de, Node>>,
}

impl<'de> Items<'de, '_> {
    /// The next item that was not rejected.
    fn next(&mut self) -> Option<Reader<'de, '_>> {
        let Reader { path, notes, .. } = &self.reader;
        self.items
            .by_ref()
            .map(|(index, node)| Reader { node, path: Path::Item(path, index), notes })
            .find(|item| !notes.is_refused(item.path))
    }
}

impl<'de> SeqAccess<'de> for Items<'de, '_> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refused> {
        match self.next() {
            Some(item) => read(seed, item).map(Some),
            None => Ok(None),
        }
    }

    /// The exact size, because lists of containers stay in memory as long as their pod.
    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

/// The fields of a mapping: known ones are read, unknown ones are recorded.
pub(super) struct Fields<'de, 'a> {
    pub(super) reader: Reader<'de, 'a>,
    pub(super) entries: Iter<'de, Entry>,
    pub(super) known: Option<&'static [&'static str]>,
    /// The entry whose key was read last.
    pub(super) entry: Option<&'de Entry>,
}

impl<'de> Fields<'de, '_> {
    /// The key of the next known field that was not rejected.
    fn next_key(&mut self) -> Option<&'de str> {
        let Reader { path, notes, .. } = &self.reader;
        for entry in self.entries.by_ref() {
            let path = Path::Field(path, &entry.key);
            if let Some(known) = self.known.filter(|known| !known.contains(&entry.key.as_str())) {
                notes.found.borrow_mut().insert(Finding {
                    place: entry.key_place,
                    path: path.text(),
                    message: unknown_field(&entry.key, known),
                    unknown_field: true,
                });
            } else if !notes.is_refused(path) {
                self.entry = Some(entry);
                return Some(&entry.key);
            }
        }
        None
    }
}

impl<'de> MapAccess<'de> for Fields<'de, '_> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refused> {
        match self.next_key() {
            Some(key) => seed.deserialize(key.into_deserializer()).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        let Some(entry) = self.entry.take() else {
            return Err(Refused("a value was asked for before its key".to_owned()));
        };
        let path = Path::Field(&self.reader.path, &entry.key);
        read(seed, Reader { node: &entry.value, path, notes: self.reader.notes })
    }
}

/// Decodes a nested value.
fn read<'de, S: DeserializeSeed<'de>>(
    seed: S,
    reader: Reader<'de, '_>,
) -> Result<S::Value, Refused> {
    let read = seed.deserialize(reader);
    if let Err(refused) = &read {
        reader.refuse(refused);
    }
    read
}

impl Reader<'_, '_> {
    /// Records a rejection once, at its own path, and requests another round without the value.
    fn refuse(&self, Refused(message): &Refused) {
        // Only the innermost rejected value is recorded; the enclosing ones propagate the error.
        if !self.notes.again.replace(true) {
            self.notes.note(self.node.place, self.path, message.clone());
            self.notes.refused.borrow_mut().insert(self.path.text());
        }
    }
}
