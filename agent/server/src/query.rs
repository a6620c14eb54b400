//! ◆ Parses the queries of requests: options of logs, streams and ports. Pure.
//!
//! Source: Kubernetes 1.36: PodLogOptions as the API decodes and validates it (pkg/apis/core/validation), and
//! k8s.io/kubelet's remotecommand.NewOptions and portforward.NewV4Options.

use agent::cri::StreamOptions;
use cri_log::Stream;
use jiff::{SignedDuration, Timestamp};
use percent_encoding::percent_decode_str;

/// The options of a log request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogOptions {
    pub(crate) follow: bool,
    pub(crate) previous: bool,
    pub(crate) timestamps: bool,
    pub(crate) tail: Option<usize>,
    pub(crate) limit: Option<u64>,
    pub(crate) since: Option<Timestamp>,
    /// `None`: both.
    pub(crate) stream: Option<Stream>,
}

/// The reason that a query is rejected, in the kubelet's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadQuery {
    /// A value has the wrong form.
    #[error(r#"{{"message": "Unable to decode query."}}"#)]
    Malformed,
    /// Values are out of range, or mutually exclusive.
    #[error(r#"{{"message": "Invalid request."}}"#)]
    Invalid,
    /// No stream is requested.
    #[error("you must specify at least 1 of stdin, stdout, stderr")]
    NoStreams,
    /// A WebSocket must name its ports in the query.
    #[error("query parameter \"port\" is required")]
    NoPort,
    /// The value is not a port.
    #[error("invalid port {0:?}: expected 1 to 65535")]
    Port(String),
}

