//! ◆ What a path names. The same decoded path decides about rights and about what is served. Pure.

use http::Method;
use percent_encoding::percent_decode_str;

use super::health::Check;

/// What needs no rights on the read-only port.
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
            _ => return None,
        })
    }

    /// Whether it is for a method.
    fn takes(self, method: &Method) -> bool {
        match self {
            Self::Health | Self::HealthCheck(_) | Self::Pods => method == Method::GET,
            Self::Summary => [Method::GET, Method::POST].contains(method),
            Self::Metrics | Self::Cadvisor | Self::Probes | Self::Resource => {
                [Method::GET, Method::HEAD, Method::POST].contains(method)
            }
        }
    }
}

/// Something that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// What the read-only port has too.
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
}

/// A pod, and a container of it; of a port-forward the container's name is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    /// The pod's uid, if the path has it.
    pub(crate) uid: Option<String>,
    pub(crate) container: String,
}

/// Why nothing is served at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoRoute {
    /// Nothing is there.
    #[error("404: Page Not Found")]
    NotFound,
    /// It is not for this method.
    #[error("405: Method Not Allowed")]
    Method,
}

/// The path without escapes; `None` if that is not text.
pub(crate) fn decoded(path: &str) -> Option<String> {
    percent_decode_str(path).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

/// The page that a decoded path names.
pub(crate) fn page(method: &Method, path: &str) -> Result<Page, NoRoute> {
    let words: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let page = Page::at(&words).ok_or(NoRoute::NotFound)?;
    if page.takes(method) { Ok(page) } else { Err(NoRoute::Method) }
}

/// What a decoded path names.
pub(crate) fn route(method: &Method, path: &str) -> Result<Route, NoRoute> {
    let words: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    if words.iter().skip(1).rev().skip(1).any(|word| word.is_empty()) {
        return Err(NoRoute::NotFound);
    }
    if let Some(page) = Page::at(&words) {
        return if page.takes(method) { Ok(Route::Page(page)) } else { Err(NoRoute::Method) };
    }
    let target = |namespace: &str, pod: &str, uid: Option<&str>, container: &str| Target {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        uid: uid.map(str::to_owned),
        container: container.to_owned(),
    };
    let route = match words.as_slice() {
        ["configz"] => Route::Config,
        ["runningpods"] | ["runningpods", ""] => Route::RunningPods,
        [_, .., ""] => return Err(NoRoute::NotFound),
        ["containerLogs", namespace, pod, container] => {
            Route::Logs(target(namespace, pod, None, container))
        }
        ["exec", namespace, pod, container] => Route::Exec(target(namespace, pod, None, container)),
        ["exec", namespace, pod, uid, container] => {
            Route::Exec(target(namespace, pod, Some(uid), container))
        }
        ["attach", namespace, pod, container] => {
            Route::Attach(target(namespace, pod, None, container))
        }
        ["attach", namespace, pod, uid, container] => {
            Route::Attach(target(namespace, pod, Some(uid), container))
        }
        ["portForward", namespace, pod] => Route::PortForward(target(namespace, pod, None, "")),
        ["portForward", namespace, pod, uid] => {
            Route::PortForward(target(namespace, pod, Some(uid), ""))
        }
        _ => return Err(NoRoute::NotFound),
    };
    let streams = matches!(route, Route::Exec(_) | Route::Attach(_) | Route::PortForward(_));
    if method == Method::GET || (streams && method == Method::POST) {
        Ok(route)
    } else {
        Err(NoRoute::Method)
    }
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
    fn path_names_what_is_served(#[case] path: &str, #[case] expected: Route) {
        assert_eq!(route(&Method::GET, path), Ok(expected));
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
    fn other_paths_and_methods_are_refused(
        #[case] method: Method,
        #[case] path: &str,
        #[case] expected: NoRoute,
    ) {
        assert_eq!(route(&method, path), Err(expected));
    }

    #[test]
    fn read_only_port_has_pages_alone() {
        assert_eq!(page(&Method::GET, "/stats/summary"), Ok(Page::Summary));
        assert_eq!(page(&Method::POST, "/pods"), Err(NoRoute::Method));
        for path in ["/configz", "/runningpods/", "/exec/ns/p/c", "/containerLogs/ns/p/c", ""] {
            assert_eq!(page(&Method::GET, path), Err(NoRoute::NotFound), "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_path_is_read_without_a_panic(path in "(/|%|[a-z]|exec|2F){0,12}") {
            let _ = decoded(&path).map(|path| route(&Method::GET, &path));
        }
    }
}
