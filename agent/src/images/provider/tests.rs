//! Runs scripts as credential providers.
#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::{Pod as ApiPod, PodSpec};
use tempfile::TempDir;

use super::*;
use crate::clock::SystemClock;

/// A directory with one provider, whose script counts its runs.
fn provider(script: &str, more: &str) -> (TempDir, Result<CredentialProviders, ProvidersError>) {
    let dir = tempfile::tempdir().unwrap();
    // A program that was just written cannot be executed while another test forks, so the shell is the program.
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
    let read = CredentialProviders::read(&config, dir.path());
    (dir, read)
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
    let runner = ProviderRunner::new(providers.unwrap(), Arc::new(SystemClock));
    let found = runner.lookup("r.io/a", &pod(None)).await;
    assert_eq!(found[0].username, "first second");
    assert_eq!(
        found[0].password,
        "{kind:CredentialProviderRequest,apiVersion:credentialprovider.kubelet.k8s.io/v1,image:r.io/a}"
    );
    assert_eq!(found[0].secret, None);
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
    let runner = ProviderRunner::new(providers.unwrap(), Arc::new(SystemClock));
    let of = pod(None);
    tokio::join!(runner.lookup("r.io/a", &of), runner.lookup("r.io/a", &of));
    assert_eq!(runs(&dir), 1);
    runner.lookup("r.io/a", &of).await;
    assert_eq!(runs(&dir), 2, "a duration of 0 is not kept");
}

#[tokio::test]
async fn failing_provider_has_no_credentials() {
    for script in ["exit 1".to_owned(), "echo nothing".to_owned(), answer("")] {
        let (_dir, providers) = provider(&script, "");
        let runner = ProviderRunner::new(providers.unwrap(), Arc::new(SystemClock));
        assert_eq!(runner.lookup("r.io/a", &pod(None)).await, []);
    }
}

#[tokio::test]
async fn provider_that_needs_tokens_is_not_run_for_service_accounts() {
    let script =
        answer(r#","cacheKeyType":"Image","auth":{"r.io":{"username":"u","password":"p"}}"#);
    let attributes = |required: bool| {
        format!(
            "  tokenAttributes: {{serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: {required}}}\n"
        )
    };
    for (required, account, found) in
        [(true, None, 0), (true, Some("a"), 0), (false, None, 1), (false, Some("a"), 0)]
    {
        let (_dir, providers) = provider(&script, &attributes(required));
        let runner = ProviderRunner::new(providers.unwrap(), Arc::new(SystemClock));
        assert_eq!(runner.lookup("r.io/a", &pod(account)).await.len(), found);
    }
}

#[test]
fn missing_programs_and_files_are_reported() {
    let (dir, read) = provider("", "");
    read.unwrap();
    let config = dir.path().join("config.yaml");
    let nowhere = dir.path().join("nowhere");
    let error = |config: &Path, bin_dir: &Path| {
        CredentialProviders::read(config, bin_dir).unwrap_err().to_string()
    };
    assert!(error(&config, &nowhere).contains("nowhere/provider is not an executable"));
    assert!(error(&nowhere, dir.path()).contains("failed to read"));
    let empty = tempfile::tempdir().unwrap();
    assert!(error(empty.path(), dir.path()).contains("no *.json"));
    CredentialProviders::read(dir.path(), dir.path()).unwrap();
}
