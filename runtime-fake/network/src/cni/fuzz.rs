//! Fuzz targets: CNI network configurations, and the output of plugins.

use serde_json::Value;

use super::{answer, conf::NetworkList};
use fuzz_target::{Target, bytes, text, two_texts};

pub(crate) const TARGETS: &[Target] = &[
    Target::new("cni_configuration", configuration, configurations),
    Target::new("cni_result", result, results),
    Target::new("bandwidth_annotation", rate, rates),
];

/// A plugin's executable is a plain file name, and parsing the saved document gives the same network.
fn configuration(data: &[u8]) {
    let Ok(list) = NetworkList::parse(data) else {
        return;
    };
    for plugin in &list.plugins {
        assert!(!plugin.kind.contains(['/', '\0']) && !plugin.kind.starts_with('.'), "{plugin:?}");
    }
    assert_eq!(NetworkList::read(list.source.clone()).as_ref(), Ok(&list));
}

fn configurations() -> Vec<Vec<u8>> {
    bytes(&[
        r#"{"cniVersion":"1.1.0","name":"net","disableCheck":true,"plugins":[{"type":"bridge","bridge":"b0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/24"}]]}},{"type":"portmap","capabilities":{"portMappings":true}}]}"#,
        r#"{"cniVersion":"0.4.0","name":"one","type":"loopback"}"#,
    ])
}

/// Every address has an entry in the result, and error messages are one line.
fn result(data: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<Value>(data)
        && let Ok(given) = answer::read(&value)
    {
        let entries = value.get("ips").and_then(Value::as_array).map_or(0, Vec::len);
        assert!(given.addresses.len() <= entries);
    }
    let (stdout, stderr) = two_texts(data);
    assert!(!answer::error_message(stdout.as_bytes(), stderr.as_bytes()).is_empty());
}

fn results() -> Vec<Vec<u8>> {
    bytes(&[
        r#"{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/proc/1/ns/net"}],"ips":[{"address":"10.1.0.5/24","interface":1,"gateway":"10.1.0.1"},{"address":"fd00::5/64"}],"dns":{"nameservers":["10.1.0.1"],"search":["a.b"],"options":["ndots:5"]}}"#,
        "{\"code\": 7, \"msg\": \"no\", \"details\": \"really\"}\0two\nlines\n",
    ])
}

/// A rate is within the range that the kubelet accepts.
fn rate(data: &[u8]) {
    if let Some(rate) = answer::rate(text(data)) {
        assert!((1_000..=1_000_000_000_000_000).contains(&rate));
    }
}

fn rates() -> Vec<Vec<u8>> {
    bytes(&["10M", "1.5Mi", "1000", "0.001G"])
}
