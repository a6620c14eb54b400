//! Registry errors: transient ones are retried, permanent ones are reported and leave nothing.

use std::os::unix::fs::PermissionsExt as _;

use registry::{Fault, Registry};

use super::Bench;
use crate::support::*;

#[rstest]
#[case::server_error(Fault::status(503).times(2))]
#[case::server_error_on_blobs(Fault::status(500).on("/blobs/").times(3))]
#[case::rate_limited(Fault::status(429).retry_after(1).on("/manifests/").times(1))]
#[case::rate_limited_blobs(Fault::status(429).retry_after(1).on("/blobs/").times(1))]
#[case::disconnected(Fault::disconnect().times(2))]
#[case::cut_document(Fault::cut(10).on("/manifests/").times(1))]
#[case::cut_blobs(Fault::cut(150_000).on("/blobs/").times(2))]
#[case::slow(Fault::delay(Duration::from_millis(50)))]
#[tokio::test]
async fn transient_registry_errors_are_retried(#[case] fault: Fault) {
    let bench = Bench::new().await;
    bench.registry.fail(fault);
    bench.pull(None).await.unwrap();
}

#[tokio::test]
async fn interrupted_download_resumes_where_it_stopped() {
    let bench = Bench::new().await;
    bench.registry.fail(Fault::cut(150_000).on("/blobs/").times(3));
    bench.pull(None).await.unwrap();
    let ranges: Vec<u64> = bench
        .registry
        .requests()
        .iter()
        .filter_map(|seen| {
            seen.range.as_deref()?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
        })
        .collect();
    // A client receives slightly less than the registry sent before the cut.
    assert!(ranges.iter().any(|from| *from > 50_000), "{ranges:?}");
}

#[rstest]
#[case::wrong_manifest(Fault::status(400).on("/manifests/"), Code::FailedPrecondition, "answered 400")]
#[case::denied(Fault::status(403).on("/manifests/"), Code::PermissionDenied, "does not allow app")]
#[case::denied_blobs(Fault::status(403).on("/blobs/"), Code::PermissionDenied, "does not allow app")]
#[case::missing_blob(Fault::status(404).on("/blobs/"), Code::NotFound, "has no app@sha256:")]
#[case::permanent_server_error(Fault::status(503).retry_after(3600), Code::Unavailable, "503 Service Unavailable")]
#[case::corrupt(Fault::corrupt().on("/blobs/"), Code::FailedPrecondition, "has digest sha256:")]
#[case::too_short(Fault::shorten(5).on("/blobs/"), Code::FailedPrecondition, "bytes instead of")]
#[case::stalled(Fault::stall(1000).on("/blobs/"), Code::DeadlineExceeded, "sent nothing for 1 s")]
#[case::dripping(Fault::slow(500).on("/blobs/"), Code::DeadlineExceeded, "the pull was aborted")]
#[case::silent(Fault::stall(0).on("/manifests/"), Code::DeadlineExceeded, "sent nothing for 1 s")]
#[tokio::test]
async fn permanent_registry_errors_fail_pull_and_leave_nothing(
    #[case] fault: Fault,
    #[case] code: Code,
    #[case] says: &str,
) {
    // On a busy machine, a working registry may take this long.
    let patience = if code == Code::DeadlineExceeded {
        Runtime::with().config("pull: {progress_timeout: 1s}\n")
    } else {
        Runtime::with()
    };
    let bench = Bench::with(Registry::start().await.unwrap(), patience).await;
    bench.registry.fail(fault);
    let error = rejected(bench.pull(None).await, code, says);
    assert!(error.message().contains(&bench.registry.host()), "{error:?}");
    bench.assert_nothing_left().await;
    // The next pull succeeds.
    bench.registry.recover();
    bench.pull(None).await.unwrap();
}

#[tokio::test]
async fn plain_http_works_without_system_certificates() {
    let nothing = |runtime: Options| {
        let runtime = runtime.env("SSL_CERT_FILE", "/nonexistent");
        runtime.env("SSL_CERT_DIR", "/nonexistent")
    };
    let registry = Registry::start().await.unwrap();
    let bench = Bench::with(registry, nothing(Runtime::with())).await;
    bench.registry.fail(Fault::cut(150_000).on("/blobs/").times(1));
    bench.pull(None).await.unwrap();

    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let ca = place.path().join("ca.pem");
    let registry = Registry::with().tls().start().await.unwrap();
    std::fs::write(&ca, registry.ca().unwrap()).unwrap();
    let config = format!("registries:\n  \"{}\": {{ca: {}}}\n", registry.host(), ca.display());
    let bench = Bench::with(registry, nothing(Runtime::with().config(&config))).await;
    bench.pull(None).await.unwrap();
}
