//! ◆ Selects an item by its id, its name or an id prefix. Pure.
//!
//! A name takes precedence over an id prefix: `db` and `cafe` are both.

use crate::client::{human, select};

/// The properties of an item that the choice depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct About<'a> {
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    /// Whether it is running or ready.
    pub(super) is_live: bool,
    pub(super) created: i64,
    /// Its location, to distinguish it from other matches.
    pub(super) place: String,
}

/// Why no item was selected.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MatchError {
    NotFound,
    /// The ids and locations of the matches.
    Ambiguous(Vec<String>),
}

/// Whether the text is the full id or name of a container; checked before names of pods.
pub(super) fn is_exact(about: &About<'_>, text: &str) -> bool {
    about.id == text || about.name == text
}

/// The item with this id, name or id prefix.
pub(super) fn choose<'a, T>(
    all: &'a [T],
    text: &str,
    about: impl Fn(&'a T) -> About<'a>,
) -> Result<&'a T, MatchError> {
    let several = |some: Vec<About<'_>>| {
        let candidate = |of: About<'_>| format!("{} ({})", human::id(of.id, false), of.place);
        MatchError::Ambiguous(some.into_iter().map(candidate).collect())
    };
    let all: Vec<(About<'a>, &'a T)> = all.iter().map(|item| (about(item), item)).collect();
    if let Some((_, item)) = all.iter().find(|(of, _)| of.id == text) {
        return Ok(item);
    }
    let named: Vec<&(About<'a>, &T)> = all.iter().filter(|(of, _)| of.name == text).collect();
    if named.is_empty() {
        return match select::by_id(&all, text, |(of, _)| of.id) {
            Ok(Some((_, item))) => Ok(item),
            Ok(None) => Err(MatchError::NotFound),
            Err(()) => {
                let fit = all.iter().filter(|(of, _)| of.id.starts_with(text));
                Err(several(fit.map(|(of, _)| of.clone()).collect()))
            }
        };
    }
    let living: Vec<_> = named.iter().filter(|(of, _)| of.is_live).collect();
    match living.as_slice() {
        [(_, one)] => Ok(one),
        [] => {
            let newest = named.into_iter().max_by_key(|(of, _)| of.created);
            newest.map(|(_, item)| *item).ok_or(MatchError::NotFound)
        }
        some => Err(several(some.iter().map(|(of, _)| of.clone()).collect())),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("abc1", Ok(1))]
    #[case("abc", Err("abc1 (n/p), abc2 (n/p)"))]
    #[case("web", Ok(2))]
    #[case("old", Ok(5))]
    #[case("twice", Err("e1 (n/p), ffe1 (n/p)"))]
    #[case("ff", Ok(7))]
    #[case("dad", Ok(8))]
    #[case("dada", Ok(9))]
    #[case("none", Err(""))]
    #[case("", Err(""))]
    fn lookup_prefers_id_then_name_then_id_prefix(
        #[case] text: &str,
        #[case] expected: Result<i64, &str>,
    ) {
        let all = [
            ("abc1", "web", false, 1),
            ("abc2", "web", true, 2),
            ("d3", "old", false, 4),
            ("d4", "old", false, 5),
            ("e1", "twice", true, 6),
            ("ffe1", "twice", true, 7),
            // The name of one item is an id prefix of another one.
            ("0", "dad", true, 8),
            ("dada", "other", true, 9),
        ];
        let found = choose(&all, text, |(id, name, is_live, created)| About {
            id,
            name,
            is_live: *is_live,
            created: *created,
            place: "n/p".to_owned(),
        });
        let found = found.map(|item| item.3).map_err(|miss| match miss {
            MatchError::NotFound => String::new(),
            MatchError::Ambiguous(some) => some.join(", "),
        });
        assert_eq!(found, expected.map_err(str::to_owned));
    }
}
