//! ◆ Converts flag values to values of configuration fields, with the parsers' rules of Go packages. Pure.
//!
//! Source: github.com/spf13/pflag; Kubernetes 1.36, k8s.io/component-base/cli/flag, pkg/util/flag.

use std::collections::BTreeMap;
use std::net::IpAddr;

use agent::local_node::kubelet_config::GoDuration;
use api::duration::parse_go_duration;
use serde_json::{Map, Value, json};

use super::flags::Kind;
use crate::commands::servers::agent::pairs;

/// Parses a Go bool.
pub(super) fn bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is not true or false")),
    }
}

/// Parses a Go integer.
pub(super) fn int(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

/// Parses a Go duration.
pub(super) fn duration(text: &str) -> Result<GoDuration, String> {
    let nanos = parse_go_duration(text);
    let expected = || format!("invalid duration {text:?}: expected 10s, 1m30s or 2h");
    nanos.map(GoDuration::of_nanos).ok_or_else(expected)
}

/// Parses comma-separated `KEY=VALUE`. A node label may have no value.
pub(super) fn map(
    texts: &[String],
    between: char,
    may_lack_value: bool,
) -> Result<BTreeMap<String, String>, String> {
    let mut map = BTreeMap::new();
    for pair in pairs_of(texts) {
        let (key, value) = match pair.split_once(between) {
            Some(pair) => pair,
            None if may_lack_value => (pair, ""),
            None => return Err(format!("{pair:?} is not KEY{between}VALUE")),
        };
        map.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    Ok(map)
}

fn pairs_of(texts: &[String]) -> impl Iterator<Item = &str> {
    texts.iter().flat_map(|text| text.split(',')).filter(|pair| !pair.is_empty())
}

/// The value of a flag with these texts, in their order. For a single value, the last text is used.
pub(super) fn value(kind: Kind, texts: &[String]) -> Result<Value, String> {
    let last = texts.last().map_or("", String::as_str);
    Ok(match kind {
        Kind::Bool => bool(last)?.into(),
        Kind::Int => int(last)?.into(),
        Kind::Text => last.into(),
        Kind::Ip => {
            let parsed = last.parse::<IpAddr>();
            parsed.map_err(|_| format!("{last:?} is not an IP address"))?.to_string().into()
        }
        Kind::Duration => duration(last)?.to_string().into(),
        Kind::List => texts.iter().flat_map(|text| items(text)).collect(),
        Kind::Map => object(map(texts, '=', false)?),
        Kind::Pair => {
            let pair = |text: &String| {
                let pair = text.split_once('=').ok_or_else(|| format!("{text:?} is not KEY=VALUE"));
                pair.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
            };
            object(texts.iter().map(pair).collect::<Result<_, String>>()?)
        }
        Kind::Less => object(map(texts, '<', false)?),
        Kind::Headers => {
            let mut headers = BTreeMap::<String, Vec<String>>::new();
            for pair in pairs_of(texts) {
                let (name, value) =
                    pair.split_once(':').ok_or_else(|| format!("{pair:?} is not NAME:VALUE"))?;
                headers.entry(name.trim().to_owned()).or_default().push(value.trim().to_owned());
            }
            json!(headers)
        }
        Kind::Gates => {
            let gates = map(texts, '=', false)?.into_iter();
            let gates = gates.map(|(gate, text)| match bool(&text) {
                Ok(is_on) => Ok((gate, Value::from(is_on))),
                Err(problem) => Err(format!("{gate}: {problem}")),
            });
            Value::Object(gates.collect::<Result<Map<_, _>, _>>()?)
        }
        Kind::Taints => {
            let taints = last.split(',').filter(|text| !text.is_empty()).map(pairs::taint);
            json!(taints.collect::<Result<Vec<_>, _>>()?)
        }
        Kind::Memory => {
            let reservations = texts.iter().flat_map(|text| text.split(';'));
            let reservations = reservations.filter(|text| !text.is_empty()).map(memory);
            Value::Array(reservations.collect::<Result<_, _>>()?)
        }
        Kind::Rules => {
            let rule = |pair: &str| {
                let (pattern, level) =
                    pair.split_once('=').ok_or_else(|| format!("{pair:?} is not PATTERN=LEVEL"))?;
                Ok::<_, String>(json!({"filePattern": pattern, "verbosity": int(level)?}))
            };
            Value::Array(pairs_of(texts).map(rule).collect::<Result<_, _>>()?)
        }
    })
}

fn object(map: BTreeMap<String, String>) -> Value {
    json!(map)
}

fn items(text: &str) -> Vec<&str> {
    if text.is_empty() { Vec::new() } else { text.split(',').collect() }
}

/// `NODE:TYPE=QUANTITY,…`
fn memory(text: &str) -> Result<Value, String> {
    let expected = || format!("{text:?} is not NODE:TYPE=QUANTITY[,TYPE=QUANTITY]");
    let (node, limits) = text.split_once(':').ok_or_else(expected)?;
    let node = node.parse::<i32>().map_err(|_| expected())?;
    let limits = map(&[limits.to_owned()], '=', false)?;
    Ok(json!({"numaNode": node, "limits": limits}))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Kind::Bool, &["T"], json!(true))]
    #[case(Kind::Bool, &["true", "0"], json!(false))]
    #[case(Kind::Int, &["1", "-2"], json!(-2))]
    #[case(Kind::Text, &["a", ""], json!(""))]
    #[case(Kind::Ip, &["::"], json!("::"))]
    #[case(Kind::Duration, &["90s"], json!("1m30s"))]
    #[case(Kind::List, &["a,b", "c"], json!(["a", "b", "c"]))]
    #[case(Kind::List, &[""], json!([]))]
    #[case(Kind::Map, &["cpu=1, memory=1Gi", "cpu=2"], json!({"cpu": "2", "memory": "1Gi"}))]
    #[case(Kind::Map, &[""], json!({}))]
    #[case(Kind::Pair, &["a=b,c=d"], json!({"a": "b,c=d"}))]
    #[case(Kind::Less, &["memory.available<1Gi"], json!({"memory.available": "1Gi"}))]
    #[case(Kind::Headers, &["a:b,c:d:e", "a:f"], json!({"a": ["b", "f"], "c": ["d:e"]}))]
    #[case(Kind::Gates, &["A=true,B=F"], json!({"A": true, "B": false}))]
    #[case(Kind::Memory, &["0:memory=1Gi,hugepages-2Mi=2Mi;1:memory=2Gi"], json!([
        {"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}},
        {"numaNode": 1, "limits": {"memory": "2Gi"}},
    ]))]
    #[case(Kind::Rules, &["a*=2"], json!([{"filePattern": "a*", "verbosity": 2}]))]
    fn values_are_read_as_by_go(
        #[case] kind: Kind,
        #[case] texts: &[&str],
        #[case] expected: Value,
    ) {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(value(kind, &texts).unwrap(), expected);
    }

    #[test]
    fn taints_replace_each_other() {
        let texts = ["a=b:NoSchedule".to_owned(), "c:NoExecute,d=:NoSchedule".to_owned()];
        let taints = value(Kind::Taints, &texts).unwrap();
        assert_eq!((&taints[0]["key"], &taints[1]["key"]), (&json!("c"), &json!("d")));
    }

    #[rstest]
    #[case(Kind::Bool, "yes", "not true or false")]
    #[case(Kind::Int, "many", "not a number")]
    #[case(Kind::Ip, "here", "not an IP address")]
    #[case(Kind::Duration, "soon", "invalid duration")]
    #[case(Kind::Map, "cpu", "not KEY=VALUE")]
    #[case(Kind::Pair, "cpu", "not KEY=VALUE")]
    #[case(Kind::Less, "memory.available", "not KEY<VALUE")]
    #[case(Kind::Headers, "a", "not NAME:VALUE")]
    #[case(Kind::Gates, "A=maybe", "A: \"maybe\" is not true or false")]
    #[case(Kind::Taints, "a=b", "not KEY=VALUE:EFFECT")]
    #[case(Kind::Memory, "memory=1Gi", "not NODE:TYPE=QUANTITY")]
    #[case(Kind::Rules, "a", "not PATTERN=LEVEL")]
    fn other_values_are_refused(#[case] kind: Kind, #[case] text: &str, #[case] words: &str) {
        let problem = value(kind, &[text.to_owned()]).unwrap_err();
        assert!(problem.contains(words), "{problem}");
    }
}
