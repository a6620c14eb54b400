//! ◆ Content digests, against which content is verified.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::Digest as _;

/// A sha256 digest, written `sha256:<64 lower-case hexadecimal digits>` as in the OCI image
/// specification 1.1 (descriptor.md, "Digests").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// Why a text is not a digest that this runtime can verify.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// The algorithm is not sha256.
    #[error(
        "digest {0:?} does not start with sha256:, the one algorithm that can be verified here"
    )]
    Algorithm(String),
    /// Not 64 lower-case hexadecimal digits after the colon.
    #[error("digest {0:?} does not have 64 lower-case hexadecimal digits")]
    Digits(String),
}

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// The digest of a completed hash.
    pub(crate) fn finish(hash: sha2::Sha256) -> Self {
        Self(hash.finalize().into())
    }

    /// The 64 digits without the algorithm: a safe file name.
    pub fn hex(&self) -> String {
        let mut out = String::with_capacity(64);
        for byte in self.0 {
            for nibble in [byte >> 4, byte & 15] {
                out.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
            }
        }
        out
    }

    /// Parses the 64 digits without the algorithm.
    ///
    /// # Errors
    /// [`DigestError::Digits`] for anything but 64 lower-case hexadecimal digits.
    pub fn from_hex(hex: &str) -> Result<Self, DigestError> {
        let refuse = || DigestError::Digits(hex.to_owned());
        let nibble = |c: u8| match c {
            b'0'..=b'9' => Ok(c - b'0'),
            b'a'..=b'f' => Ok(c - b'a' + 10),
            _ => Err(refuse()),
        };
        let text = hex.as_bytes();
        if text.len() != 64 {
            return Err(refuse());
        }
        let mut out = [0u8; 32];
        for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
            *byte = (nibble(pair[0])? << 4) | nibble(pair[1])?;
        }
        Ok(Self(out))
    }

    /// The chain ID of `self` (a chain ID, or the first diff ID) with one more layer on top: OCI image specification
    /// 1.1, config.md, "Layer ChainID".
    pub fn chain(&self, diff: &Digest) -> Digest {
        Digest::of(format!("{self} {diff}").as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        match text.strip_prefix("sha256:") {
            Some(hex) => Self::from_hex(hex).map_err(|_| DigestError::Digits(text.to_owned())),
            None => Err(DigestError::Algorithm(text.to_owned())),
        }
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[test]
    fn digest_matches_known_answers() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        // sha256sum of the two digests of "a" and "b" joined by a space.
        let chain = Digest::of(b"a").chain(&Digest::of(b"b"));
        let text = format!("{} {}", Digest::of(b"a"), Digest::of(b"b"));
        assert_eq!(chain, Digest::of(text.as_bytes()));
    }

    #[rstest]
    #[case::no_algorithm("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")]
    #[case::sha512("sha512:aa")]
    #[case::short("sha256:aa")]
    #[case::upper("sha256:E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855")]
    #[case::path("sha256:../../../../../../../../../../../../../../../../../../../../../etc")]
    fn invalid_digest_is_rejected(#[case] text: &str) {
        assert!(text.parse::<Digest>().is_err());
    }

    proptest! {
        #[test]
        fn digest_round_trips_as_text(bytes in any::<[u8; 32]>()) {
            let digest = Digest(bytes);
            prop_assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
        }
    }
}
