//! ◆ Parses request paths. Authorization and routing use the same decoded path. Pure.

use http::Method;
use percent_encoding::percent_decode_str;

use super::Handlers;
use super::health::Check;

/// The pages that the read-only port also serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    /// `/healthz`
    Health,
    /// `/healthz/{check}`
    HealthCheck(Check),
    /// `/pods`
    Pods,
    /// `/stats/summary`
    Summary,
    /// `/metrics`
    Metrics,
    /// `/metrics/cadvisor`
    Cadvisor,
    /// `/metrics/probes`
    Probes,
    /// `/metrics/resource`
    Resource,
    /// `/metrics/slis`
    Slis,
    /// `DELETE /metrics/slis`: resets the counts.
    ResetSlis,
}

impl Page {
    /// The page at a path.
    fn at(words: &[&str]) -> Option<Self> {
        Some(match words {
            ["healthz"] => Self::Health,
            ["healthz", check] => Self::HealthCheck(Check::named(check)?),
            ["pods"] | ["pods", ""] => Self::Pods,
            ["stats", "summary"] | ["stats", "summary", ""] => Self::Summary,
            ["metrics"] => Self::Metrics,
            ["metrics", "cadvisor"] => Self::Cadvisor,
            ["metrics", "probes"] => Self::Probes,
            ["metrics", "resource"] => Self::Resource,
            ["metrics", "slis"] => Self::Slis,
            _ => return None,
        })
    }

    /// Checks the method of a page.
    fn by(self, method: &Method) -> Result<Self, NoRoute> {
        let taken = match self {
            Self::Health | Self::HealthCheck(_) | Self::Pods => &[Method::GET][..],
            Self::Summary => &[Method::GET, Method::POST],
            Self::Slis if method == Method::DELETE => return Ok(Self::ResetSlis),
            Self::Metrics
            | Self::Cadvisor
            | Self::Probes
            | Self::Resource
            | Self::Slis
            | Self::ResetSlis => &[Method::GET, Method::HEAD, Method::POST],
        };
        if taken.contains(method) { Ok(self) } else { Err(NoRoute::Method) }
    }
}

/// A route of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// A page that the read-only port also serves.
    Page(Page),
    /// `/configz`
    Config,
    /// `/runningpods/`
    RunningPods,
    /// `/containerLogs/{namespace}/{pod}/{container}`
    Logs(Target),
    /// `/exec/{namespace}/{pod}[/{uid}]/{container}`
    Exec(Target),
    /// `/attach/{namespace}/{pod}[/{uid}]/{container}`
    Attach(Target),
    /// `/portForward/{namespace}/{pod}[/{uid}]`
    PortForward(Target),
    /// `/run/{namespace}/{pod}[/{uid}]/{container}`
    Run(Target),
    /// `/checkpoint/{namespace}/{pod}/{container}`
    Checkpoint(Target),
    /// `/logs/{path}`
    SystemLogs(String),
    /// `/statusz`
    Statusz,
    /// `/flagz`
    Flagz,
}

impl Route {
    /// The pod that it is about, if it is about one.
    pub(crate) fn target(&self) -> Option<&Target> {
        match self {
            Self::Logs(target)
            | Self::Exec(target)
            | Self::Attach(target)
            | Self::PortForward(target)
            | Self::Run(target)
            | Self::Checkpoint(target) => Some(target),
            Self::Page(_)
            | Self::Config
            | Self::RunningPods
            | Self::SystemLogs(_)
            | Self::Statusz
            | Self::Flagz => None,
        }
    }
}

/// A pod and one of its containers. The container's name is empty for port-forward.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    /// The pod's uid, if the path has it.
    pub(crate) uid: Option<String>,
    pub(crate) container: String,
}

/// The reason that a path has no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoRoute {
    /// The path does not exist.
    #[error("404: Page Not Found")]
    NotFound,
    /// The path does not support the method.
    #[error("405: Method Not Allowed")]
    Method,
    /// Debugging handlers are disabled.
    #[error("Debug endpoints are disabled.\n")]
    NoDebugging,
    /// The machine's logs are not served.
    #[error("logs endpoint is disabled.\n")]
    NoSystemLogs,
    /// Profiling is not supported.
    #[error("profiling endpoint is disabled.\n")]
    NoProfiles,
    /// The log level cannot be changed.
    #[error("flags endpoint is disabled.\n")]
    NoFlags,
}

