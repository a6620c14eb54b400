//! ◆ `/healthz`: the agent's checks, in the kubelet's format. Pure.
//!
//! Source: Kubernetes 1.36, k8s.io/apiserver/pkg/server/healthz/healthz.go; the checks are those of pkg/kubelet/server/server.go.

use std::fmt::Write as _;

use super::query::Query;

/// A health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// The server responds.
    Ping,
    /// Always healthy: writing logs never blocks the agent.
    Log,
    /// The agent's view of the running pods is up to date.
    SyncLoop,
}

impl Check {
    const ALL: [Self; 3] = [Self::Ping, Self::Log, Self::SyncLoop];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Log => "log",
            Self::SyncLoop => "syncloop",
        }
    }

    /// The check of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|check| check.name() == name)
    }

    fn fails(self, sync_loop: &Result<(), String>) -> Option<&String> {
        match self {
            Self::Ping | Self::Log => None,
            Self::SyncLoop => sync_loop.as_ref().err(),
        }
    }
}

/// The answer for one check, given the result of the sync loop's; an error has status 500.
pub(crate) fn one_check(check: Check, sync_loop: &Result<(), String>) -> Result<String, String> {
    match check.fails(sync_loop) {
        None => Ok("ok".to_owned()),
        Some(reason) => Err(format!("internal server error: {reason}\n")),
    }
}

/// The answer for all checks that the query does not exclude. It withholds reasons, which only the endpoint of a single check
/// shows. `on_result` receives each result.
pub(crate) fn all_checks(
    query: &Query,
    sync_loop: &Result<(), String>,
    on_result: impl Fn(Check, bool),
) -> Result<String, String> {
    let mut excluded = query.all("exclude");
    let mut lines = String::new();
    let mut fails = false;
    for check in Check::ALL {
        let name = check.name();
        let known = excluded.len();
        excluded.retain(|one| one != name);
        // Writing to a string cannot fail.
        let _ = if excluded.len() < known {
            writeln!(lines, "[+]{name} excluded: ok")
        } else if check.fails(sync_loop).is_some() {
            fails = true;
            on_result(check, false);
            writeln!(lines, "[-]{name} failed: reason withheld")
        } else {
            on_result(check, true);
            writeln!(lines, "[+]{name} ok")
        };
    }
    if !excluded.is_empty() {
        excluded.sort();
        excluded.dedup();
        let quoted: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
        let names = quoted.join(", ");
        let _ =
            writeln!(lines, "warn: some health checks cannot be excluded: no matches for {names}");
    }
    if fails {
        return Err(lines + "healthz check failed\n");
    }
    if query.has("verbose") { Ok(lines + "healthz check passed\n") } else { Ok("ok".to_owned()) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", true, Ok("ok"))]
    #[case("verbose", true, Ok("[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n"))]
    #[case(
        "verbose&exclude=log&exclude=x",
        true,
        Ok(
            "[+]ping ok\n[+]log excluded: ok\n[+]syncloop ok\n\
            warn: some health checks cannot be excluded: no matches for \"x\"\nhealthz check passed\n"
        )
    )]
    #[case(
        "",
        false,
        Err("[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n")
    )]
    #[case("exclude=syncloop", false, Ok("ok"))]
    fn healthz_aggregates_all_checks(
        #[case] query: &str,
        #[case] is_well: bool,
        #[case] expected: Result<&str, &str>,
    ) {
        let sync_loop = if is_well { Ok(()) } else { Err("late".to_owned()) };
        let answer = all_checks(&Query::parse(query), &sync_loop, |_, _| {});
        assert_eq!(answer.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn check_has_its_reason() {
        let late = Err("late".to_owned());
        assert_eq!(one_check(Check::Ping, &late), Ok("ok".to_owned()));
        let words = "internal server error: late\n".to_owned();
        assert_eq!(one_check(Check::SyncLoop, &late), Err(words));
        assert_eq!((Check::named("log"), Check::named("x")), (Some(Check::Log), None));
    }
}
