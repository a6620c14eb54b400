//! ◆ Records of pulls: which credentials could pull an image, and therefore which pods may use it without another pull.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/images/pullmanager/image_pull_manager.go; the documents are those of
//! kubelet.config.k8s.io/v1beta1.

use compact::Map;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::keyring::{Credential, CredentialSource, SourceRef};
use super::policy::CredentialVerification;

/// Matching secrets are recorded up to this number, so that a record does not grow without limit in a cluster with many namespaces.
const MOST_MATCHED_SECRETS: usize = 100;

/// The record of a pulled image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PulledRecord {
    /// The runtime's reference to the image.
    pub image_ref: String,
    /// When the record was changed.
    pub updated_at: Timestamp,
    /// Credentials by the `image` of containers, without tag and digest.
    pub credentials: Map<String, PullCredentials>,
}

/// The owners of credentials that could pull an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct PullCredentials {
    /// Secrets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_secrets: Vec<PullSecretRecord>,
    /// Service accounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_service_accounts: Vec<PullServiceAccountRecord>,
    /// Every pod of the node may use the image.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

/// A secret that could pull an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PullSecretRecord {
    /// The uid of the secret.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// See [`Credential::hash`].
    pub credential_hash: String,
}

/// A service account that could pull an image, in the order of [`PullSecretRecord`]s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PullServiceAccountRecord {
    /// The uid of the service account.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl PullSecretRecord {
    /// The record of a credential; `None` for one that is not from a secret.
    fn of(credential: &Credential) -> Option<Self> {
        let Some(CredentialSource::Secret(secret)) = &credential.source else {
            return None;
        };
        Some(Self {
            uid: secret.uid.clone(),
            namespace: secret.namespace.clone(),
            name: secret.name.clone(),
            credential_hash: credential.hash.clone(),
        })
    }

    fn coordinates(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

impl PullServiceAccountRecord {
    /// The record of a credential; `None` for one that is not from a service account.
    fn of(credential: &Credential) -> Option<Self> {
        let Some(CredentialSource::ServiceAccount(account)) = &credential.source else {
            return None;
        };
        let SourceRef { namespace, name, uid } = account.clone();
        Some(Self { uid, namespace, name })
    }

    fn coordinates(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

impl PullCredentials {
    /// The record of a successful pull with this credential; `None`: without one.
    pub(crate) fn of(used: Option<&Credential>) -> Self {
        let secret = used.and_then(PullSecretRecord::of);
        let account = used.and_then(PullServiceAccountRecord::of);
        Self {
            node_pods_accessible: secret.is_none() && account.is_none(),
            kubernetes_secrets: secret.into_iter().collect(),
            kubernetes_service_accounts: account.into_iter().collect(),
        }
    }

    /// Adds the credentials of `new`. Returns whether that changed anything.
    fn merge(&mut self, new: &Self) -> bool {
        if self.node_pods_accessible {
            return false;
        }
        if new.node_pods_accessible {
            *self = new.clone();
            return true;
        }
        let mut changed = false;
        for secret in &new.kubernetes_secrets {
            let known = self
                .kubernetes_secrets
                .iter_mut()
                .find(|known| known.coordinates() == secret.coordinates());
            match known {
                Some(known) if known.credential_hash == secret.credential_hash => continue,
                Some(known) => known.credential_hash.clone_from(&secret.credential_hash),
                None => self.kubernetes_secrets.push(secret.clone()),
            }
            changed = true;
        }
        if changed {
            compact::sort_by(&mut self.kubernetes_secrets, |a, b| {
                a.coordinates().cmp(&b.coordinates())
            });
        }
        self.merge_accounts(&new.kubernetes_service_accounts) || changed
    }

    fn merge_accounts(&mut self, new: &[PullServiceAccountRecord]) -> bool {
        let known = &mut self.kubernetes_service_accounts;
        let before = known.len();
        for account in new {
            if !known.contains(account) {
                known.push(account.clone());
            }
        }
        compact::sort_by(known, |a, b| a.coordinates().cmp(&b.coordinates()));
        known.len() > before
    }
}

impl PulledRecord {
    /// A record without credentials: before a pod uses the image, its credentials are verified.
    pub(crate) fn new(image_ref: &str, now: Timestamp) -> Self {
        Self { image_ref: image_ref.to_owned(), updated_at: now, credentials: Map::new() }
    }

    /// Adds the credentials that pulled the image under a name. Returns whether the record changed.
    pub(crate) fn add(&mut self, name: &str, new: &PullCredentials, now: Timestamp) -> bool {
        let changed = match self.credentials.get_mut(name) {
            Some(known) => known.merge(new),
            None => {
                self.credentials.insert(name.to_owned(), new.clone());
                true
            }
        };
        if changed {
            self.updated_at = now;
        }
        changed
    }
}

/// The record of a present image.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RecordState<'a> {
    /// No record: the agent did not pull the image.
    Nothing,
    /// A pull is in progress, or an earlier agent ended during one.
    Intended,
    /// The agent pulled the image.
    Pulled(&'a PulledRecord),
    /// The record cannot be read.
    Damaged,
}

/// Whether a pod may use a present image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It may use the image.
    Granted,
    /// It may use the image only after a pull with its credentials.
    PullRequired,
    /// It may use the image if one of its secrets, or its service account, matches these; see [`matching`].
    OfCredentials(PullCredentials),
}

/// Decides whether pods may use a present image.
pub(crate) fn access(
    policy: &CredentialVerification,
    image: &str,
    known: RecordState<'_>,
) -> Access {
    let record = match known {
        RecordState::Damaged => return Access::PullRequired,
        RecordState::Nothing | RecordState::Intended => None,
        RecordState::Pulled(record) => Some(record),
    };
    if !policy.applies_to(image, !matches!(known, RecordState::Nothing)) {
        return Access::Granted;
    }
    let credentials = image_reference::without_version(image)
        .ok()
        .zip(record)
        .and_then(|(name, record)| record.credentials.get(name));
    match credentials {
        Some(credentials) if credentials.node_pods_accessible => Access::Granted,
        Some(credentials)
            if !credentials.kubernetes_secrets.is_empty()
                || !credentials.kubernetes_service_accounts.is_empty() =>
        {
            Access::OfCredentials(credentials.clone())
        }
        Some(_) | None => Access::PullRequired,
    }
}

/// Whether one of a pod's credentials is on record: with the same content, as the same secret with new content, which counts as a
/// rotation, or as the same service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// No credential is on record.
    No,
    /// A credential is on record, unchanged.
    Yes,
    /// A credential is on record, and the record must be updated to this.
    Changed(PullCredentials),
}

/// Compares a pod's credentials with recorded ones, in order.
pub(crate) fn matching(recorded: &PullCredentials, of_pod: &[Credential]) -> Match {
    let known = &recorded.kubernetes_secrets;
    for secret in of_pod.iter().filter_map(PullSecretRecord::of) {
        for candidate in known {
            let same_content = !candidate.credential_hash.is_empty()
                && candidate.credential_hash == secret.credential_hash;
            let same_secret = candidate.coordinates() == secret.coordinates();
            let room = known.len() < MOST_MATCHED_SECRETS;
            match (same_content, same_secret) {
                (true, true) => return Match::Yes,
                (true, false) if !room => return Match::Yes,
                (true, false) => {}
                (false, true) if room => {}
                (false, _) => continue,
            }
            return Match::Changed(PullCredentials {
                kubernetes_secrets: vec![secret],
                ..PullCredentials::default()
            });
        }
    }
    // A pod has one account, regardless of the audiences of its tokens.
    let account = of_pod.iter().find_map(PullServiceAccountRecord::of);
    match account.is_some_and(|account| recorded.kubernetes_service_accounts.contains(&account)) {
        true => Match::Yes,
        false => Match::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(name: &str, uid: &str, hash: &str) -> Credential {
        Credential {
            username: String::new(),
            password: String::new(),
            hash: hash.to_owned(),
            source: Some(CredentialSource::Secret(SourceRef {
                namespace: "ns".to_owned(),
                name: name.to_owned(),
                uid: uid.to_owned(),
            })),
        }
    }

    /// A credential that a provider returned for a token of this account.
    fn of_account(name: &str, uid: &str) -> Credential {
        let (namespace, name, uid) = ("ns".to_owned(), name.to_owned(), uid.to_owned());
        let source = CredentialSource::ServiceAccount(SourceRef { namespace, name, uid });
        Credential { source: Some(source), ..credential("", "", "x") }
    }

    fn recorded(secrets: &[Credential]) -> PullCredentials {
        let mut all = PullCredentials::default();
        for secret in secrets {
            all.merge(&PullCredentials::of(Some(secret)));
        }
        all
    }

    #[test]
    fn same_content_or_same_secret_matches() {
        let known = recorded(&[credential("a", "1", "x")]);
        assert_eq!(matching(&known, &[credential("a", "1", "x")]), Match::Yes);
        for changed in [credential("b", "2", "x"), credential("a", "1", "y")] {
            let expected = Match::Changed(recorded(std::slice::from_ref(&changed)));
            assert_eq!(matching(&known, &[changed]), expected);
        }
        let others = [credential("a", "2", "y"), credential("b", "1", "y")];
        assert_eq!(matching(&known, &others), Match::No);
        let nodes_own = Credential { source: None, ..credential("a", "1", "x") };
        assert_eq!(matching(&known, &[nodes_own]), Match::No);
    }

    #[test]
    fn same_service_account_matches() {
        let known = recorded(&[of_account("robot", "1"), credential("a", "1", "y")]);
        assert_eq!(matching(&known, &[of_account("robot", "1")]), Match::Yes);
        // A later account with the same name, and another kind of object.
        let others = [of_account("robot", "2"), credential("robot", "1", "x")];
        assert_eq!(matching(&known, &others), Match::No);
        // The first account is the pod's.
        let two = [of_account("other", "1"), of_account("robot", "1")];
        assert_eq!(matching(&known, &two), Match::No);
        let mut record = PulledRecord::new("sha256:1", Timestamp::UNIX_EPOCH);
        record.add("q.io/a", &recorded(&[of_account("robot", "1")]), Timestamp::UNIX_EPOCH);
        let policy = CredentialVerification::AlwaysVerify;
        let accounts = record.credentials["q.io/a"].clone();
        let expected = Access::OfCredentials(accounts);
        assert_eq!(access(&policy, "q.io/a:1", RecordState::Pulled(&record)), expected);
    }

    #[test]
    fn service_accounts_are_merged_in_order() {
        let mut all = recorded(&[of_account("b", "1")]);
        assert!(all.merge(&recorded(&[of_account("a", "1")])));
        assert!(!all.merge(&recorded(&[of_account("b", "1")])));
        let accounts = all.kubernetes_service_accounts.iter();
        let names: Vec<&str> = accounts.map(|account| account.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(all.merge(&PullCredentials::of(None)));
        assert_eq!(all, PullCredentials::of(None));
    }

    #[test]
    fn full_record_is_not_extended_by_matches() {
        let secrets: Vec<_> = (0..100).map(|uid| credential("a", &uid.to_string(), "x")).collect();
        let known = recorded(&secrets);
        assert_eq!(matching(&known, &[credential("b", "1", "x")]), Match::Yes);
        assert_eq!(matching(&known, &[credential("a", "1", "y")]), Match::No);
    }

    #[test]
    fn records_are_merged_in_order_of_secrets() {
        let mut record = PulledRecord::new("sha256:1", Timestamp::UNIX_EPOCH);
        let later = Timestamp::MAX;
        let of = |name, hash| PullCredentials::of(Some(&credential(name, "1", hash)));
        assert!(record.add("q.io/a", &of("b", "x"), later));
        assert!(record.add("q.io/a", &of("a", "x"), later));
        assert!(!record.add("q.io/a", &of("b", "x"), later));
        assert!(record.add("q.io/a", &of("b", "y"), later));
        let secrets = record.credentials["q.io/a"].kubernetes_secrets.iter();
        let secrets: Vec<_> =
            secrets.map(|secret| (secret.name.as_str(), secret.credential_hash.as_str())).collect();
        assert_eq!(secrets, [("a", "x"), ("b", "y")]);
        assert!(record.add("q.io/a", &PullCredentials::of(None), later));
        assert_eq!(record.credentials["q.io/a"], PullCredentials::of(None));
        assert!(!record.add("q.io/a", &of("c", "x"), later));
    }

    #[test]
    fn unreadable_record_needs_a_pull_under_every_policy() {
        let policy = CredentialVerification::NeverVerify;
        assert_eq!(access(&policy, "a", RecordState::Damaged), Access::PullRequired);
        assert_eq!(access(&policy, "a", RecordState::Intended), Access::Granted);
    }
}
