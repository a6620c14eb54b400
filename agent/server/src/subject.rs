//! ◆ Users, and the user in a certificate's subject: its common name, with its organizations as groups. Pure.
//!
//! Source: Kubernetes 1.36, k8s.io/apiserver/pkg/authentication/request/x509/x509.go CommonNameUserConversion.

use compact::Map;
use kube_node::der::{Elements, SEQUENCE};

const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// The object identifiers 2.5.4.3 and 2.5.4.10.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];
/// 1.3.6.1.4.1.57683.2, of Kubernetes.
const UID: [u8; 9] = [0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xc2, 0x53, 0x02];

/// The user of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: Map<String, Vec<String>>,
}

/// The user of a subject in DER, without the tag and length of the whole; `None` if it has no common name or cannot be read. With
/// `reads_uid`, a subject may have one uid (gate AllowParsingUserUIDFromCertAuth).
pub(crate) fn user(subject: &[u8], reads_uid: bool) -> Option<User> {
    let (mut name, mut groups, mut uids) = (None, Vec::new(), Vec::new());
    let mut relative_names = Elements::new(subject);
    while !relative_names.is_empty() {
        let mut attributes = relative_names.next(SET)?;
        while !attributes.is_empty() {
            let mut attribute = attributes.next(SEQUENCE)?;
            let kind = attribute.next(OBJECT_IDENTIFIER)?.bytes();
            // As in Go, the last common name applies.
            if kind == COMMON_NAME {
                name = Some(attribute.text()?);
            } else if kind == ORGANIZATION {
                groups.push(attribute.text()?);
            } else if kind == UID && reads_uid {
                uids.push(attribute.text()?);
            }
        }
    }
    let name = name.filter(|name| !name.is_empty())?;
    if uids.len() > 1 || uids.iter().any(String::is_empty) {
        return None;
    }
    let uid = uids.pop().unwrap_or_default();
    Some(User { name, uid, groups, ..User::default() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use rstest::rstest;
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
        let user = user(&subject(&names), true).unwrap();
        assert_eq!((user.name, user.groups), (long, vec!["system:masters".to_owned()]));
        let nameless = subject(&[(DnType::OrganizationName, "system:masters")]);
        assert_eq!(super::user(&nameless, true), None);
        assert_eq!(super::user(b"", true), None);
    }

    #[rstest]
    #[case::read("42", true, Some("42"))]
    #[case::left_out("42", false, Some(""))]
    #[case::empty("", true, None)]
    #[case::empty_and_left_out("", false, Some(""))]
    fn uid_is_read_with_its_gate(
        #[case] uid: &str,
        #[case] reads_uid: bool,
        #[case] expected: Option<&str>,
    ) {
        let kind = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        let subject = subject(&[(DnType::CommonName, "jane"), (kind, uid)]);
        let seen = user(&subject, reads_uid).map(|user| user.uid);
        assert_eq!(seen.as_deref(), expected);
    }

    #[test]
    fn truncated_subjects_are_no_user() {
        let whole = subject(&[(DnType::CommonName, "kubelet-client")]);
        for length in 0..whole.len() {
            assert_eq!(user(&whole[..length], true), None, "{length}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = user(&bytes, true);
        }
    }
}
