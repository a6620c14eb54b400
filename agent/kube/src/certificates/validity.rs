//! ◆ The validity period of a certificate, and the time of its renewal. Pure.

use std::time::Duration;

use jiff::Timestamp;

use crate::der::{Elements, SEQUENCE};

/// The context-specific tag of a certificate's version.
const VERSION: u8 = 0xa0;

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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

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
