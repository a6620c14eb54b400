//! Suggests the known name that is closest to an unknown one.

/// The message for an unknown field.
pub(super) fn unknown(key: &str, known: &[&str]) -> String {
    let near = known
        .iter()
        .map(|field| {
            (
                strsim::damerau_levenshtein(&key.to_lowercase(), &field.to_lowercase()),
                *field,
            )
        })
        .min()
        .filter(|(distance, field)| *distance <= 1 + field.len().max(key.len()) / 4);
    match near {
        Some((_, field)) => format!("unknown field {key:?}, did you mean {field:?}?"),
        None if known.len() <= 8 => format!(
            "unknown field {key:?}, expected one of {}",
            known.join(", ")
        ),
        None => format!("unknown field {key:?}"),
    }
}
