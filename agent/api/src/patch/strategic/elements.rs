//! ◆ The elements of merged lists: their identity and their order.

use serde_json::Value;

use super::super::PatchProblem;
use super::super::schema::FieldSchema;
use super::{DELETE, DIRECTIVE};

/// The kind of a list's elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Elements<'k> {
    /// Scalars.
    Scalars,
    /// Objects that are identified by the value of a field, the merge key.
    Objects(&'k str),
}

impl Elements<'_> {
    /// The kind of the elements of two lists; `None` if both are empty.
    pub(super) fn of(
        field: &FieldSchema,
        lists: [&[Value]; 2],
    ) -> Result<Option<Self>, PatchProblem> {
        let mut all = lists.into_iter().flatten();
        let Some(first) = all.next() else { return Ok(None) };
        if first.is_array() {
            return Err(PatchProblem::ListOfLists);
        }
        if first.is_null() || all.any(|other| kind(other) != kind(first)) {
            return Err(PatchProblem::MixedElements);
        }
        if !first.is_object() {
            return Ok(Some(Self::Scalars));
        }
        let key = field.merge_key.ok_or(PatchProblem::NoMergeKey)?;
        Ok(Some(Elements::Objects(key)))
    }

    /// The value that identifies an element: that of the merge key, or the scalar itself.
    pub(super) fn identity(self, element: &Value) -> Result<&Value, PatchProblem> {
        let Self::Objects(key) = self else { return Ok(element) };
        let Value::Object(fields) = element else { return Err(PatchProblem::MixedElements) };
        fields.get(key).ok_or_else(|| PatchProblem::MissingMergeKey(key.to_owned()))
    }

    /// The identities of the elements of a list.
    pub(super) fn identities<'v>(
        self,
        list: impl IntoIterator<Item = &'v Value>,
    ) -> Result<Vec<&'v Value>, PatchProblem> {
        list.into_iter().map(|element| self.identity(element)).collect()
    }

    /// Sorts a merged list: the elements in `wanted` by `wanted`, all others by `server`.
    ///
    /// Each of the others is placed before the first wanted element that follows it in `server`, or else at the end.
    pub(super) fn arrange(
        self,
        merged: Vec<Value>,
        wanted: &[Value],
        server: &[Value],
    ) -> Result<Vec<Value>, PatchProblem> {
        let wanted = self.identities(wanted)?;
        let server = self.identities(server)?;
        let mut named = Vec::new();
        let mut others = Vec::new();
        for element in merged {
            let side =
                if wanted.contains(&self.identity(&element)?) { &mut named } else { &mut others };
            side.push(element);
        }
        let named = self.sorted(named, &wanted)?;
        let others = self.sorted(others, &server)?;
        let place = |element: &Value| position(&server, self.identity(element).ok()?);
        let mut arranged = Vec::with_capacity(named.len() + others.len());
        let mut named = named.into_iter().peekable();
        for element in others {
            let precedes = |next: &Value| match (place(&element), place(next)) {
                (Some(left), Some(right)) => left < right,
                _ => false,
            };
            while let Some(next) = named.next_if(|next| !precedes(next)) {
                arranged.push(next);
            }
            arranged.push(element);
        }
        arranged.extend(named);
        Ok(arranged)
    }

    /// Sorts elements by their positions in `order`; elements with `$patch: delete` come last.
    pub(super) fn sorted(
        self,
        elements: Vec<Value>,
        order: &[&Value],
    ) -> Result<Vec<Value>, PatchProblem> {
        let (deleted, mut kept): (Vec<_>, Vec<_>) = elements.into_iter().partition(is_deletion);
        self.identities(&deleted)?;
        self.identities(&kept)?;
        kept.sort_by_cached_key(|element| {
            self.identity(element).ok().and_then(|identity| position(order, identity))
        });
        kept.extend(deleted);
        Ok(kept)
    }
}

/// Whether an element of a patch removes the element with the same merge key.
pub(super) fn is_deletion(element: &Value) -> bool {
    element.get(DIRECTIVE).is_some_and(|directive| directive == DELETE)
}

/// Removes duplicate scalars. As in Kubernetes, the last scalar replaces each removed one.
pub(super) fn deduplicate(scalars: &mut Vec<Value>) {
    let mut at = 0;
    while at < scalars.len() {
        let mut other = at + 1;
        while other < scalars.len() {
            if scalars[other] == scalars[at] {
                scalars.swap_remove(other);
            } else {
                other += 1;
            }
        }
        at += 1;
    }
}

fn position(list: &[&Value], wanted: &Value) -> Option<usize> {
    list.iter().position(|value| *value == wanted)
}

fn kind(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    }
}
