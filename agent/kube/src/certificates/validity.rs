//! ◆ The validity period and the names of a certificate, and the time of its renewal. Pure.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;

use crate::der::{Elements, SEQUENCE};

/// The context-specific tag of a certificate's version.
const VERSION: u8 = 0xa0;
/// The context-specific tag of a certificate's extensions.
const EXTENSIONS: u8 = 0xa3;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// The object identifier 2.5.29.17.
const SUBJECT_ALTERNATIVE_NAME: [u8; 3] = [0x55, 0x1d, 0x11];
/// The context-specific tags of names in this extension.
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;

/// The validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
}

impl Validity {
    /// The validity of a certificate in DER; `None` if it cannot be parsed.
    pub(crate) fn of(certificate: &[u8]) -> Option<Self> {
        let mut certificate = Elements::new(certificate).next(SEQUENCE)?;
        let mut fields = certificate.next(SEQUENCE)?;
        if fields.tag() == Some(VERSION) {
            fields.element()?;
        }
        // The serial number, the algorithm and the issuer.
        for _ in 0..3 {
            fields.element()?;
        }
        let mut validity = fields.next(SEQUENCE)?;
        Some(Self { not_before: validity.time()?, not_after: validity.time()? })
    }

    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        now > self.not_after
    }

    /// When to renew it: after 70 to 90 percent of its lifetime, depending on `chance`.
    ///
    /// Source: Kubernetes 1.36, staging/src/k8s.io/client-go/util/certificate/certificate_manager.go nextRotationDeadline.
    pub(crate) fn renewal(&self, chance: f64) -> Timestamp {
        let total = Duration::try_from(self.not_after.duration_since(self.not_before));
        let wait = total.unwrap_or_default().mul_f64(0.2_f64.mul_add(chance, 0.7));
        self.not_before.checked_add(wait).unwrap_or(self.not_after)
    }
}

/// Whether a certificate in DER has all of these DNS names and IP addresses.
pub(crate) fn has_names(certificate: &[u8], requested: &[String]) -> bool {
    let names = names(certificate).unwrap_or_default();
    requested.iter().all(|requested| {
        let address = requested.parse::<IpAddr>().map(|address| address.to_string());
        names.contains(&address.unwrap_or_else(|_| requested.clone()))
    })
}

/// The DNS names and the IP addresses in a certificate in DER; `None` if it cannot be parsed.
fn names(certificate: &[u8]) -> Option<Vec<String>> {
    let mut certificate = Elements::new(certificate).next(SEQUENCE)?;
    let mut fields = certificate.next(SEQUENCE)?;
    let mut names = Vec::new();
    while !fields.is_empty() {
        let (tag, content) = fields.element()?;
        if tag != EXTENSIONS {
            continue;
        }
        let mut extensions = Elements::new(content).next(SEQUENCE)?;
        while !extensions.is_empty() {
            let mut extension = extensions.next(SEQUENCE)?;
            if extension.next(OBJECT_IDENTIFIER)?.bytes() != SUBJECT_ALTERNATIVE_NAME {
                continue;
            }
            // The value follows a flag if the extension is critical.
            let mut value = extension.element()?.1;
            if !extension.is_empty() {
                value = extension.element()?.1;
            }
            let mut found = Elements::new(value).next(SEQUENCE)?;
            while !found.is_empty() {
                let (tag, content) = found.element()?;
                names.extend(name(tag, content));
            }
        }
    }
    Some(names)
}

/// A name in a certificate; `None` if it is neither a DNS name nor an IP address.
fn name(tag: u8, content: &[u8]) -> Option<String> {
    match tag {
        DNS_NAME => std::str::from_utf8(content).ok().map(str::to_owned),
        IP_ADDRESS => {
            let v4 = <[u8; 4]>::try_from(content).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(content).map(IpAddr::from));
            Some(address.ok()?.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use rstest::rstest;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn times_are_those_of_the_certificate() {
        let mut params = CertificateParams::new(["n".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2026, 11, 28);
        params.not_after = date_time_ymd(2056, 2, 3);
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let found = Validity::of(made.der()).unwrap();
        assert_eq!(found.not_before, at("2026-11-28T00:00:00Z"));
        assert_eq!(found.not_after, at("2056-02-03T00:00:00Z"));
        assert!(!found.has_expired(found.not_after));
        assert!(found.has_expired(at("2056-02-03T00:00:01Z")));
        for length in 0..made.der().len() {
            // Truncated input must not cause a panic.
            let _ = Validity::of(&made.der()[..length]);
        }
        assert_eq!(Validity::of(b""), None);
    }

    #[rstest]
    #[case::all(&["n", "192.0.2.1", "2001:db8::1"], true)]
    #[case::some(&["n"], true)]
    #[case::none(&[], true)]
    #[case::other_form(&["2001:DB8:0::1"], true)]
    #[case::other_name(&["n", "m"], false)]
    #[case::other_address(&["n", "192.0.2.2"], false)]
    fn certificate_must_have_all_requested_names(#[case] names: &[&str], #[case] expected: bool) {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let params = CertificateParams::new(owned(&["n", "192.0.2.1", "2001:db8::1"])).unwrap();
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(has_names(made.der(), &owned(names)), expected);
        for length in 0..made.der().len() {
            // Truncated input must not cause a panic.
            let _ = super::names(&made.der()[..length]);
        }
        assert!(!has_names(b"", &["n".to_owned()]));
    }

    #[test]
    fn certificate_is_replaced_after_seven_to_nine_tenths_of_its_time() {
        let validity = Validity {
            not_before: at("2026-11-28T00:00:00Z"),
            not_after: at("2026-11-28T10:00:00Z"),
        };
        assert_eq!(validity.renewal(0.0), at("2026-11-28T07:00:00Z"));
        assert_eq!(validity.renewal(1.0), at("2026-11-28T09:00:00Z"));
    }
}
