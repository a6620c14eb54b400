//! Certificates of ClusterTrustBundles in the volumes of pods.

use crate::command::*;
use crate::runs::run::pod;

/// The certificate of an authority that exists only here.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----
MIIBNDCB56ADAgECAhQ4pxm/K3D1vlWnOygdOS5b0HaUwzAFBgMrZXAwDzENMAsG
A1UEAwwEcm9vdDAgFw0yNjExMjYwNzQ1MDFaGA8yMTI2MTEwMjA3NDUwMVowDzEN
MAsGA1UEAwwEcm9vdDAqMAUGAytlcAMhAMpUZ6kB8PPmmDL/aPvE1DeejKfBhCxa
c/6lra9SKbjyo1MwUTAdBgNVHQ4EFgQUxGRm3PgpQuMziKFXMgMzvFAST4UwHwYD
VR0jBBgwFoAUxGRm3PgpQuMziKFXMgMzvFAST4UwDwYDVR0TAQH/BAUwAwEB/zAF
BgMrZXADQQB+6Xb8OISZwpj2xFO8Zy3uXZJnLCdKpYslARhZ4jac2FGWqXyrydfJ
yq/7d88LhNx1o4ebp4q1Hhxaq9XP61EJ
-----END CERTIFICATE-----
";

/// A pod whose volume has a file with the certificates that `wanted` selects.
fn manifest(script: &str, wanted: &str) -> String {
    format!(
        "{}\n    volumeMounts: [{{name: roots, mountPath: /roots}}]\n  volumes:\n  - name: roots\n    projected: {{sources: \
         [{{clusterTrustBundle: {{path: ca.pem, {wanted}}}}}]}}\n",
        pod("p", script).trim_end()
    )
}

fn bundle(name: &str, signer: &str) -> String {
    let text = CERTIFICATE.replace('\n', "\n    ");
    format!(
        "---\napiVersion: certificates.k8s.io/v1beta1\nkind: ClusterTrustBundle\nmetadata: {{name: {name}, labels: {{live: 'yes'}}}}\n\
         spec:\n  signerName: {signer}\n  trustBundle: |\n    a comment\n    {text}\n"
    )
}

#[rstest]
#[case::of_name("name: company", "company", "")]
#[case::of_signer(
    "signerName: example.org/roots, labelSelector: {matchLabels: {live: 'yes'}}",
    "example.org:roots:v1",
    "example.org/roots"
)]
#[tokio::test]
async fn pod_sees_certificates(#[case] wanted: &str, #[case] name: &str, #[case] signer: &str) {
    let place = Place::new();
    let pod = manifest("cat /roots/ca.pem", wanted);
    let file = place.file("p.yaml", &format!("{pod}{}", bundle(name, signer)));
    let ended = place.crib(&["run", "--quiet", &file]).await.exits(0);
    let lines: Vec<&str> = ended.out.lines().collect();
    let lines: Vec<&str> =
        lines.iter().map(|line| line.rsplit_once(' ').map_or(*line, |(_, text)| text)).collect();
    assert!(!ended.out.contains("comment"), "{}", ended.out);
    for line in CERTIFICATE.lines().filter(|line| !line.contains(' ')) {
        assert!(lines.contains(&line), "{line} in {}", ended.out);
    }
}

#[rstest]
#[case("name: company", "clustertrustbundle company")]
#[case("signerName: example.org/roots", "clustertrustbundle of signer example.org/roots")]
#[tokio::test]
async fn missing_bundle_is_reported_unless_optional(#[case] wanted: &str, #[case] expected: &str) {
    let place = Place::new();
    let file = place.file("p.yaml", &manifest("true", wanted));
    let ended = place.crib(&["run", &file]).await.exits(2);
    ended.err_has(expected);
    let optional = manifest("wc -c /roots/ca.pem", &format!("{wanted}, optional: true"));
    let file = place.file("p.yaml", &optional);
    let ended = place.crib(&["run", &file]).await.exits(0);
    ended.out_has("0 /roots/ca.pem");
}