/// The key-value pairs of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a form; bytes that are not UTF-8 are replaced.
    pub(crate) fn parse(text: &str) -> Self {
        let decoded = |text: &str| {
            let spaced = text.replace('+', " ");
            percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
        };
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        Self(pairs.map(|(name, value)| (decoded(name), decoded(value))).collect())
    }

    /// All values of a name, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        let named = self.0.iter().filter(|(known, _)| known == name);
        named.map(|(_, value)| value.clone()).collect()
    }

    /// Whether a name is present, with or without a value.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.first(name).is_some()
    }

    /// Whether a summary is restricted to CPU and memory: `only_cpu_and_memory=true`, once.
    pub(crate) fn only_cpu_and_memory(&self) -> bool {
        self.all("only_cpu_and_memory") == ["true"]
    }

    fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A present flag is true, unless its value is `0` or `false`.
    fn flag(&self, name: &str) -> bool {
        self.first(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    fn number(&self, name: &str) -> Result<Option<i64>, BadQuery> {
        self.first(name).map(|value| value.parse().map_err(|_| BadQuery::Malformed)).transpose()
    }

    /// The options of a log request.
    pub(crate) fn log_options(&self, now: Timestamp) -> Result<LogOptions, BadQuery> {
        let tail = match self.first("tail").filter(|tail| !tail.is_empty()) {
            // The old name of the parameter and value.
            Some("all") => None,
            Some(_) => self.number("tail")?,
            None => self.number("tailLines")?,
        };
        let time = self.first("sinceTime").filter(|time| !time.is_empty());
        let time = time.map(|time| time.parse().map_err(|_| BadQuery::Malformed)).transpose()?;
        let seconds = self.number("sinceSeconds")?;
        let limit = self.number("limitBytes")?;
        let stream = match self.first("stream").unwrap_or("All") {
            "All" => None,
            "Stdout" => Some(Stream::Stdout),
            "Stderr" => Some(Stream::Stderr),
            _ => return Err(BadQuery::Invalid),
        };
        let positive = |number: Option<i64>| number.is_none_or(|number| number > 0);
        let valid = tail.is_none_or(|tail| tail >= 0)
            && positive(limit)
            && positive(seconds)
            && !(seconds.is_some() && time.is_some())
            && !(stream.is_some() && tail.is_some());
        if !valid {
            return Err(BadQuery::Invalid);
        }
        let ago = |seconds| now.checked_sub(SignedDuration::from_secs(seconds));
        // Before the earliest timestamp: the whole log.
        let since = seconds.map(|seconds| ago(seconds).unwrap_or(Timestamp::MIN)).or(time);
        Ok(LogOptions {
            follow: self.flag("follow"),
            previous: self.flag("previous"),
            timestamps: self.flag("timestamps"),
            tail: tail.map(|tail| usize::try_from(tail).unwrap_or(usize::MAX)),
            limit: limit.and_then(|limit| u64::try_from(limit).ok()),
            since,
            stream,
        })
    }

    /// The streams of an exec or attach request.
    pub(crate) fn streams(&self) -> Result<StreamOptions, BadQuery> {
        let is = |names: [&str; 2]| {
            names.iter().any(|name| matches!(self.first(name), Some("1" | "true")))
        };
        let tty = is(["tty", "tty"]);
        let streams = StreamOptions {
            stdin: is(["input", "stdin"]),
            stdout: is(["output", "stdout"]),
            // A terminal has only one output stream.
            stderr: is(["error", "stderr"]) && !tty,
            tty,
        };
        match streams {
            StreamOptions { stdin: false, stdout: false, stderr: false, .. } => {
                Err(BadQuery::NoStreams)
            }
            streams => Ok(streams),
        }
    }

    /// The ports of a port-forward over a WebSocket.
    pub(crate) fn ports(&self) -> Result<Vec<u16>, BadQuery> {
        let values = self.all("port");
        let ports = values.iter().flat_map(|value| value.split(','));
        let ports: Vec<&str> = ports.collect();
        if ports.is_empty() {
            return Err(BadQuery::NoPort);
        }
        let port = |text: &&str| match text.parse() {
            Ok(port) if port > 0 => Ok(port),
            Ok(_) | Err(_) => Err(BadQuery::Port((*text).to_owned())),
        };
        ports.iter().map(port).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn now() -> Timestamp {
        "2026-01-02T00:00:00Z".parse().unwrap()
    }

    fn log_options(query: &str) -> Result<LogOptions, BadQuery> {
        Query::parse(query).log_options(now())
    }

    #[test]
    fn log_options_are_those_of_the_api() {
        let query = "follow=true&previous=1&timestamps=&tailLines=3&limitBytes=9&sinceSeconds=60";
        let expected = LogOptions {
            follow: true,
            previous: true,
            timestamps: true,
            tail: Some(3),
            limit: Some(9),
            since: Some("2026-01-01T23:59:00Z".parse().unwrap()),
            stream: None,
        };
        assert_eq!(log_options(query), Ok(expected));
        assert_eq!(log_options("follow=False&timestamps=0&tail=all"), Ok(LogOptions::default()));
        assert_eq!(log_options("tail=2&tailLines=3").unwrap().tail, Some(2));
        assert_eq!(log_options("stream=Stderr").unwrap().stream, Some(Stream::Stderr));
        let since = log_options("sinceTime=2026-01-01T01%3A00%3A00%2B01:00").unwrap().since;
        assert_eq!(since, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        let since = log_options(&format!("sinceSeconds={}", i64::MAX)).unwrap().since;
        assert_eq!(since, Some(Timestamp::MIN));
    }

    #[rstest]
    #[case("tailLines=x", BadQuery::Malformed)]
    #[case("sinceTime=yesterday", BadQuery::Malformed)]
    #[case("limitBytes=99999999999999999999", BadQuery::Malformed)]
    #[case("tailLines=-1", BadQuery::Invalid)]
    #[case("limitBytes=0", BadQuery::Invalid)]
    #[case("sinceSeconds=0", BadQuery::Invalid)]
    #[case("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", BadQuery::Invalid)]
    #[case("stream=Stdout&tailLines=1", BadQuery::Invalid)]
    #[case("stream=stdin", BadQuery::Invalid)]
    fn bad_log_options_are_refused(#[case] query: &str, #[case] expected: BadQuery) {
        assert_eq!(log_options(query), Err(expected));
    }

    #[test]
    fn streams_and_commands_are_those_of_the_query() {
        let query =
            Query::parse("command=sh&command=-c&command=echo+a%20%26b&input=1&output=1&error=1");
        assert_eq!(query.all("command"), ["sh", "-c", "echo a &b"]);
        let all = StreamOptions { stdin: true, stdout: true, stderr: true, tty: false };
        assert_eq!(query.streams(), Ok(all));
        let terminal = StreamOptions { stdout: true, tty: true, ..StreamOptions::default() };
        assert_eq!(Query::parse("output=1&error=1&tty=1").streams(), Ok(terminal));
        assert_eq!(Query::parse("tty=1&output=0").streams(), Err(BadQuery::NoStreams));
    }

    #[rstest]
    #[case("port=80&port=81,82", Ok(vec![80, 81, 82]))]
    #[case("", Err(BadQuery::NoPort))]
    #[case("port=0", Err(BadQuery::Port("0".to_owned())))]
    #[case("port=70000", Err(BadQuery::Port("70000".to_owned())))]
    fn ports_are_those_of_the_query(
        #[case] query: &str,
        #[case] expected: Result<Vec<u16>, BadQuery>,
    ) {
        assert_eq!(Query::parse(query).ports(), expected);
    }

    #[rstest]
    #[case("only_cpu_and_memory=true", true)]
    #[case("only_cpu_and_memory=1", false)]
    #[case("only_cpu_and_memory=true&only_cpu_and_memory=true", false)]
    #[case("only_cpu_and_memory", false)]
    #[case("", false)]
    fn summary_is_full_unless_query_is_exact(#[case] query: &str, #[case] expected: bool) {
        assert_eq!(Query::parse(query).only_cpu_and_memory(), expected);
    }

    proptest! {
        #[test]
        fn any_query_is_read_without_a_panic(text in "[a-zA-Z0-9&=%+,]{0,40}") {
            let query = Query::parse(&text);
            let _ = (query.log_options(now()), query.streams(), query.ports());
        }
    }
}
