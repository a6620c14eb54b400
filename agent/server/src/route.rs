//! ◆ What a path names. The same decoded path decides about rights and about what is served. Pure.

use http::Method;
use percent_encoding::percent_decode_str;

/// Something that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// `/healthz`
    Health,
    /// `/pods`
    Pods,
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

/// What a decoded path names.
pub(crate) fn route(method: &Method, path: &str) -> Result<Route, NoRoute> {
    let words: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    if words.iter().skip(1).rev().skip(1).any(|word| word.is_empty()) {
        return Err(NoRoute::NotFound);
    }
    let target = |namespace: &str, pod: &str, uid: Option<&str>, container: &str| Target {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        uid: uid.map(str::to_owned),
        container: container.to_owned(),
    };
    let route = match words.as_slice() {
        ["healthz"] => Route::Health,
        ["pods"] | ["pods", ""] => Route::Pods,
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
    #[case("/healthz", Route::Health)]
    #[case("/pods/", Route::Pods)]
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
    fn other_paths_and_methods_are_refused(
        #[case] method: Method,
        #[case] path: &str,
        #[case] expected: NoRoute,
    ) {
        assert_eq!(route(&method, path), Err(expected));
    }

    proptest! {
        #[test]
        fn any_path_is_read_without_a_panic(path in "(/|%|[a-z]|exec|2F){0,12}") {
            let _ = decoded(&path).map(|path| route(&Method::GET, &path));
        }
    }
}
