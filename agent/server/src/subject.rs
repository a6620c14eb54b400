//! ◆ A user, and the one that the subject of a certificate names: its common name, in the groups that are its organizations. Pure.
//!
//! Source: Kubernetes 1.36, k8s.io/apiserver/pkg/authentication/request/x509/x509.go CommonNameUserConversion.

use std::collections::BTreeMap;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// UTF8String, PrintableString and IA5String: the others are not in use for names.
const STRINGS: [u8; 3] = [0x0c, 0x13, 0x16];
/// 2.5.4.3 and 2.5.4.10.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];

/// A client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

/// The user of a subject in DER, without the tag and length of the whole; `None` if it has no common name or cannot be read.
pub(crate) fn user(subject: &[u8]) -> Option<User> {
    let (mut name, mut groups) = (None, Vec::new());
    let mut relative_names = Elements(subject);
    while let Some(mut attributes) = relative_names.next(SET)? {
        while let Some(mut attribute) = attributes.next(SEQUENCE)? {
            let kind = attribute.next(OBJECT_IDENTIFIER)??.0;
            // As Go reads it, the last common name counts.
            if kind == COMMON_NAME {
                name = Some(attribute.text()?);
            } else if kind == ORGANIZATION {
                groups.push(attribute.text()?);
            }
        }
    }
    let name = name.filter(|name| !name.is_empty())?;
    Some(User { name, groups, ..User::default() })
}

/// The elements of a DER value that are yet to be read.
struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    /// The content of the next element, which must have this tag; the inner `None` at the end, the outer one if it is malformed.
    #[expect(clippy::option_option, reason = "malformed, at the end, or there")]
    fn next(&mut self, tag: u8) -> Option<Option<Elements<'a>>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let (found, content) = self.element()?;
        (found == tag).then_some(Some(Elements(content)))
    }

    fn text(&mut self) -> Option<String> {
        let (tag, content) = self.element()?;
        let text = std::str::from_utf8(content).ok()?;
        STRINGS.contains(&tag).then(|| text.to_owned())
    }

    fn element(&mut self) -> Option<(u8, &'a [u8])> {
        let (tag, rest) = self.0.split_first()?;
        let (first, mut rest) = rest.split_first()?;
        let mut length = usize::from(*first);
        if length >= 0x80 {
            // The length of the length: a subject has less than 64 KiB.
            let (bytes, after) = rest.split_at_checked(length & 0x7f)?;
            if bytes.is_empty() || bytes.len() > 2 {
                return None;
            }
            length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            rest = after;
        }
        let (content, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((*tag, content))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use rustls::pki_types::CertificateDer;
    use webpki::EndEntityCert;

    use super::*;

    fn subject(names: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, text) in names {
            params.distinguished_name.push(kind.clone(), *text);
        }
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let der: CertificateDer<'_> = made.der().clone();
        EndEntityCert::try_from(&der).unwrap().subject().to_vec()
    }

    #[test]
    fn common_name_is_the_user_and_organizations_are_groups() {
        let long = "x".repeat(300);
        let names = [
            (DnType::OrganizationName, "system:masters"),
            (DnType::CountryName, "DE"),
            (DnType::CommonName, long.as_str()),
        ];
        let user = user(&subject(&names)).unwrap();
        assert_eq!((user.name, user.groups), (long, vec!["system:masters".to_owned()]));
        assert_eq!(super::user(&subject(&[(DnType::OrganizationName, "system:masters")])), None);
        assert_eq!(super::user(b""), None);
    }

    #[test]
    fn truncated_subjects_are_no_user() {
        let whole = subject(&[(DnType::CommonName, "kubelet-client")]);
        for length in 0..whole.len() {
            assert_eq!(user(&whole[..length]), None, "{length}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = user(&bytes);
        }
    }
}
