//! URLs, compared with the results of Go 1.26.
#![allow(clippy::unwrap_used)]

use rstest::rstest;

use super::*;

// The expected values come from Go 1.26.
#[rstest]
#[case("http://h:80/a b", "http://h:80/a%20b", "/a%20b")]
#[case("http://h/%2Fx/%7Bid%7D", "http://h/%2Fx/%7Bid%7D", "/%2Fx/%7Bid%7D")]
#[case("http://h?", "http://h?", "/?")]
#[case("http://h?a=b c?d", "http://h?a=b c?d", "/?a=b c?d")]
#[case("HTTP://u:p%40@h/x#f g", "http://u:p%40@h/x#f%20g", "/x")]
#[case("mailto:a@b?q", "mailto:a@b?q", "a@b?q")]
#[case("http://[fe80::1%25eth0]:8080/", "http://[fe80::1%25eth0]:8080/", "/")]
#[case("///a", "///a", "///a")]
fn urls_are_written_as_go_does(#[case] text: &str, #[case] url: &str, #[case] uri: &str) {
    let parsed = Url::parse(text).unwrap();
    assert_eq!((parsed.to_string().as_str(), parsed.request_uri().as_str()), (url, uri));
}

#[rstest]
#[case(":8080/x", "parse \":8080/x\": missing protocol scheme")]
#[case("a%zz", "parse \"a%zz\": invalid URL escape \"%zz\"")]
#[case("http://a b/", "parse \"http://a b/\": invalid character \" \" in host name")]
#[case("http://h:x/", "parse \"http://h:x/\": invalid port \":x\" after host")]
#[case("http://[::1/", "parse \"http://[::1/\": missing ']' in host")]
#[case("1:2", "parse \"1:2\": first path segment in URL cannot contain colon")]
fn invalid_urls_are_rejected_with_messages_of_go(#[case] text: &str, #[case] error: &str) {
    assert_eq!(Url::parse(text).unwrap_err().to_string(), error);
}

#[test]
fn parts_of_authority_are_found() {
    let url = Url::parse("https://[fe80::1%25eth0]:8443/").unwrap();
    assert_eq!(url.hostname(), "fe80::1%eth0");
    assert_eq!(url.authority(), "[fe80::1]:8443");
    assert_eq!(url.port(), Some(8443));
    let url = Url::parse("https://h.example/").unwrap();
    assert_eq!((url.hostname().as_str(), url.port()), ("h.example", Some(443)));
}

#[rstest]
#[case("/y", "http://h:1/y")]
#[case("y?z", "http://h:1/a/y?z")]
#[case("../../y/.", "http://h:1/y/")]
#[case("//o/y", "http://o/y")]
#[case("https://o", "https://o")]
#[case("?q", "http://h:1/a/b?q")]
#[case("#f", "http://h:1/a/b?x#f")]
fn references_are_resolved(#[case] reference: &str, #[case] expected: &str) {
    let base = Url::parse("http://h:1/a/b?x").unwrap();
    assert_eq!(base.join(reference).unwrap().to_string(), expected);
}

proptest::proptest! {
    /// A container may send any text in a Location header.
    #[test]
    fn any_text_is_read_without_panic(text in "(http:)?[/a%\\[\\]:@?#. \u{e9}2-5]*|\\PC*", reference in "[/a%:.?#]*") {
        for text in [text.as_str(), &format!("http://{text}")] {
            let Ok(url) = Url::parse(text) else { continue };
            let _ = (url.authority(), url.hostname(), url.port(), url.redacted(), url.request_uri());
            if let Ok(joined) = url.join(&reference) {
                let _ = (joined.to_string(), joined.request_uri());
            }
        }
    }
}

#[rstest]
#[case("http://h/x", Some("http://h"))]
#[case("https://H:443", Some("https://h"))]
#[case("http://[::1]:5000/v2/", Some("http://[::1]:5000"))]
#[case("http:x", None)]
#[case("/x", None)]
#[case("ftp://h/x", None)]
#[case("http://:80/x", None)]
#[case("http://h:65536/x", None)]
fn urls_of_servers_have_origin(#[case] text: &str, #[case] origin: Option<&str>) {
    let url = Url::of_server(text);
    assert_eq!(url.map(|url| url.origin()).as_deref(), origin);
}

#[test]
fn pairs_are_escaped_in_query_and_form() {
    let pairs = [("scope", "repository:a/b:pull,push"), ("account", "m\u{e9} & co=*")];
    let escaped = "scope=repository%3Aa%2Fb%3Apull%2Cpush&account=m%C3%A9+%26+co%3D*";
    assert_eq!(form(&pairs), escaped);
    let url = |text: &str| Url::parse(text).unwrap().with_query(&pairs).to_string();
    assert_eq!(url("https://a/token"), format!("https://a/token?{escaped}"));
    assert_eq!(url("https://a/token?x"), format!("https://a/token?x&{escaped}"));
}
