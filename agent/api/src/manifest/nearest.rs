//! Suggests the known name that is closest to an unknown one.

/// The known name that is close to `key`.
pub(super) fn name<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|field| {
            (strsim::damerau_levenshtein(&key.to_lowercase(), &field.to_lowercase()), *field)
        })
        .min()
        .filter(|(distance, field)| *distance <= 1 + field.len().max(key.len()) / 4)
        .map(|(_, field)| field)
}

/// The message for an unknown field.
pub(super) fn unknown(key: &str, known: &[&str]) -> String {
    match name(key, known) {
        Some(field) => format!("unknown field {key:?}, did you mean {field:?}?"),
        None if known.len() <= 8 => {
            format!("unknown field {key:?}, expected one of {}", known.join(", "))
        }
        None => format!("unknown field {key:?}"),
    }
}
