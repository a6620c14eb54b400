//! ◆ `/healthz`: the agent's checks, in the kubelet's format. Pure.
//!
//! Source: Kubernetes 1.36, k8s.io/apiserver/pkg/server/healthz/healthz.go; the checks are those of
//! pkg/kubelet/server/server.go and pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go.

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
    /// Device plugins can register.
    DevicePlugin,
}

/// The results of the checks that can fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Results {
    pub(crate) sync_loop: Result<(), String>,
    pub(crate) device_plugins: Result<(), String>,
}

impl Check {
    const ALL: [Self; 4] = [Self::Ping, Self::Log, Self::SyncLoop, Self::DevicePlugin];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Log => "log",
            Self::SyncLoop => "syncloop",
            Self::DevicePlugin => "device-plugin",
        }
    }

    /// The check of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|check| check.name() == name)
    }

    fn fails(self, results: &Results) -> Option<&String> {
        match self {
            Self::Ping | Self::Log => None,
            Self::SyncLoop => results.sync_loop.as_ref().err(),
            Self::DevicePlugin => results.device_plugins.as_ref().err(),
        }
    }
}

/// The answer for one check; an error has status 500.
pub(crate) fn one_check(check: Check, results: &Results) -> Result<String, String> {
    match check.fails(results) {
        None => Ok("ok".to_owned()),
        Some(reason) => Err(format!("internal server error: {reason}\n")),
    }
}

/// The answer for all checks that the query does not exclude. It withholds reasons, which only the endpoint of a single check
/// shows. `on_result` receives each result.
pub(crate) fn all_checks(
    query: &Query,
    results: &Results,
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
        } else if check.fails(results).is_some() {
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

    fn results(sync_loop: Option<&str>, device_plugins: Option<&str>) -> Results {
        let of = |failure: Option<&str>| failure.map_or(Ok(()), |why| Err(why.to_owned()));
        Results { sync_loop: of(sync_loop), device_plugins: of(device_plugins) }
    }

    #[rstest]
    #[case("", None, Ok("ok"))]
    #[case(
        "verbose",
        None,
        Ok("[+]ping ok\n[+]log ok\n[+]syncloop ok\n[+]device-plugin ok\nhealthz check passed\n")
    )]
    #[case(
        "verbose&exclude=log&exclude=x",
        None,
        Ok(
            "[+]ping ok\n[+]log excluded: ok\n[+]syncloop ok\n[+]device-plugin ok\n\
            warn: some health checks cannot be excluded: no matches for \"x\"\nhealthz check passed\n"
        )
    )]
    #[case(
        "",
        Some("late"),
        Err(
            "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\n[+]device-plugin ok\n\
            healthz check failed\n"
        )
    )]
    #[case("exclude=syncloop", Some("late"), Ok("ok"))]
    fn healthz_aggregates_all_checks(
        #[case] query: &str,
        #[case] sync_loop: Option<&str>,
        #[case] expected: Result<&str, &str>,
    ) {
        let answer = all_checks(&Query::parse(query), &results(sync_loop, None), |_, _| {});
        assert_eq!(answer.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn check_has_its_reason() {
        let failed = results(Some("late"), Some("no socket"));
        assert_eq!(one_check(Check::Ping, &failed), Ok("ok".to_owned()));
        for (name, reason) in [("syncloop", "late"), ("device-plugin", "no socket")] {
            let expected = Err(format!("internal server error: {reason}\n"));
            assert_eq!(Check::named(name).map(|it| one_check(it, &failed)), Some(expected));
        }
        assert_eq!((Check::named("log"), Check::named("x")), (Some(Check::Log), None));
    }
}
