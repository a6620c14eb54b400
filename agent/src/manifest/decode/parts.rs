//! The parts of a list or mapping, read one after the other: what is refused is left out.

use serde::de::{DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess};

use super::{Finding, Notes, Reader, Refused};
use crate::manifest::nearest::unknown;
use crate::manifest::tree::{Entry, Node};

/// The items of a list, one after the other.
pub(super) struct Items<'de, 'a> {
    pub(super) reader: Reader<'de, 'a>,
    pub(super) items: std::iter::Enumerate<std::slice::Iter<'de, Node>>,
}

impl<'de> SeqAccess<'de> for Items<'de, '_> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refused> {
        for (index, node) in self.items.by_ref() {
            let path = format!("{}[{index}]", self.reader.path);
            if !self.reader.notes.is_refused(&path) {
                return read(seed, node, path, self.reader.notes).map(Some);
            }
        }
        Ok(None)
    }

    /// A list gets no more room than it needs: those of containers stay for as long as their pod.
    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

/// The fields of a mapping, of which the known ones are read and the others noted.
pub(super) struct Fields<'de, 'a> {
    pub(super) reader: Reader<'de, 'a>,
    pub(super) entries: std::slice::Iter<'de, Entry>,
    pub(super) known: Option<&'static [&'static str]>,
    pub(super) value: Option<(&'de Node, String)>,
}

impl<'de> MapAccess<'de> for Fields<'de, '_> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refused> {
        for entry in self.entries.by_ref() {
            let path = self.reader.child(&entry.key);
            if self
                .known
                .is_some_and(|known| !known.contains(&entry.key.as_str()))
            {
                self.reader.notes.found.borrow_mut().insert(Finding {
                    place: entry.key_place,
                    path,
                    message: unknown(&entry.key, self.known.unwrap_or_default()),
                    unknown_field: true,
                });
                continue;
            }
            if self.reader.notes.is_refused(&path) {
                continue;
            }
            self.value = Some((&entry.value, path));
            return seed
                .deserialize(entry.key.as_str().into_deserializer())
                .map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        match self.value.take() {
            Some((node, path)) => read(seed, node, path, self.reader.notes),
            None => Err(Refused("a value was asked for before its key".to_owned())),
        }
    }
}

/// Decodes a nested value. A rejection is recorded once, at its own path, and triggers another round without the value.
fn read<'de, S: DeserializeSeed<'de>>(
    seed: S,
    node: &'de Node,
    path: String,
    notes: &Notes,
) -> Result<S::Value, Refused> {
    seed.deserialize(Reader {
        node,
        path: path.clone(),
        notes,
    })
    .inspect_err(|Refused(message)| {
        // Only the innermost rejected value is recorded; the enclosing ones propagate the error.
        if !notes.again.replace(true) {
            notes.note(node.place, &path, message.clone());
            notes.refused.borrow_mut().insert(path);
        }
    })
}
