//! ◆ The Prometheus text format 0.0.4, as Go's client writes it. Pure.

use std::fmt::Write as _;

use agent::histogram::Histogram;
use compact::Map;
use jiff::Timestamp;

/// The media type.
pub(crate) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only increases.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// A distribution, here of durations.
    Histogram,
}

/// The constant part of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Description<'t> {
    pub(crate) name: &'t str,
    pub(crate) help: &'t str,
    pub(crate) kind: Kind,
}

pub(crate) const fn counter<'t>(name: &'t str, help: &'t str) -> Description<'t> {
    Description { name, help, kind: Kind::Counter }
}

pub(crate) const fn gauge<'t>(name: &'t str, help: &'t str) -> Description<'t> {
    Description { name, help, kind: Kind::Gauge }
}

pub(crate) const fn histogram<'t>(name: &'t str, help: &'t str) -> Description<'t> {
    Description { name, help, kind: Kind::Histogram }
}

/// Label names and values.
pub(crate) type Labels<'l> = [(&'l str, &'l str)];

/// Metrics, sorted by name.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Map<String, Family>);

/// The values of one metric, by their labels.
#[derive(Debug)]
struct Family {
    help: String,
    kind: Kind,
    values: Map<Vec<(String, String)>, Value>,
}

#[derive(Debug)]
enum Value {
    Number(f64, Option<Timestamp>),
    Histogram(Histogram),
}

impl Metrics {
    /// Adds a value without a timestamp.
    pub(crate) fn add(&mut self, what: &Description<'_>, labels: &Labels<'_>, value: f64) {
        self.insert(what, labels, Value::Number(value, None));
    }

    /// Adds a value with the time of its measurement.
    pub(crate) fn add_at(
        &mut self,
        what: &Description<'_>,
        labels: &Labels<'_>,
        value: f64,
        at: Option<Timestamp>,
    ) {
        self.insert(what, labels, Value::Number(value, at));
    }

    /// Adds a histogram of durations.
    pub(crate) fn add_histogram(
        &mut self,
        what: &Description<'_>,
        labels: &Labels<'_>,
        durations: &Histogram,
    ) {
        self.insert(what, labels, Value::Histogram(durations.clone()));
    }

    /// The first of several values with the same labels wins, because readers reject duplicates. Metrics with names that are
    /// invalid in Prometheus are skipped: the runtime's may be. Because of one of them, readers would reject all metrics.
    fn insert(&mut self, what: &Description<'_>, labels: &Labels<'_>, value: Value) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut labels: Vec<(String, String)> = labels.iter().map(owned).collect();
        labels.sort();
        let are_names = labels.iter().all(|(name, _)| is_label(name));
        let is_repeated =
            |pair: &[(String, String)]| matches!(pair, [(one, _), (other, _)] if one == other);
        if !is_name(what.name) || !are_names || labels.windows(2).any(is_repeated) {
            return;
        }
        let family = self.0.entry(what.name.to_owned()).or_insert_with(|| Family {
            help: what.help.to_owned(),
            kind: what.kind,
            values: Map::new(),
        });
        family.values.entry(labels).or_insert(value);
    }

    /// Formats the metrics.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (name, family) in &self.0 {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let help = family.help.replace('\\', r"\\").replace('\n', r"\n");
            // Writing to a string cannot fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
            for (labels, value) in &family.values {
                match value {
                    Value::Number(value, at) => {
                        line(&mut text, name, labels, None, *value);
                        if let Some(at) = at {
                            text.pop();
                            let _ = writeln!(text, " {}", at.as_millisecond());
                        }
                    }
                    Value::Histogram(durations) => lines(&mut text, name, labels, durations),
                }
            }
        }
        text
    }
}

fn lines(text: &mut String, name: &str, labels: &[(String, String)], durations: &Histogram) {
    let bucket = format!("{name}_bucket");
    for (bound, count) in durations.buckets() {
        line(text, &bucket, labels, Some(&number(bound)), count as f64);
    }
    let count = durations.count() as f64;
    line(text, &bucket, labels, Some("+Inf"), count);
    line(text, &format!("{name}_sum"), labels, None, durations.sum());
    line(text, &format!("{name}_count"), labels, None, count);
}

