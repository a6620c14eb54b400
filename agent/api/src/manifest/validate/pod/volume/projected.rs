//! Projected volumes.

use compact::Set;
use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, PodCertificateProjection, ProjectedVolumeSource,
    ServiceAccountTokenProjection,
};

use super::{downward_file, file_path, items, mode};
use crate::manifest::validate::{Check, names, selectors};

/// The sources of a projected volume, whose files must have different paths.
pub(super) fn check(check: &mut Check, field: &str, projected: &ProjectedVolumeSource) {
    mode(check, &format!("{field}.defaultMode"), projected.default_mode);
    let mut paths = Set::new();
    let mut path = |check: &mut Check, path: &str| {
        if !path.is_empty() && !paths.insert(path.to_owned()) {
            check.invalid(field, path, "conflicting duplicate paths");
        }
    };
    for (index, source) in projected.sources.iter().flatten().enumerate() {
        let item = format!("{field}.sources[{index}]");
        let files = [
            ("secret", source.secret.as_ref().map(|secret| (&secret.name, &secret.items))),
            ("configMap", source.config_map.as_ref().map(|map| (&map.name, &map.items))),
        ];
        for (kind, files) in files {
            let Some((name, keys)) = files else { continue };
            let field = format!("{item}.{kind}");
            check.nonempty(format!("{field}.name"), name);
            items(check, &field, keys.as_deref());
            for key in keys.iter().flatten() {
                path(check, &key.path);
            }
        }
        let files = source.downward_api.iter();
        for file in files.flat_map(|api| api.items.iter().flatten()) {
            downward_file(check, &format!("{item}.downwardAPI"), file);
            path(check, &file.path);
        }
        if let Some(from) = &source.service_account_token {
            token(check, field, &format!("{item}.serviceAccountToken"), from);
        }
        if let Some(from) = &source.cluster_trust_bundle {
            trust_bundle(check, &format!("{item}.clusterTrustBundle"), from);
            path(check, &from.path);
        }
        if let Some(from) = &source.pod_certificate {
            certificate(check, &format!("{item}.podCertificate"), from);
            let files =
                [&from.credential_bundle_path, &from.key_path, &from.certificate_chain_path];
            for file in files.into_iter().flatten() {
                path(check, file);
            }
        }
        let given = [
            source.secret.is_some(),
            source.config_map.is_some(),
            source.downward_api.is_some(),
            source.service_account_token.is_some(),
            source.cluster_trust_bundle.is_some(),
            source.pod_certificate.is_some(),
        ];
        if given.iter().filter(|given| **given).count() > 1 {
            check.forbidden(&item, "may not specify more than 1 volume type per source");
        }
    }
}

/// Checks a token. The API server reports its path at the volume.
fn token(check: &mut Check, volume: &str, field: &str, token: &ServiceAccountTokenProjection) {
    let seconds = token.expiration_seconds.unwrap_or(3600);
    if !(600..=1 << 32).contains(&seconds) {
        let detail = "must be between 10 minutes and 2^32 seconds";
        check.invalid(format!("{field}.expirationSeconds"), seconds, detail);
    }
    if token.path.is_empty() {
        check.required(format!("{volume}.path"), "");
    } else {
        file_path(check, &format!("{volume}.path"), &token.path);
    }
}

fn trust_bundle(check: &mut Check, field: &str, bundle: &ClusterTrustBundleProjection) {
    match (&bundle.name, &bundle.signer_name) {
        (Some(name), Some(_)) => {
            check.invalid(field, name, "only one of name and signerName may be used");
        }
        (Some(name), None) => {
            let name_field = format!("{field}.name");
            if name.is_empty() {
                check.required(&name_field, "must be a valid object name");
            }
            // SIGNER:NAME, with `:` for the signer's `/`.
            let own = name.rsplit_once(':').map_or(name.as_str(), |(_, own)| own);
            check.formed(name_field, own, names::dns_subdomain);
            if bundle.label_selector.is_some() {
                let detail = "must be unset if name is specified";
                check.invalid(format!("{field}.labelSelector"), "", detail);
            }
        }
        (None, Some(signer)) => {
            signer_name(check, format!("{field}.signerName"), signer);
            selectors::labels(
                check,
                &format!("{field}.labelSelector"),
                bundle.label_selector.as_ref(),
            );
        }
        (None, None) => check.required(field, "either name or signerName must be specified"),
    }
    let path = format!("{field}.path");
    check.nonempty(&path, &bundle.path);
    file_path(check, &path, &bundle.path);
}

fn signer_name(check: &mut Check, field: String, name: &str) {
    check.nonempty_formed(field, name, names::signer);
}

fn certificate(check: &mut Check, field: &str, from: &PodCertificateProjection) {
    signer_name(check, format!("{field}.signerName"), &from.signer_name);
    for (key, _) in from.user_annotations.iter().flatten() {
        let field = format!("{field}.userAnnotations");
        if key.is_empty() {
            check.required(field, "");
        } else if let Some(expected) = names::qualified(&key.to_lowercase()) {
            check.invalid(field, key, expected);
        } else if !key.contains('/') {
            check.invalid(field, key, "must begin with a domain and '/'");
        }
    }
    let known = ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
    check.one_of(format!("{field}.keyType"), &from.key_type, &known);
    if let Some(seconds) = from.max_expiration_seconds {
        let domain = from.signer_name.split('/').next().unwrap_or_default();
        let is_own = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
        // 91 days, and a day for Kubernetes' own signers.
        let most = if is_own { 24 * 3600 } else { 91 * 24 * 3600 };
        check.range(format!("{field}.maxExpirationSeconds"), i64::from(seconds), 3600, most);
    }
    let files = [
        ("credentialBundlePath", &from.credential_bundle_path),
        ("keyPath", &from.key_path),
        ("certificateChainPath", &from.certificate_chain_path),
    ];
    let mut any = false;
    for (name, path) in files {
        if let Some(path) = path.as_deref().filter(|path| !path.is_empty()) {
            any = true;
            file_path(check, &format!("{field}.{name}"), path);
        }
    }
    if !any {
        check.required(
            field,
            "specify at least one of credentialBundlePath, keyPath and certificateChainPath",
        );
    }
}
