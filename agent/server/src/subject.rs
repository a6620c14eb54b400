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

/// Why a certificate is rejected for its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubjectError {
    #[error("its subject cannot be read")]
    Malformed,
    #[error("its subject has an empty uid, or several uids")]
    Uid,
}

/// The attributes of a subject that make a user.
#[derive(Default)]
struct Attributes {
    common_name: String,
    organizations: Vec<String>,
    uids: Vec<String>,
}

/// The user of a subject in DER, without the tag and length of the whole; `None` if it has no common name. With `reads_uid`, a
/// subject may have one uid (gate AllowParsingUserUIDFromCertAuth).
pub(crate) fn user(subject: &[u8], reads_uid: bool) -> Result<Option<User>, SubjectError> {
    let Attributes { common_name, organizations, mut uids } =
        attributes(subject, reads_uid).ok_or(SubjectError::Malformed)?;
    if common_name.is_empty() {
        return Ok(None);
    }
    if uids.len() > 1 || uids.iter().any(String::is_empty) {
        return Err(SubjectError::Uid);
    }
    let uid = uids.pop().unwrap_or_default();
    Ok(Some(User { name: common_name, uid, groups: organizations, ..User::default() }))
}

fn attributes(subject: &[u8], reads_uid: bool) -> Option<Attributes> {
    let mut found = Attributes::default();
    let mut relative_names = Elements::new(subject);
    while !relative_names.is_empty() {
        let mut attributes = relative_names.next(SET)?;
        while !attributes.is_empty() {
            let mut attribute = attributes.next(SEQUENCE)?;
            let kind = attribute.next(OBJECT_IDENTIFIER)?.bytes();
            // As in Go, the last common name applies.
            if kind == COMMON_NAME {
                found.common_name = attribute.text()?;
            } else if kind == ORGANIZATION {
                found.organizations.push(attribute.text()?);
            } else if kind == UID && reads_uid {
                found.uids.push(attribute.text()?);
            }
        }
    }
    Some(found)
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
        let user = user(&subject(&names), true).unwrap().unwrap();
        assert_eq!((user.name, user.groups), (long, vec!["system:masters".to_owned()]));
        let nameless = subject(&[(DnType::OrganizationName, "system:masters")]);
        for nobody in [&nameless, &subject(&[(DnType::CommonName, "")]), &Vec::new()] {
            assert_eq!(super::user(nobody, true), Ok(None));
        }
    }

    #[rstest]
    #[case::read("42", true, Ok("42"))]
    #[case::left_out("42", false, Ok(""))]
    #[case::empty("", true, Err(SubjectError::Uid))]
    #[case::empty_and_left_out("", false, Ok(""))]
    fn uid_is_read_with_its_gate(
        #[case] uid: &str,
        #[case] reads_uid: bool,
        #[case] expected: Result<&str, SubjectError>,
    ) {
        let kind = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        let subject = subject(&[(DnType::CommonName, "jane"), (kind, uid)]);
        let seen = user(&subject, reads_uid).map(|user| user.unwrap().uid);
        assert_eq!(seen, expected.map(str::to_owned));
    }

    #[test]
    fn truncated_subjects_are_malformed() {
        let whole = subject(&[(DnType::CommonName, "kubelet-client")]);
        for length in 1..whole.len() {
            let seen = user(&whole[..length], true);
            assert_eq!(seen, Err(SubjectError::Malformed), "{length}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = user(&bytes, true);
        }
    }
}