fn line(
    text: &mut String,
    name: &str,
    labels: &[(String, String)],
    bound: Option<&str>,
    value: f64,
) {
    text.push_str(name);
    let labels = labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let mut before = '{';
    for (name, value) in labels.chain(bound.map(|bound| ("le", bound))) {
        let value = value.replace('\\', r"\\").replace('\n', r"\n").replace('"', r#"\""#);
        let _ = write!(text, "{before}{name}=\"{value}\"");
        before = ',';
    }
    if before == ',' {
        text.push('}');
    }
    let _ = writeln!(text, " {}", number(value));
}

fn is_name(name: &str) -> bool {
    let is_part = |part: char| part.is_ascii_alphanumeric() || matches!(part, '_' | ':');
    name.starts_with(|first: char| is_part(first) && !first.is_ascii_digit())
        && name.chars().all(is_part)
}

/// Whether a name can be that of a label: Prometheus reserves those that begin with two underscores.
fn is_label(name: &str) -> bool {
    is_name(name) && !name.contains(':') && !name.starts_with("__")
}

/// Formats a number like Go's strconv.FormatFloat with 'g' and the shortest precision: with an exponent below -4 and from 6 on.
fn number(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) { format!("{value}") } else { go_exponent(digits, exponent) }
}

/// Go writes an exponent's sign and at least two digits.
fn go_exponent(digits: &str, exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0.0, "0")]
    #[case(1.0, "1")]
    #[case(-2.5, "-2.5")]
    #[case(0.0001, "0.0001")]
    #[case(0.00001234, "1.234e-05")]
    #[case(999_999.0, "999999")]
    #[case(1_000_000.0, "1e+06")]
    #[case(12_345_678.0, "1.2345678e+07")]
    #[case(1_700_000_000.123, "1.700000000123e+09")]
    #[case(1e100, "1e+100")]
    #[case(f64::INFINITY, "+Inf")]
    #[case(f64::NEG_INFINITY, "-Inf")]
    #[case(f64::NAN, "NaN")]
    fn numbers_are_written_as_by_go(#[case] value: f64, #[case] expected: &str) {
        assert_eq!(number(value), expected);
    }

    #[test]
    fn metrics_are_sorted_and_escaped() {
        let mut metrics = Metrics::default();
        let at: Timestamp = "1970-01-01T00:00:01.5Z".parse().unwrap();
        let b = counter("b_total", "Of b.\nTwo \\ lines.");
        metrics.add_at(&b, &[("z", "1"), ("a", "x\"\\\ny")], 2.0, Some(at));
        metrics.add(&b, &[("a", "0"), ("z", "1")], 1.0);
        metrics.add(&b, &[("z", "1"), ("a", "0")], 9.0);
        metrics.add(&gauge("a", "Of a."), &[], 0.5);
        metrics.add(&gauge("1a", "No name."), &[], 1.0);
        metrics.add(&gauge("c", "No label."), &[("l-l", "")], 1.0);
        let expected = concat!(
            "# HELP a Of a.\n# TYPE a gauge\na 0.5\n",
            "# HELP b_total Of b.\\nTwo \\\\ lines.\n# TYPE b_total counter\n",
            "b_total{a=\"0\",z=\"1\"} 1\n",
            "b_total{a=\"x\\\"\\\\\\ny\",z=\"1\"} 2 1500\n",
        );
        assert_eq!(metrics.text(), expected);
    }

    #[rstest]
    #[case::repeated(&[("pod", "a"), ("b", ""), ("pod", "c")])]
    #[case::reserved(&[("__name__", "up")])]
    fn metrics_with_labels_that_readers_reject_are_skipped(#[case] labels: &[(&str, &str)]) {
        let mut metrics = Metrics::default();
        metrics.add(&gauge("a", "Of a."), labels, 1.0);
        assert_eq!(metrics.text(), "");
    }

    #[test]
    fn histogram_has_buckets_sum_and_count() {
        let mut durations = Histogram::new(&[0.5, 1.0]);
        durations.observe(0.75);
        durations.observe(3.0);
        let mut metrics = Metrics::default();
        metrics.add_histogram(&histogram("d", "Of d."), &[("l", "v")], &durations);
        let expected = concat!(
            "# HELP d Of d.\n# TYPE d histogram\n",
            "d_bucket{l=\"v\",le=\"0.5\"} 0\n",
            "d_bucket{l=\"v\",le=\"1\"} 1\n",
            "d_bucket{l=\"v\",le=\"+Inf\"} 2\n",
            "d_sum{l=\"v\"} 3.75\n",
            "d_count{l=\"v\"} 2\n",
        );
        assert_eq!(metrics.text(), expected);
    }

    proptest! {
        #[test]
        fn any_number_is_read_back(value in any::<f64>().prop_filter("a number", |value| value.is_finite())) {
            prop_assert_eq!(number(value).parse::<f64>(), Ok(value));
        }
    }
}
