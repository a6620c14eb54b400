//! ◆ Parses the output of CNI plugins: results and errors.

use std::net::IpAddr;

use serde_json::Value;

/// The result of a network's plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CniResult {
    /// The pod's addresses, in the plugins' order.
    pub addresses: Vec<IpAddr>,
    /// Name servers, search domains and options.
    pub dns: Option<Dns>,
}

/// The contents of a resolv.conf.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses of name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

/// Parses the last plugin's result. Addresses of interfaces outside the pod are skipped.
pub(crate) fn read(result: &Value) -> Result<CniResult, String> {
    let list = |value: &Value, name: &str| -> Vec<Value> {
        let found = value.get(name).and_then(Value::as_array);
        found.cloned().unwrap_or_default()
    };
    let interfaces = list(result, "interfaces");
    let in_pod = |ip: &Value| {
        let index = ip.get("interface").and_then(Value::as_u64);
        let interface = index.and_then(|index| interfaces.get(usize::try_from(index).ok()?));
        interface.is_none_or(|interface| {
            let sandbox = interface.get("sandbox").and_then(Value::as_str);
            sandbox.is_some_and(|sandbox| !sandbox.is_empty())
        })
    };
    let mut addresses = Vec::new();
    for ip in list(result, "ips").iter().filter(|ip| in_pod(ip)) {
        let text = ip.get("address").and_then(Value::as_str).unwrap_or_default();
        let address = text.split('/').next().unwrap_or_default();
        addresses.push(
            address.parse().map_err(|_| format!("{text:?} in its result is not an address"))?,
        );
    }
    let words = |dns: &Value, name| {
        let words = list(dns, name);
        words
            .iter()
            .filter_map(|word| word.as_str().map(ToOwned::to_owned))
            .collect::<Vec<String>>()
    };
    let dns = result.get("dns").map(|dns| Dns {
        servers: words(dns, "nameservers"),
        searches: words(dns, "search"),
        options: words(dns, "options"),
    });
    Ok(CniResult { addresses, dns: dns.filter(|dns| *dns != Dns::default()) })
}

