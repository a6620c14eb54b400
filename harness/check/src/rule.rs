//! A rule: one promise of the CRI, or one need of a client, and the calls that test it.

use std::fmt;
use std::pin::Pin;

use crate::context::Context;
use crate::outcome::Verdict;

/// How bad it is to break a rule. They are ordered: `Must` is the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Some client is better off.
    May,
    /// Some feature of a client does not work.
    Should,
    /// A kubelet does not work.
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

/// The tag of rules that run alone for another reason: what they make is a burden to a runtime, or to clients of its events.
pub(super) const ALONE: &str = "alone";

/// The future of a rule's body. It stays in one thread: to prove that each of them may move to another took half of the time in which
/// this package is compiled.
pub type Running<'a> = Pin<Box<dyn Future<Output = Verdict> + 'a>>;

/// A rule.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// `CRI-CTR-017`. It never changes its meaning.
    pub id: &'static str,
    /// How bad it is to break it.
    pub severity: Severity,
    /// The promise, as a sentence.
    pub says: &'static str,
    /// Who gives or needs it: the protocol or a client, with its version.
    pub source: &'static str,
    /// Words to select it by.
    pub tags: &'static [&'static str],
    /// The calls that it tests.
    pub calls: &'static [&'static str],
    /// What faulty runtimes do that fail it: texts of [`proxy::Fault`].
    pub faults: &'static [&'static str],
    /// The test.
    pub body: for<'a> fn(&'a Context) -> Running<'a>,
}

impl Rule {
    /// Whether it restarts the runtime.
    #[must_use]
    pub fn restarts(&self) -> bool {
        self.tags.contains(&RESTART)
    }

    /// Whether no other rule runs beside it.
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

/// The rules of a file. A rule has its severity, id and promise; its source, tags and calls; its test, and the faults that fail it:
///
/// ```text
/// Must "CRI-CTR-006": "ContainerStatus of an unknown container is NOT_FOUND.",
///     KUBELET, tags ["kubelet", "codes"], calls [ContainerStatus],
///     status_of_unknown_container_is_not_found, faults ["ContainerStatus recode NOT_FOUND OK"];
/// ```
///
/// The test is a function of the context, of what it is given, and of the arguments that follow its name in parentheses. Faults may
/// be a constant.
///
/// `given [namespaces, pod, container]` after the test makes what it needs, in this order: `namespaces`, `users`, `limits` and `restart` skip
/// the rule on a box without them, `pod` runs a pod of the context and passes it, and `container` passes the id of a container that
/// runs in that pod, or in one of its own.
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

/// Where promises come from.
pub(super) mod sources {
    /// The contract's comments.
    pub(crate) const API: &str = "cri-api 1.36, api.proto";
    /// What a kubelet depends on.
    pub(crate) const KUBELET: &str = "kubelet 1.36";
    /// What the official suite tests.
    pub(crate) const CRITEST: &str = "cri-tools 1.36, critest";
    /// What containerd's own tests demand.
    pub(crate) const CONTAINERD: &str = "containerd 2, integration tests";
    /// What CRI-O's own tests demand.
    pub(crate) const CRIO: &str = "CRI-O 1.36, integration tests";
    /// What both well-known runtimes do, though the contract does not say it.
    pub(crate) const RUNTIMES: &str = "containerd 2 and CRI-O 1.36, alike";
    /// What the log format's readers depend on.
    pub(crate) const LOGS: &str = "kubelet 1.36, k8s.io/cri-client/pkg/logs";
}
