//! ◆ Formats a `resolv.conf`. Pure.

use std::net::IpAddr;

/// Servers, search domains and options, one directive per line (resolv.conf(5)).
pub(crate) fn conf(servers: &[String], searches: &[String], options: &[String]) -> String {
    let mut text = String::new();
    if !searches.is_empty() {
        text += &format!("search {}\n", searches.join(" "));
    }
    for server in servers {
        text += &format!("nameserver {server}\n");
    }
    if !options.is_empty() {
        text += &format!("options {}\n", options.join(" "));
    }
    text
}

/// Replaces the host's loopback name servers, listed in its own file `host`, by `dns`: they are not reachable from a pod's
/// network. A loopback server that is not in `host` is the pod's own and stays.
pub(crate) fn for_pod(conf: &str, host: &str, dns: IpAddr) -> String {
    let mut replaced = false;
    let mut text = String::new();
    for line in conf.lines() {
        let on_host = server(line).is_some_and(|address| {
            address.is_loopback() && host.lines().any(|of_host| server(of_host) == Some(address))
        });
        if !on_host {
            text += &format!("{line}\n");
        } else if !replaced {
            replaced = true;
            text += &format!("nameserver {dns}\n");
        }
    }
    text
}

/// The name server in a line.
fn server(line: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace();
    (words.next()? == "nameserver").then(|| words.next())??.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::stub(
        "search a\nnameserver 127.0.0.53\n",
        "nameserver 127.0.0.53\n",
        "search a\nnameserver 10.9.9.9\n"
    )]
    #[case::once(
        "nameserver 127.0.0.1\nnameserver ::1\nnameserver 10.0.0.1\n",
        "nameserver ::1\nnameserver 127.0.0.1",
        "nameserver 10.9.9.9\nnameserver 10.0.0.1\n"
    )]
    #[case::pods_own("nameserver 127.0.0.1\n", "nameserver 127.0.0.53\n", "nameserver 127.0.0.1\n")]
    #[case::reachable("nameserver 10.0.0.1\n", "nameserver 10.0.0.1\n", "nameserver 10.0.0.1\n")]
    fn loopback_servers_of_host_are_replaced(
        #[case] conf: &str,
        #[case] host: &str,
        #[case] expected: &str,
    ) {
        let dns = Ipv4Addr::new(10, 9, 9, 9).into();
        assert_eq!(for_pod(conf, host, dns), expected);
    }

    #[test]
    fn resolv_conf_directives_are_written_in_order() {
        let list = |text: &str| text.split_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>();
        assert_eq!(
            conf(&list("10.0.0.1 10.0.0.2"), &list("a.b c"), &list("ndots:5")),
            "search a.b c\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:5\n"
        );
        assert_eq!(conf(&[], &[], &[]), "");
    }
}
