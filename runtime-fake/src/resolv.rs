//! Formats a `resolv.conf`: pure.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_directives_are_written_in_order() {
        let list = |text: &str| {
            text.split_whitespace()
                .map(ToOwned::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            conf(&list("10.0.0.1 10.0.0.2"), &list("a.b c"), &list("ndots:5")),
            "search a.b c\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:5\n"
        );
        assert_eq!(conf(&[], &[], &[]), "");
    }
}
