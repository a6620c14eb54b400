//! A rule: a requirement of the CRI or of a client, and the calls that test it.

use std::fmt;
use std::pin::Pin;

use crate::context::Context;
use crate::outcome::Verdict;

/// The severity of a violation. Severities are ordered; `Must` is the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Some client works better with a runtime that satisfies the rule.
    May,
    /// A feature of some client does not work with a runtime that violates the rule.
    Should,
    /// A kubelet does not work with a runtime that violates the rule.
    Must,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::May => "may",
            Self::Should => "should",
            Self::Must => "must",
        })
    }
}

/// The tag of rules that restart the runtime.
pub(super) const RESTART: &str = "runtime-restart";

/// The tag of rules that run alone for another reason: their objects are a burden to the runtime or to subscribers of its events.
pub(super) const ALONE: &str = "alone";

/// The future of a rule's body. It is not `Send`: checking this for every body took half of the package's compile time.
pub type Running<'a> = Pin<Box<dyn Future<Output = Verdict> + 'a>>;

/// A rule.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// `CRI-CTR-017`. Its meaning never changes.
    pub id: &'static str,
    /// The severity of a violation.
    pub severity: Severity,
    /// The requirement, as a sentence.
    pub says: &'static str,
    /// The source of the requirement: the protocol or a client, with its version.
    pub source: &'static str,
    /// Words that select the rule.
    pub tags: &'static [&'static str],
    /// The calls that it tests.
    pub calls: &'static [&'static str],
    /// Faults of a runtime that violate the rule: texts of [`proxy::Fault`].
    pub faults: &'static [&'static str],
    /// The test.
    pub body: for<'a> fn(&'a Context) -> Running<'a>,
}

impl Rule {
    /// Whether the rule restarts the runtime.
    #[must_use]
    pub fn restarts(&self) -> bool {
        self.tags.contains(&RESTART)
    }

    /// Whether the rule runs while no other rule runs.
    #[must_use]
    pub fn runs_alone(&self) -> bool {
        self.restarts() || self.tags.contains(&ALONE)
    }

    /// The area: `container` of `CRI-CTR-017`.
    #[must_use]
    pub fn area(&self) -> &'static str {
        match self.id.split('-').nth(1) {
            Some("RTM") => "runtime",
            Some("SBX") => "sandbox",
            Some("CTR") => "container",
            Some("CFG") => "configuration",
            Some("STP") => "stop",
            Some("EXE") => "exec",
            Some("LOG") => "log",
            Some("EVT") => "event",
            Some("IMG") => "image",
            Some("STA") => "statistics",
            Some("AGR") => "agreement",
            Some("COD") => "codes",
            Some("PRC") => "process",
            Some("CON") => "concurrency",
            Some("CAN") => "cancellation",
            Some("STR") => "stream",
            Some("PUL") => "pull",
            Some("CNT") => "content",
            Some("FMT") => "format",
            Some("LIM") => "limits",
            Some("NSP") => "namespaces",
            Some("NET") => "network",
            Some("SEC") => "security",
            Some("MNT") => "mounts",
            Some("OPT") => "optional",
            Some("RST") => "restart",
            Some(_) | None => "other",
        }
    }
}

/// The rules of a file. A rule has its severity, id and requirement; its source, tags and calls; its test, and the faults that
/// violate it:
///
/// ```text
/// Must "CRI-CTR-006": "ContainerStatus of an unknown container is NOT_FOUND.",
///     KUBELET, tags ["kubelet", "codes"], calls [ContainerStatus],
///     status_of_unknown_container_is_not_found, faults ["ContainerStatus recode NOT_FOUND OK"];
/// ```
///
/// The arguments of the test are the context, the objects of `given`, and the arguments in parentheses after the test's name.
/// Faults may be a constant.
///
/// `given [namespaces, pod, container]` after the test prepares what it needs, in this order: `namespaces`, `users`, `limits` and
/// `restart` skip the rule if the machine or the check lacks them, `pod` runs a pod and passes it, and `container` passes the id of
/// a running container in that pod, or in a new one.
macro_rules! rules {
    (@faults [$($fault:expr),* $(,)?]) => { &[$($fault),*] };
    (@faults $faults:ident) => { $faults };
    (@given $x:ident [] $test:ident $made:tt) => { $crate::rule::rules!(@call $x $test $made) };
    (@given $x:ident [namespaces $($more:ident)*] $test:ident $made:tt) => {{
        $x.needs_namespaces()?;
        $crate::rule::rules!(@given $x [$($more)*] $test $made)
    }};
    (@given $x:ident [users $($more:ident)*] $test:ident $made:tt) => {{
        $x.needs_users()?;
        $crate::rule::rules!(@given $x [$($more)*] $test $made)
    }};
    (@given $x:ident [limits $($more:ident)*] $test:ident $made:tt) => {{
        $x.needs_limits()?;
        $crate::rule::rules!(@given $x [$($more)*] $test $made)
    }};
    (@given $x:ident [restart $($more:ident)*] $test:ident $made:tt) => {{
        $x.needs_restart()?;
        $crate::rule::rules!(@given $x [$($more)*] $test $made)
    }};
    (@given $x:ident [pod container] $test:ident [$($made:expr),*]) => {{
        let pod = $x.pod().await?;
        let id = $x.running(&pod).await?;
        $crate::rule::rules!(@call $x $test [pod, id $(, $made)*])
    }};
    (@given $x:ident [pod] $test:ident [$($made:expr),*]) => {{
        let pod = $x.pod().await?;
        $crate::rule::rules!(@call $x $test [pod $(, $made)*])
    }};
    (@given $x:ident [container] $test:ident [$($made:expr),*]) => {{
        let id = $x.running(&$x.pod().await?).await?;
        $crate::rule::rules!(@call $x $test [id $(, $made)*])
    }};
    (@call $x:ident $test:ident [$($made:expr),*]) => { $test($x $(, $made)*).await };
    ($(
        $severity:ident $id:literal: $says:literal,
        $source:ident, tags [$($tag:expr),*], calls [$($call:ident),*],
        $test:ident $(($($argument:expr),*))? $(given [$($given:ident),*])?, faults $faults:tt;
    )*) => {
        &[$($crate::rule::Rule {
            id: $id,
            severity: $crate::rule::Severity::$severity,
            says: $says,
            source: $source,
            tags: &[$($tag),*],
            calls: &[$(stringify!($call)),*],
            faults: $crate::rule::rules!(@faults $faults),
            body: |x| Box::pin(async move {
                $crate::rule::rules!(@given x [$($($given)*)?] $test [$($($argument),*)?])
            }),
        }),*]
    };
}
pub(crate) use rules;

/// The sources of requirements.
pub(super) mod sources {
    /// Comments in the protocol.
    pub(crate) const API: &str = "cri-api 1.36, api.proto";
    /// The kubelet's code.
    pub(crate) const KUBELET: &str = "kubelet 1.36";
    /// The official conformance suite.
    pub(crate) const CRITEST: &str = "cri-tools 1.36, critest";
    /// containerd's own tests.
    pub(crate) const CONTAINERD: &str = "containerd 2, integration tests";
    /// CRI-O's own tests.
    pub(crate) const CRIO: &str = "CRI-O 1.36, integration tests";
    /// The behaviour of both well-known runtimes, which the protocol does not specify.
    pub(crate) const RUNTIMES: &str = "containerd 2 and CRI-O 1.36, alike";
    /// The readers of container logs.
    pub(crate) const LOGS: &str = "kubelet 1.36, k8s.io/cri-client/pkg/logs";
}
