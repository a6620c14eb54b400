//! ClusterTrustBundles. Kubernetes 1.36, pkg/apis/certificates/validation/validation.go.

use compact::Set;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rustls_pki_types::CertificateDer;
use webpki::anchor_from_trusted_cert;

use crate::manifest::validate::{Check, FieldError, Rule, metadata, names};

/// The API server's limit for a bundle, in bytes.
const MAX_SIZE: usize = 1 << 20;

/// Validates a ClusterTrustBundle.
pub(in crate::manifest) fn check(bundle: &ClusterTrustBundle) -> Vec<FieldError> {
    let mut check = Check::default();
    let signer = bundle.spec.signer_name.as_deref().unwrap_or_default();
    name(&mut check, &bundle.metadata, signer);
    if !signer.is_empty() {
        check.formed("spec.signerName", signer, names::signer);
    }
    certificates(&mut check, &bundle.spec.trust_bundle);
    check.errors
}

/// Checks the metadata. The name of a signer's bundle begins with the signer's name, with `:` for its `/`.
fn name(check: &mut Check, of: &ObjectMeta, signer: &str) {
    let name = of.name.as_deref().unwrap_or_default();
    let prefix = format!("{}:", signer.replace('/', ":"));
    let own = match name.strip_prefix(&prefix) {
        Some(own) if !signer.is_empty() => own,
        _ if !signer.is_empty() && !name.is_empty() => {
            let detail = format!("must begin with {prefix}, as spec.signerName is {signer}");
            check.invalid("metadata.name", name, &detail);
            return;
        }
        _ => name,
    };
    let own = ObjectMeta { name: Some(own.to_owned()), ..of.clone() };
    metadata::check_without_namespace(check, &own);
}

fn certificates(check: &mut Check, bundle: &str) {
    const FIELD: &str = "spec.trustBundle";
    if bundle.len() > MAX_SIZE {
        let detail = format!("may not be more than {MAX_SIZE} bytes");
        check.error(Rule::TooLong, FIELD, "", detail);
        return;
    }
    let mut wrong = |detail: &str| check.invalid(FIELD, "<value omitted>", detail);
    let Ok(blocks) = pem::parse_many(bundle) else {
        wrong("must be certificates in PEM");
        return;
    };
    if blocks.is_empty() {
        wrong("at least one trust anchor must be provided");
    }
    let mut seen = Set::new();
    for (index, block) in blocks.iter().enumerate() {
        let is_x509 = || anchor_from_trusted_cert(&CertificateDer::from(block.contents())).is_ok();
        if block.tag() != "CERTIFICATE" {
            wrong(&format!("entry {index} has bad block type: {}", block.tag()));
        } else if block.headers().iter().next().is_some() {
            wrong(&format!("entry {index} has PEM block headers"));
        } else if !is_x509() {
            wrong(&format!("entry {index} does not parse as X.509"));
        } else if !seen.insert(block.contents()) {
            wrong(&format!("entry {index} is a duplicate trust anchor"));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn certificate() -> String {
        let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        made.cert.pem()
    }

    /// Each as `field: message`.
    fn problems(name: &str, signer: Option<&str>, bundle: &str) -> Vec<String> {
        let bundle = json!({"metadata": {"name": name}, "spec": {"signerName": signer, "trustBundle": bundle}});
        let errors = check(&serde_json::from_value(bundle).unwrap());
        let text = |error: &FieldError| format!("{}: {error}", error.field);
        errors.iter().map(text).collect()
    }

    #[rstest]
    #[case("plain", None, "")]
    #[case("example.org:s:one", Some("example.org/s"), "")]
    #[case("", None, "metadata.name: a value is required")]
    #[case("", Some("example.org/s"), "metadata.name: a value is required")]
    #[case("example.org:s:one", None, "metadata.name")]
    #[case(
        "one",
        Some("example.org/s"),
        "must begin with example.org:s:, as spec.signerName is example.org/s"
    )]
    #[case("example.org:s:", Some("example.org/s"), "metadata.name: a value is required")]
    #[case("plain:one", Some("plain"), "spec.signerName")]
    fn name_has_that_of_its_signer(
        #[case] name: &str,
        #[case] signer: Option<&str>,
        #[case] expected: &str,
    ) {
        let found = problems(name, signer, &certificate());
        if expected.is_empty() {
            assert_eq!(found, [""; 0]);
        } else {
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        }
    }

    #[test]
    fn certificates_are_checked() {
        let (one, other) = (certificate(), certificate());
        let of = |bundle: &str| problems("plain", None, bundle).join("\n");
        assert_eq!(of(&format!("text between\n{one}more text\n{other}")), "");
        let cases = [
            (String::new(), "at least one trust anchor must be provided"),
            ("no PEM".to_owned(), "at least one trust anchor must be provided"),
            (format!("{one}{other}{one}"), "entry 2 is a duplicate trust anchor"),
            (one.replace("CERTIFICATE", "PRIVATE KEY"), "entry 0 has bad block type: PRIVATE KEY"),
            (one.replace("E-----\nM", "E-----\na: b\n\nM"), "entry 0 has PEM block headers"),
            (
                format!("{one}-----BEGIN CERTIFICATE-----\nAAEC\n-----END CERTIFICATE-----\n"),
                "entry 1 does not parse as X.509",
            ),
            (
                "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n".to_owned(),
                "must be certificates in PEM",
            ),
            (" ".repeat(MAX_SIZE + 1), "may not be more than 1048576 bytes"),
        ];
        for (bundle, expected) in cases {
            let found = of(&bundle);
            assert!(found.contains(expected), "{found} instead of {expected}");
        }
    }
}