/// The percent-decoded path; `None` if it is not UTF-8.
pub(crate) fn decoded(path: &str) -> Option<String> {
    percent_decode_str(path).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

/// The page at a decoded path.
pub(crate) fn page(method: &Method, path: &str) -> Result<Page, NoRoute> {
    let words: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    Page::at(&words).ok_or(NoRoute::NotFound)?.by(method)
}

/// The route of a decoded path, with these handlers enabled.
pub(crate) fn route(method: &Method, path: &str, handlers: &Handlers) -> Result<Route, NoRoute> {
    let words: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    if let ["logs", _, ..] = words.as_slice()
        && handlers.debugging
        && handlers.system_logs.is_some()
    {
        // The rest is a file path, which Go's router does not clean.
        let below = path.trim_start_matches('/').strip_prefix("logs/").unwrap_or_default();
        let route = Route::SystemLogs(below.to_owned());
        return if method == Method::GET { Ok(route) } else { Err(NoRoute::Method) };
    }
    if let Some(disabled) = disabled(&words, handlers) {
        return Err(disabled);
    }
    if words.iter().skip(1).rev().skip(1).any(|word| word.is_empty()) {
        return Err(NoRoute::NotFound);
    }
    if let Some(page) = Page::at(&words) {
        return page.by(method).map(Route::Page);
    }
    if !handlers.debugging {
        return Err(NoRoute::NotFound);
    }
    let route = match words.as_slice() {
        ["configz"] => Route::Config,
        ["statusz"] if handlers.statusz => Route::Statusz,
        ["flagz"] if handlers.flagz => Route::Flagz,
        ["runningpods"] | ["runningpods", ""] => Route::RunningPods,
        [_, .., ""] => return Err(NoRoute::NotFound),
        ["checkpoint", ..] if !handlers.checkpoints => return Err(NoRoute::NotFound),
        words => of_pod(words).ok_or(NoRoute::NotFound)?,
    };
    let taken = match route {
        Route::Exec(_) | Route::Attach(_) | Route::PortForward(_) => {
            &[Method::GET, Method::POST][..]
        }
        Route::Run(_) | Route::Checkpoint(_) => &[Method::POST],
        Route::Statusz | Route::Flagz => &[Method::GET, Method::HEAD, Method::POST],
        Route::Page(_)
        | Route::Config
        | Route::RunningPods
        | Route::Logs(_)
        | Route::SystemLogs(_) => &[Method::GET],
    };
    if taken.contains(method) { Ok(route) } else { Err(NoRoute::Method) }
}

/// The error for a path whose handler is disabled.
fn disabled(words: &[&str], handlers: &Handlers) -> Option<NoRoute> {
    let is_debugging = matches!(
        words,
        [
            "run" | "exec" | "attach" | "portForward" | "containerLogs" | "runningpods" | "logs",
            _,
            ..
        ] | ["debug", "pprof", _, ..]
    );
    match words {
        _ if is_debugging && !handlers.debugging => Some(NoRoute::NoDebugging),
        _ if !handlers.debugging => None,
        ["logs", _, ..] => Some(NoRoute::NoSystemLogs),
        ["debug", "pprof", _, ..] => Some(NoRoute::NoProfiles),
        ["debug", "flags", "v"] => Some(NoRoute::NoFlags),
        _ => None,
    }
}

/// The route of a path with an operation, a namespace and a pod.
fn of_pod(words: &[&str]) -> Option<Route> {
    let target = |namespace: &str, pod: &str, uid: Option<&str>, container: &str| Target {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        uid: uid.map(str::to_owned),
        container: container.to_owned(),
    };
    let (kind, words) = words.split_first()?;
    Some(match (*kind, words) {
        ("containerLogs", [namespace, pod, container]) => {
            Route::Logs(target(namespace, pod, None, container))
        }
        ("checkpoint", [namespace, pod, container]) => {
            Route::Checkpoint(target(namespace, pod, None, container))
        }
        ("portForward", [namespace, pod]) => Route::PortForward(target(namespace, pod, None, "")),
        ("portForward", [namespace, pod, uid]) => {
            Route::PortForward(target(namespace, pod, Some(uid), ""))
        }
        (kind, [namespace, pod, rest @ ..]) => {
            let (uid, container) = match rest {
                [container] => (None, *container),
                [uid, container] => (Some(*uid), *container),
                _ => return None,
            };
            let target = target(namespace, pod, uid, container);
            match kind {
                "exec" => Route::Exec(target),
                "attach" => Route::Attach(target),
                "run" => Route::Run(target),
                _ => return None,
            }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn target(uid: Option<&str>, container: &str) -> Target {
        let uid = uid.map(str::to_owned);
        Target {
            namespace: "ns".to_owned(),
            pod: "p".to_owned(),
            uid,
            container: container.to_owned(),
        }
    }

    #[rstest]
    #[case("/healthz", Route::Page(Page::Health))]
    #[case("/healthz/ping", Route::Page(Page::HealthCheck(Check::Ping)))]
    #[case("/pods/", Route::Page(Page::Pods))]
    #[case("/stats/summary", Route::Page(Page::Summary))]
    #[case("/metrics", Route::Page(Page::Metrics))]
    #[case("/metrics/resource", Route::Page(Page::Resource))]
    #[case("/configz", Route::Config)]
    #[case("/runningpods/", Route::RunningPods)]
    #[case("/containerLogs/ns/p/c", Route::Logs(target(None, "c")))]
    #[case("/exec/ns/p/c", Route::Exec(target(None, "c")))]
    #[case("/exec/ns/p/u/c", Route::Exec(target(Some("u"), "c")))]
    #[case("/attach/ns/p/u/c", Route::Attach(target(Some("u"), "c")))]
    #[case("/portForward/ns/p", Route::PortForward(target(None, "")))]
    #[case("/portForward/ns/p/u", Route::PortForward(target(Some("u"), "")))]
    #[case("/metrics/slis", Route::Page(Page::Slis))]
    #[case("/statusz", Route::Statusz)]
    #[case("/flagz", Route::Flagz)]
    #[case("/logs/", Route::SystemLogs(String::new()))]
    #[case("/logs/pods//a/", Route::SystemLogs("pods//a/".to_owned()))]
    fn paths_map_to_routes(#[case] path: &str, #[case] expected: Route) {
        assert_eq!(route(&Method::GET, path, &Handlers::default()), Ok(expected));
    }

    #[rstest]
    #[case(Method::POST, "/run/ns/p/c", Route::Run(target(None, "c")))]
    #[case(Method::POST, "/run/ns/p/u/c", Route::Run(target(Some("u"), "c")))]
    #[case(Method::POST, "/checkpoint/ns/p/c", Route::Checkpoint(target(None, "c")))]
    #[case(Method::DELETE, "/metrics/slis", Route::Page(Page::ResetSlis))]
    fn method_must_match_the_route(
        #[case] method: Method,
        #[case] path: &str,
        #[case] expected: Route,
    ) {
        assert_eq!(route(&method, path, &Handlers::default()), Ok(expected));
    }

    #[rstest]
    #[case("/containerLogs/ns/p/c", NoRoute::NoDebugging)]
    #[case("/exec/ns/p/c", NoRoute::NoDebugging)]
    #[case("/run/", NoRoute::NoDebugging)]
    #[case("/runningpods/", NoRoute::NoDebugging)]
    #[case("/logs/", NoRoute::NoDebugging)]
    #[case("/debug/pprof/heap", NoRoute::NoDebugging)]
    #[case("/debug/flags/v", NoRoute::NotFound)]
    #[case("/checkpoint/ns/p/c", NoRoute::NotFound)]
    #[case("/configz", NoRoute::NotFound)]
    #[case("/statusz", NoRoute::NotFound)]
    fn debug_paths_are_refused_without_debugging_handlers(
        #[case] path: &str,
        #[case] expected: NoRoute,
    ) {
        let handlers = Handlers { debugging: false, ..Handlers::default() };
        assert_eq!(route(&Method::GET, path, &handlers), Err(expected));
        assert_eq!(route(&Method::GET, "/pods", &handlers), Ok(Route::Page(Page::Pods)));
    }

    #[rstest]
    #[case(Handlers { system_logs: None, ..Handlers::default() }, "/logs/x", NoRoute::NoSystemLogs)]
    #[case(Handlers { checkpoints: false, ..Handlers::default() }, "/checkpoint/ns/p/c", NoRoute::NotFound)]
    #[case(Handlers { flagz: false, ..Handlers::default() }, "/flagz", NoRoute::NotFound)]
    #[case(Handlers { statusz: false, ..Handlers::default() }, "/statusz", NoRoute::NotFound)]
    fn handlers_can_be_disabled_one_by_one(
        #[case] handlers: Handlers,
        #[case] path: &str,
        #[case] expected: NoRoute,
    ) {
        let routes = |handlers: &Handlers| {
            [Method::GET, Method::POST].map(|method| route(&method, path, handlers))
        };
        assert!(routes(&Handlers::default()).iter().any(Result::is_ok));
        assert!(routes(&handlers).contains(&Err(expected)));
        assert!(routes(&handlers).iter().all(Result::is_err));
    }

    #[rstest]
    #[case(Method::GET, "/", NoRoute::NotFound)]
    #[case(Method::GET, "", NoRoute::NotFound)]
    #[case(Method::GET, "/containerLogs/ns//c", NoRoute::NotFound)]
    #[case(Method::GET, "/containerLogs/ns/p/", NoRoute::NotFound)]
    #[case(Method::GET, "/containerLogs/ns/p/c/d", NoRoute::NotFound)]
    #[case(Method::GET, "/exec/ns/p", NoRoute::NotFound)]
    #[case(Method::POST, "/pods", NoRoute::Method)]
    #[case(Method::PUT, "/exec/ns/p/c", NoRoute::Method)]
    #[case(Method::HEAD, "/healthz", NoRoute::Method)]
    #[case(Method::GET, "/healthz/pong", NoRoute::NotFound)]
    #[case(Method::GET, "/stats", NoRoute::NotFound)]
    #[case(Method::GET, "/stats/summary/x", NoRoute::NotFound)]
    #[case(Method::GET, "/metrics/", NoRoute::NotFound)]
    #[case(Method::PUT, "/stats/summary", NoRoute::Method)]
    #[case(Method::HEAD, "/stats/summary", NoRoute::Method)]
    #[case(Method::DELETE, "/metrics/resource", NoRoute::Method)]
    #[case(Method::POST, "/configz", NoRoute::Method)]
    #[case(Method::GET, "/run/ns/p/c", NoRoute::Method)]
    #[case(Method::GET, "/checkpoint/ns/p/c", NoRoute::Method)]
    #[case(Method::POST, "/checkpoint/ns/p/u/c", NoRoute::NotFound)]
    #[case(Method::POST, "/logs/x", NoRoute::Method)]
    #[case(Method::GET, "/logs", NoRoute::NotFound)]
    #[case(Method::PUT, "/debug/flags/v", NoRoute::NoFlags)]
    #[case(Method::GET, "/debug/pprof/", NoRoute::NoProfiles)]
    #[case(Method::GET, "/debug/pprof", NoRoute::NotFound)]
    #[case(Method::DELETE, "/metrics", NoRoute::Method)]
    fn other_paths_and_methods_are_refused(
        #[case] method: Method,
        #[case] path: &str,
        #[case] expected: NoRoute,
    ) {
        assert_eq!(route(&method, path, &Handlers::default()), Err(expected));
    }

    #[test]
    fn read_only_port_serves_only_pages() {
        assert_eq!(page(&Method::GET, "/stats/summary"), Ok(Page::Summary));
        assert_eq!(page(&Method::POST, "/pods"), Err(NoRoute::Method));
        for path in ["/configz", "/runningpods/", "/exec/ns/p/c", "/containerLogs/ns/p/c", ""] {
            assert_eq!(page(&Method::GET, path), Err(NoRoute::NotFound), "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_path_is_read_without_a_panic(path in "(/|%|[a-z]|exec|2F){0,12}") {
            let _ = decoded(&path).map(|path| route(&Method::GET, &path, &Handlers::default()));
        }
    }
}