/// Whether the result lists an interface of this name in the pod.
pub(super) fn claims_interface(result: &Value, name: &str) -> bool {
    let interfaces = result.get("interfaces").and_then(Value::as_array);
    let text = |interface: &Value, key: &str| {
        let text = interface.get(key).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    interfaces
        .into_iter()
        .flatten()
        .any(|interface| text(interface, "name") == name && !text(interface, "sandbox").is_empty())
}

/// Replaces the path of the pod's namespace, `from`, by `to` throughout a result.
pub(super) fn move_sandbox(result: &mut Value, from: &str, to: &str) {
    let interfaces = result.get_mut("interfaces").and_then(Value::as_array_mut);
    for interface in interfaces.into_iter().flatten() {
        if let Some(sandbox) = interface.get_mut("sandbox")
            && sandbox.as_str() == Some(from)
        {
            *sandbox = Value::from(to);
        }
    }
}

/// The error message of a failed plugin: the error object on its standard output, or else all of its output.
pub(crate) fn error_message(stdout: &[u8], stderr: &[u8]) -> String {
    let error: Option<Value> = serde_json::from_slice(stdout).ok();
    let word = |name: &str| {
        let text = error.as_ref()?.get(name)?.as_str()?.trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    let code = error.as_ref().and_then(|error| error.get("code")?.as_u64());
    match (word("msg"), word("details"), code) {
        (Some(message), Some(details), _) => format!("{message} ({details})"),
        (Some(message), None, _) => message,
        (None, Some(details), _) => details,
        (None, None, Some(code)) => format!("error code {code}"),
        (None, None, None) => {
            let text = String::from_utf8_lossy(if stderr.is_empty() { stdout } else { stderr });
            let text = text.trim().replace('\n', "; ");
            if text.is_empty() { "no error message".to_owned() } else { text }
        }
    }
}

/// Bits per second, from a Kubernetes quantity (`10M`).
pub(crate) fn rate(text: &str) -> Option<u64> {
    const SUFFIXES: [(&str, u64); 10] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("P", 1_000_000_000_000_000),
        ("", 1),
    ];
    let (number, factor) =
        SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if !(whole.to_owned() + part).bytes().all(|b| b.is_ascii_digit()) || part.len() > 9 {
        return None;
    }
    let scale = 10u64.pow(u32::try_from(part.len()).ok()?);
    let part = part.parse::<u64>().unwrap_or(0).checked_mul(factor)? / scale;
    let rate = whole.parse::<u64>().ok()?.checked_mul(factor)?.checked_add(part)?;
    // The kubelet accepts the same range in these annotations.
    (1_000..=1_000_000_000_000_000).contains(&rate).then_some(rate)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!({}), false)]
    #[case(json!({"interfaces": "eth0"}), false)]
    #[case(json!({"interfaces": [{"name": "eth0"}]}), false)]
    #[case(json!({"interfaces": [{"name": "eth0", "sandbox": ""}, {"name": "veth1", "sandbox": "/x"}]}), false)]
    #[case(json!({"interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/x"}]}), true)]
    fn an_interface_is_claimed_for_the_pod(#[case] result: Value, #[case] expected: bool) {
        assert_eq!(claims_interface(&result, "eth0"), expected);
    }

    #[test]
    fn saved_result_renames_pod_namespace_only() {
        let mut result = json!({"interfaces": [
            {"name": "eth0", "sandbox": "/proc/1/fd/7"}, {"name": "br0"}, {"name": "a", "sandbox": "/else"}]});
        move_sandbox(&mut result, "/proc/1/fd/7", "/proc/2/fd/9");
        let expected = json!({"interfaces": [
            {"name": "eth0", "sandbox": "/proc/2/fd/9"}, {"name": "br0"}, {"name": "a", "sandbox": "/else"}]});
        assert_eq!(result, expected);
    }

    #[test]
    fn result_reads_addresses_of_pod_interfaces_only() {
        let result = json!({
            "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/proc/1/ns/net"}],
            "ips": [
                {"address": "10.1.0.1/24", "interface": 0},
                {"address": "10.1.0.5/24", "interface": 1},
                {"address": "fd00::5/64"}],
            "dns": {"nameservers": ["10.1.0.1"], "search": ["a.b"]}});
        let given = read(&result).unwrap();
        let expected: Vec<IpAddr> = ["10.1.0.5", "fd00::5"].map(|a| a.parse().unwrap()).into();
        assert_eq!(given.addresses, expected);
        assert_eq!(given.dns.unwrap().servers, ["10.1.0.1"]);
        assert_eq!(read(&json!({"dns": {}})).unwrap(), CniResult::default());
        assert!(read(&json!({"ips": [{"address": "x"}]})).is_err());
    }

    #[rstest]
    #[case(r#"{"code": 7, "msg": "no", "details": "really"}"#, "x", "no (really)")]
    #[case(r#"{"code": 7, "msg": "no"}"#, "", "no")]
    #[case(r#"{"code": 7}"#, "", "error code 7")]
    #[case("", "one\ntwo\n", "one; two")]
    #[case("not json", "", "not json")]
    #[case("", "", "no error message")]
    fn error_message_of_plugin_is_extracted(
        #[case] stdout: &str,
        #[case] stderr: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(error_message(stdout.as_bytes(), stderr.as_bytes()), expected);
    }

    #[rstest]
    #[case("10M", Some(10_000_000))]
    #[case("1.5M", Some(1_500_000))]
    #[case("1Ki", Some(1024))]
    #[case("1000", Some(1000))]
    #[case("999", None)]
    #[case("2P", None)]
    #[case("-1M", None)]
    #[case("M", None)]
    #[case("", None)]
    #[case("fast", None)]
    fn bandwidth_quantities_are_parsed(#[case] text: &str, #[case] expected: Option<u64>) {
        assert_eq!(rate(text), expected);
    }
}
