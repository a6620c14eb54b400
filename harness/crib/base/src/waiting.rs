//! ◆ The message about the pods that an ending run waits for. Pure.

use jiff::Timestamp;

/// The maximum number of pods that the message names.
const NAMED: usize = 3;

/// The message about terminating pods, each with the end of its grace period; `None` without pods.
#[must_use]
pub fn sentence<'p>(
    pods: impl IntoIterator<Item = (&'p str, Timestamp)>,
    now: Timestamp,
) -> Option<String> {
    let mut pods: Vec<(&str, Timestamp)> = pods.into_iter().collect();
    compact::sort_by_key(&mut pods, |(name, until)| (std::cmp::Reverse(*until), *name));
    let named: Vec<String> = pods.iter().take(NAMED).map(|pod| one(*pod, now)).collect();
    let more = match pods.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match pods.len() {
        0 => None,
        1 => Some(format!("waiting for pod {}", named.concat())),
        count => Some(format!("waiting for {count} pods: {}{more}", named.join(", "))),
    }
}

fn one((name, until): (&str, Timestamp), now: Timestamp) -> String {
    match until.duration_since(now).as_secs() {
        left @ 1.. => format!("{name} ({left} s left)"),
        _ => format!("{name} (grace period expired)"),
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(&[], None)]
    #[case(&[("default/a", 8)], Some("waiting for pod default/a (8 s left)"))]
    #[case(&[("default/a", -1)], Some("waiting for pod default/a (grace period expired)"))]
    #[case(
        &[("a/a", 1), ("a/b", 30), ("a/c", 2), ("a/d", 1)],
        Some("waiting for 4 pods: a/b (30 s left), a/c (2 s left), a/a (1 s left) and 1 more")
    )]
    fn sentence_names_those_that_take_longest(
        #[case] pods: &[(&str, i64)],
        #[case] expected: Option<&str>,
    ) {
        let now = Timestamp::UNIX_EPOCH;
        let until = |seconds: &i64| now + SignedDuration::from_secs(*seconds);
        let pods = pods.iter().map(|(name, seconds)| (*name, until(seconds)));
        assert_eq!(sentence(pods, now).as_deref(), expected);
    }
}
