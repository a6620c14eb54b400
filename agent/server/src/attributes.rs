//! ◆ The attributes of a request for authorization: a verb on subresources of the node. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/auth.go GetRequestAttributes, with the gate KubeletFineGrainedAuthz (on).

use http::Method;

/// The verb of a method; empty for a method that only a rule for all verbs allows.
pub(crate) fn verb(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// The subresources of a path. Permission for any one of them suffices.
pub(crate) fn subresources(path: &str) -> Vec<&'static str> {
    let below = |parents: &[&str]| parents.iter().any(|parent| is_below(path, parent));
    let fine = [
        (&["/pods", "/runningpods"][..], "pods"),
        (&["/healthz"], "healthz"),
        (&["/configz"], "configz"),
    ];
    let coarse = [
        (&["/stats"][..], "stats"),
        (&["/metrics"], "metrics"),
        (&["/logs"], "log"),
        (&["/checkpoint"], "checkpoint"),
        (&["/statusz"], "statusz"),
        (&["/flagz"], "configz"),
    ];
    let fine = fine.iter().find(|(parents, _)| below(parents)).map(|(_, name)| *name);
    let coarse = coarse.iter().find(|(parents, _)| below(parents)).map(|(_, name)| *name);
    fine.into_iter().chain([coarse.unwrap_or("proxy")]).collect()
}

fn is_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/pods", "pods proxy")]
    #[case("/pods/", "pods proxy")]
    #[case("/podsx", "proxy")]
    #[case("/runningpods/", "pods proxy")]
    #[case("/healthz/ping", "healthz proxy")]
    #[case("/configz", "configz proxy")]
    #[case("/flagz", "configz")]
    #[case("/stats/summary", "stats")]
    #[case("/metrics/resource", "metrics")]
    #[case("/logs/x", "log")]
    #[case("/checkpoint/a/b/c", "checkpoint")]
    #[case("/statusz", "statusz")]
    #[case("/containerLogs/a/b/c", "proxy")]
    #[case("/exec/a/b/c", "proxy")]
    #[case("/", "proxy")]
    #[case("", "proxy")]
    fn path_has_subresources(#[case] path: &str, #[case] expected: &str) {
        assert_eq!(subresources(path).join(" "), expected);
    }

    #[rstest]
    #[case(Method::GET, "get")]
    #[case(Method::POST, "create")]
    #[case(Method::HEAD, "")]
    fn method_has_verb(#[case] method: Method, #[case] expected: &str) {
        assert_eq!(verb(&method), expected);
    }
}
