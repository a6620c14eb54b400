//! A rule: one promise of the CRI, or one need of a client, and the calls that test it.

use std::fmt;
use std::pin::Pin;

use super::context::Context;
use super::outcome::Verdict;

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

/// The future of a rule's body.
pub type Running<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

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
    /// What faulty runtimes do that fail it: texts of [`crate::proxy::Fault`].
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

/// Where promises come from.
pub(super) mod sources {
    /// The contract's comments.
    pub(in crate::check) const API: &str = "cri-api 1.36, api.proto";
    /// What a kubelet depends on.
    pub(in crate::check) const KUBELET: &str = "kubelet 1.36";
    /// What the official suite tests.
    pub(in crate::check) const CRITEST: &str = "cri-tools 1.36, critest";
    /// What containerd's own tests demand.
    pub(in crate::check) const CONTAINERD: &str = "containerd 2, integration tests";
    /// What CRI-O's own tests demand.
    pub(in crate::check) const CRIO: &str = "CRI-O 1.36, integration tests";
    /// What the log format's readers depend on.
    pub(in crate::check) const LOGS: &str = "kubelet 1.36, k8s.io/cri-client/pkg/logs";
}
