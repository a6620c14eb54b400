//! ◆ Parsers for a kubelet's flag values: lists of `KEY=VALUE`, taints, sizes. Pure.

use std::collections::BTreeMap;

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::Taint;

const TAINT_EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Parses `KEY=VALUE`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        Some(_) | None => Err(format!("{text:?} is not KEY=VALUE")),
    }
}

/// Parses `KEY=VALUE:EFFECT`, `KEY:EFFECT` or `KEY=:EFFECT`.
pub(crate) fn taint(text: &str) -> Result<Taint, String> {
    let expected = || {
        format!("{text:?} is not KEY=VALUE:EFFECT with an effect of {}", TAINT_EFFECTS.join(", "))
    };
    let (what, effect) = text.rsplit_once(':').ok_or_else(expected)?;
    let (key, value) = match what.split_once('=') {
        Some((key, value)) => (key, Some(value.to_owned())),
        None => (what, None),
    };
    if key.is_empty() || !TAINT_EFFECTS.contains(&effect) {
        return Err(expected());
    }
    Ok(Taint {
        key: key.to_owned(),
        value: value.filter(|value| !value.is_empty()),
        effect: effect.to_owned(),
        time_added: None,
    })
}

/// Parses `RESOURCE=QUANTITY` of a reservation.
pub(super) fn reservation(text: &str) -> Result<(String, String), String> {
    const RESOURCES: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];
    let (resource, amount) = pair(text)?;
    if !RESOURCES.contains(&resource.as_str()) {
        return Err(format!("cannot reserve {resource:?}: expected {}", RESOURCES.join(", ")));
    }
    let parsed = Quantity::parse(&amount).map_err(|error| error.to_string())?;
    if parsed.is_negative() {
        return Err(format!("{resource}: {amount} is less than zero"));
    }
    Ok((resource, amount))
}

/// A map of the pairs; of equal keys, the last is used, as in a kubelet.
pub(super) fn map(pairs: &[(String, String)]) -> BTreeMap<String, String> {
    pairs.iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("a=b:NoSchedule", "a", Some("b"), "NoSchedule")]
    #[case("a:NoExecute", "a", None, "NoExecute")]
    #[case("a/b=:PreferNoSchedule", "a/b", None, "PreferNoSchedule")]
    fn taint_has_key_value_and_effect(
        #[case] text: &str,
        #[case] key: &str,
        #[case] value: Option<&str>,
        #[case] effect: &str,
    ) {
        let taint = taint(text).unwrap();
        let seen = (taint.key.as_str(), taint.value.as_deref(), taint.effect.as_str());
        assert_eq!(seen, (key, value, effect));
    }

    #[rstest]
    #[case("a=b")]
    #[case("a=b:Never")]
    #[case("=b:NoSchedule")]
    #[case(":NoSchedule")]
    fn malformed_taint_is_refused(#[case] text: &str) {
        assert!(taint(text).unwrap_err().contains("KEY=VALUE:EFFECT"));
    }

    #[rstest]
    #[case("cpu=500m", "")]
    #[case("memory=1Gi", "")]
    #[case("gpu=1", "cannot reserve")]
    #[case("cpu=lots", "not a quantity")]
    #[case("cpu=-1", "less than zero")]
    #[case("cpu", "not KEY=VALUE")]
    fn only_resources_of_the_node_can_be_reserved(#[case] text: &str, #[case] words: &str) {
        match reservation(text) {
            Ok(_) => assert_eq!(words, ""),
            Err(error) => assert!(!words.is_empty() && error.contains(words), "{error}"),
        }
    }
}
