//! Runs scripts as credential providers.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod as ApiPod, PodSpec, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rstest::rstest;
use tempfile::TempDir;

use super::*;
use crate::clock::TokioClock;
use crate::cluster::{IssuedToken, Standalone, TokenRequest};
use crate::images::keyring::SourceRef;
use crate::objects::ObjectStore;

/// A directory with one provider, whose script counts its runs.
fn provider(script: &str, more: &str) -> (TempDir, Result<CredentialProviders, ProvidersError>) {
    let dir = tempfile::tempdir().unwrap();
    // The program is the shell, because a file that was just written cannot be executed while another test forks (ETXTBSY).
    std::os::unix::fs::symlink("/bin/sh", dir.path().join("provider")).unwrap();
    let (file, runs) = (dir.path().join("script"), dir.path().join("runs"));
    std::fs::write(&file, format!("echo run >>{}\n{script}", runs.display())).unwrap();
    let config = dir.path().join("config.yaml");
    let text = format!(
        "kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v1\nproviders:\n- name: provider\n  \
         matchImages: ['*.io']\n  defaultCacheDuration: 1h\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  \
         args: [{}, first]\n{more}",
        file.display()
    );
    std::fs::write(&config, text).unwrap();
    let read = CredentialProviders::read(&config, dir.path(), true);
    (dir, read)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// Creates a runner of providers in a cluster, at the time 0.
fn runner(providers: CredentialProviders, cluster: Arc<dyn Cluster>) -> ProviderRunner {
    let clock = Arc::new(TokioClock::starting_at(at(0)));
    ProviderRunner::new(providers, clock, &Measures::default(), cluster)
}

/// Creates a runner without a cluster.
fn alone(providers: CredentialProviders) -> ProviderRunner {
    runner(providers, Arc::new(Standalone::default()))
}

/// A cluster with the account `robot`. It issues numbered tokens, each for 1000 s, from 800 s after the previous one on.
#[derive(Default)]
struct Issuer {
    annotations: BTreeMap<String, String>,
    wanted: Mutex<Vec<TokenRequest>>,
    refuses: Mutex<bool>,
}

#[async_trait]
impl Cluster for Issuer {
    fn name(&self) -> String {
        "issuer".to_owned()
    }

    fn objects(&self) -> Arc<ObjectStore> {
        Arc::default()
    }

    fn issues_tokens(&self) -> bool {
        true
    }

    async fn issue_token(&self, wanted: &TokenRequest) -> Result<IssuedToken, String> {
        if *lock(&self.refuses) {
            return Err("no".to_owned());
        }
        let mut all = lock(&self.wanted);
        let expires_at = at(i64::try_from(all.len()).unwrap() * 800 + 1000);
        all.push(wanted.clone());
        Ok(IssuedToken { text: format!("token-{}", all.len()), expires_at })
    }

    async fn service_account(&self, ns: &str, name: &str) -> Result<ServiceAccount, String> {
        if name == "nobody" {
            return Err("not found".to_owned());
        }
        let metadata = ObjectMeta {
            namespace: Some(ns.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(format!("uid-of-{name}")),
            annotations: Some(self.annotations.clone()),
            ..ObjectMeta::default()
        };
        Ok(ServiceAccount { metadata, ..ServiceAccount::default() })
    }
}

impl Issuer {
    fn with(annotations: &[(&str, &str)]) -> Arc<Self> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let annotations = annotations.iter().map(owned).collect();
        Arc::new(Self { annotations, ..Self::default() })
    }
}

/// Attributes of tokens for the audience `registry`.
fn attributes(more: &str) -> String {
    format!("  tokenAttributes: {{serviceAccountTokenAudience: registry, {more}}}\n")
}

/// A pod with this uid and this account.
fn pod_of(uid: &str, account: &str) -> Pod {
    let mut api = pod(Some(account)).api().clone();
    api.metadata.uid = Some(uid.to_owned());
    api.metadata.name = Some("p".to_owned());
    api.metadata.namespace = Some("ns".to_owned());
    Pod::new(api)
}

fn pod(service_account: Option<&str>) -> Pod {
    Pod::new(ApiPod {
        spec: Some(PodSpec {
            service_account_name: service_account.map(str::to_owned),
            ..PodSpec::default()
        }),
        ..ApiPod::default()
    })
}

fn answer(members: &str) -> String {
    format!(
        "cat <<EOF\n{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\"{members}}}\nEOF\n"
    )
}

/// A response for one image with a login for `r.io` with this password.
fn login(password: &str) -> String {
    answer(&format!(
        r#","cacheKeyType":"Image","auth":{{"r.io":{{"username":"u","password":"{password}"}}}}"#
    ))
}

fn runs(dir: &TempDir) -> usize {
    std::fs::read_to_string(dir.path().join("runs")).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn provider_gets_request_arguments_and_variables() {
    let script = answer(
        r#","cacheKeyType":"Image","auth":{"r.io":{"username":"$1 $USER_OF_TEST","password":"$(sed s/\"//g)"}}"#,
    );
    let more = "  env: [{name: USER_OF_TEST, value: second}]\n";
    let (dir, providers) = provider(&script, more);
    let runner = alone(providers.unwrap());
    let found = runner.lookup("r.io/a", &pod(None)).await;
    assert_eq!(found[0].username, "first second");
    assert_eq!(
        found[0].password,
        "{kind:CredentialProviderRequest,apiVersion:credentialprovider.kubelet.k8s.io/v1,image:r.io/a}"
    );
    assert_eq!(found[0].source, None);
    runner.lookup("r.io/a", &pod(None)).await;
    assert_eq!(runs(&dir), 1, "the response is kept");
    runner.lookup("r.io/b", &pod(None)).await;
    assert_eq!(runs(&dir), 2, "it is for one image");
    assert_eq!(runner.lookup("localhost/a", &pod(None)).await, []);
    assert_eq!(runs(&dir), 2, "not for other registries");
}

#[tokio::test]
async fn concurrent_lookups_share_a_run() {
    let script =
        format!("sleep 0.2\n{}", answer(r#","cacheKeyType":"Image","cacheDuration":"0s""#));
    let (dir, providers) = provider(&script, "");
    let runner = alone(providers.unwrap());
    let of = pod(None);
    tokio::join!(runner.lookup("r.io/a", &of), runner.lookup("r.io/a", &of));
    assert_eq!(runs(&dir), 1);
    runner.lookup("r.io/a", &of).await;
    assert_eq!(runs(&dir), 2, "a duration of 0 is not kept");
}

#[test]
fn configuration_has_the_hash_of_a_kubelet() {
    let texts = ["kind: A\n", ""].map(str::to_owned);
    let expected = "sha256:e3696afae4a696c1193fb7e0946f4d74312abd9012baea5f6ae65ce80507c010";
    assert_eq!(hash(&texts), expected);
    let (dir, providers) = provider("exit 1", "");
    let text = std::fs::read_to_string(dir.path().join("config.yaml")).unwrap();
    let runner = alone(providers.unwrap());
    let measured = runner.providers[0].measures.now();
    assert_eq!(measured.provider_config, Some(hash(&[text])));
}

#[tokio::test]
async fn failing_provider_has_no_credentials() {
    // As in a kubelet, a response that cannot be read is not a failed run.
    for (script, errors) in
        [("exit 1".to_owned(), 1), ("echo nothing".to_owned(), 0), (answer(""), 0)]
    {
        let (_dir, providers) = provider(&script, "");
        let runner = alone(providers.unwrap());
        assert_eq!(runner.lookup("r.io/a", &pod(None)).await, []);
        let runs = runner.providers[0].measures.now().provider_runs;
        let runs: Vec<_> = runs
            .iter()
            .map(|(name, runs)| (name.as_str(), runs.durations.count(), runs.errors))
            .collect();
        assert_eq!(runs, [("provider", 1, errors)], "{script}");
    }
}

#[tokio::test]
async fn provider_that_needs_tokens_is_not_run_for_service_accounts_without_a_cluster() {
    for (required, account, found) in
        [(true, None, 0), (true, Some("a"), 0), (false, None, 1), (false, Some("a"), 0)]
    {
        let more = attributes(&format!("cacheType: Token, requireServiceAccount: {required}"));
        let (_dir, providers) = provider(&login("p"), &more);
        let runner = alone(providers.unwrap());
        assert_eq!(runner.lookup("r.io/a", &pod(account)).await.len(), found);
    }
}

#[tokio::test]
async fn provider_receives_configured_token_and_annotations() {
    let keys = "requiredServiceAccountAnnotationKeys: [a.b/role], optionalServiceAccountAnnotationKeys: [more, none]";
    let more = attributes(&format!("cacheType: Token, requireServiceAccount: true, {keys}"));
    let (_dir, providers) = provider(&login(r#"$(sed s/\"//g)"#), &more);
    let issuer = Issuer::with(&[("a.b/role", "puller"), ("more", "yes"), ("other", "no")]);
    let runner = runner(providers.unwrap(), issuer.clone());
    let found = runner.lookup("r.io/a", &pod_of("u1", "robot")).await;
    assert_eq!(
        found[0].password,
        "{kind:CredentialProviderRequest,apiVersion:credentialprovider.kubelet.k8s.io/v1,image:r.io/a,\
         serviceAccountToken:token-1,serviceAccountAnnotations:{a.b/role:puller,more:yes}}"
    );
    let identity = SourceRef {
        namespace: "ns".to_owned(),
        name: "robot".to_owned(),
        uid: "uid-of-robot".to_owned(),
    };
    assert_eq!(found[0].source, Some(CredentialSource::ServiceAccount(identity)));
    let wanted = TokenRequest {
        uid: api::pod::PodUid::new("u1"),
        pod: "p".to_owned(),
        namespace: "ns".to_owned(),
        account: "robot".to_owned(),
        account_uid: Some("uid-of-robot".to_owned()),
        audience: Some("registry".to_owned()),
        seconds: 3600,
    };
    assert_eq!(*lock(&issuer.wanted), [wanted]);
}

#[rstest]
#[case::account("requireServiceAccount: true", "robot", false, 1)]
#[case::without_one("requireServiceAccount: true", "", false, 0)]
#[case::optional("requireServiceAccount: false", "", false, 1)]
#[case::annotation_is_missing(
    "requireServiceAccount: true, requiredServiceAccountAnnotationKeys: [role]",
    "robot",
    false,
    0
)]
#[case::account_is_missing("requireServiceAccount: true", "nobody", false, 0)]
#[case::cluster_refuses("requireServiceAccount: true", "robot", true, 0)]
#[case::refusal_counts_for_accounts("requireServiceAccount: false", "robot", true, 0)]
#[tokio::test]
async fn provider_runs_for_accounts_with_required_annotations(
    #[case] more: &str,
    #[case] account: &str,
    #[case] refuses: bool,
    #[case] expected: usize,
) {
    let (dir, providers) = provider(&login("p"), &attributes(&format!("cacheType: Token, {more}")));
    let issuer = Issuer::with(&[]);
    *lock(&issuer.refuses) = refuses;
    let runner = runner(providers.unwrap(), issuer);
    let found = runner.lookup("r.io/a", &pod_of("u1", account)).await;
    assert_eq!((runs(&dir), found.len()), (expected, expected));
    let of_account = expected > 0 && !account.is_empty();
    assert_eq!(found.iter().any(|credential| credential.source.is_some()), of_account);
}

#[rstest]
// The account, then another one.
#[case::of_account("ServiceAccount", [1, 1, 2, 2])]
// Each pod has its own token, for which the response is cached.
#[case::of_token("Token", [1, 2, 3, 3])]
#[tokio::test]
async fn credentials_are_kept_for_the_account_or_for_the_token(
    #[case] cache: &str,
    #[case] expected: [usize; 4],
) {
    let more = attributes(&format!("cacheType: {cache}, requireServiceAccount: true"));
    let (dir, providers) = provider(&login("p"), &more);
    let runner = runner(providers.unwrap(), Issuer::with(&[]));
    let pods = [("u1", "robot"), ("u2", "robot"), ("u3", "other"), ("u1", "robot")];
    for ((uid, account), expected) in pods.into_iter().zip(expected) {
        assert_eq!(runner.lookup("r.io/a", &pod_of(uid, account)).await.len(), 1);
        assert_eq!(runs(&dir), expected, "{uid} {account}");
    }
}

#[rstest]
#[case("ServiceAccount", 0)]
#[case("Token", 1)]
#[tokio::test]
async fn token_is_a_password_for_its_own_pod_alone(#[case] cache: &str, #[case] found: usize) {
    let more = attributes(&format!("cacheType: {cache}, requireServiceAccount: true"));
    let (_dir, providers) = provider(&login("token-1"), &more);
    let runner = runner(providers.unwrap(), Issuer::with(&[]));
    assert_eq!(runner.lookup("r.io/a", &pod_of("u1", "robot")).await.len(), found);
}

#[tokio::test]
async fn token_is_renewed_at_80_percent_and_used_until_expiry() {
    let issuer = Issuer::with(&[]);
    let accounts = ServiceAccounts::new(issuer.clone());
    let attributes = TokenAttributes {
        audience: "registry".to_owned(),
        keeps_by_token: true,
        requires_account: true,
        required_annotations: Vec::new(),
        optional_annotations: Vec::new(),
    };
    let of = pod_of("u1", "robot");
    let token = async |now| {
        let account = accounts.get(&of, "robot", &attributes, at(now)).await;
        account.map(|account| account.unwrap().token).map_err(|error| error.to_string())
    };
    for (now, expected) in [(0, "token-1"), (799, "token-1"), (800, "token-2")] {
        assert_eq!(token(now).await.unwrap(), expected);
    }
    *lock(&issuer.refuses) = true;
    assert_eq!(token(1799).await.unwrap(), "token-2");
    let refused = "failed to get service account token: failed to fetch token: no";
    assert_eq!(token(1800).await.unwrap_err(), refused);
}

#[test]
fn missing_programs_and_files_are_reported() {
    let (dir, read) = provider("", "");
    read.unwrap();
    let config = dir.path().join("config.yaml");
    let nowhere = dir.path().join("nowhere");
    let error = |config: &Path, bin_dir: &Path| {
        CredentialProviders::read(config, bin_dir, true).unwrap_err().to_string()
    };
    assert!(error(&config, &nowhere).contains("nowhere/provider is not an executable"));
    assert!(error(&nowhere, dir.path()).contains("failed to read"));
    let empty = tempfile::tempdir().unwrap();
    assert!(error(empty.path(), dir.path()).contains("no *.json"));
    CredentialProviders::read(dir.path(), dir.path(), true).unwrap();
}
