//! ◆ The bearer token among the protocols that a WebSocket client offers: browsers let WebSockets have no Authorization header. Pure.
//!
//! Source: Kubernetes 1.36, k8s.io/apiserver/pkg/authentication/request/websocket/protocol.go.

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use http::header::{HeaderMap, HeaderValue, SEC_WEBSOCKET_PROTOCOL};

/// The prefix of the protocol that is a token.
const PREFIX: &[u8] = b"base64url.bearer.authorization.k8s.io.";
/// Go's decoder also ignores the unused bits of the last character.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// Why a token among the protocols is rejected. The text never contains a part of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("multiple tokens")]
    Multiple,
    #[error("not base64url without padding")]
    Encoding,
    #[error("not UTF-8")]
    Text,
    /// The response must name a protocol, which must not be the token.
    #[error("no other protocol is offered")]
    Alone,
}

/// The token among the protocols of a request for a WebSocket; `None`: there is none, or an empty one.
pub(crate) fn token(headers: &HeaderMap) -> Result<Option<String>, ProtocolError> {
    let mut tokens = offered(headers).filter_map(|protocol| protocol.strip_prefix(PREFIX));
    let Some(encoded) = tokens.next() else {
        return Ok(None);
    };
    if tokens.next().is_some() {
        return Err(ProtocolError::Multiple);
    }
    let bytes = BASE64.decode(encoded).map_err(|_| ProtocolError::Encoding)?;
    let token = String::from_utf8(bytes).map_err(|_| ProtocolError::Text)?;
    if token.is_empty() {
        return Ok(None);
    }
    if offered(headers).all(is_token) {
        return Err(ProtocolError::Alone);
    }
    Ok(Some(token))
}

/// Removes tokens from the offered protocols, also those that no client was authenticated by.
pub(crate) fn remove(headers: &mut HeaderMap) {
    if !offered(headers).any(is_token) {
        return;
    }
    let others: Vec<&[u8]> = offered(headers).filter(|protocol| !is_token(protocol)).collect();
    match HeaderValue::from_bytes(&others.join(&b", "[..])) {
        Ok(others) if !others.is_empty() => {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, others);
        }
        Ok(_) | Err(_) => {
            headers.remove(SEC_WEBSOCKET_PROTOCOL);
        }
    }
}

fn is_token(protocol: &[u8]) -> bool {
    protocol.starts_with(PREFIX)
}

/// The offered protocols. Several headers are one list.
fn offered(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let protocols = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    protocols.map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// The headers of a client that offers these protocols; `T:` stands for the prefix of a token.
    fn headers(values: &[&str]) -> HeaderMap {
        let prefix = String::from_utf8_lossy(PREFIX);
        let value = |value: &&str| HeaderValue::from_str(&value.replace("T:", &prefix)).ok();
        let values = values.iter().filter_map(value);
        values.map(|value| (SEC_WEBSOCKET_PROTOCOL, value)).collect()
    }

    #[rstest]
    #[case::first(&["T:c2VjcmV0, v4"], Ok(Some("secret")))]
    #[case::last(&["v4,T:c2VjcmV0"], Ok(Some("secret")))]
    #[case::other_header(&["v4", "T:c2VjcmV0"], Ok(Some("secret")))]
    #[case::url_alphabet(&["v4, T:Pz8_Pj4-"], Ok(Some("???>>>")))]
    #[case::unused_bits(&["v4, T:YR"], Ok(Some("a")))]
    #[case::none(&["v4, v5"], Ok(None))]
    #[case::no_header(&[], Ok(None))]
    #[case::empty(&["T:"], Ok(None))]
    #[case::multiple(&["v4, T:c2VjcmV0", "T:c2VjcmV0"], Err(ProtocolError::Multiple))]
    #[case::padded(&["v4, T:YQ=="], Err(ProtocolError::Encoding))]
    #[case::standard_alphabet(&["v4, T:Pz8/Pj4+"], Err(ProtocolError::Encoding))]
    #[case::not_utf_8(&["v4, T:_w"], Err(ProtocolError::Text))]
    #[case::alone(&["T:c2VjcmV0"], Err(ProtocolError::Alone))]
    fn one_protocol_may_be_a_token(
        #[case] values: &[&str],
        #[case] expected: Result<Option<&str>, ProtocolError>,
    ) {
        assert_eq!(token(&headers(values)), expected.map(|token| token.map(str::to_owned)));
    }

    #[rstest]
    #[case::one(&["v5, T:c2VjcmV0,v4"], &["v5, v4"])]
    #[case::several(&["T:YQ, v5", "v4", "T:YQ=="], &["v5, v4"])]
    #[case::alone(&["T:c2VjcmV0"], &[])]
    #[case::none(&["v5,v4", "v3"], &["v5,v4", "v3"])]
    fn tokens_are_removed_from_the_protocols(#[case] values: &[&str], #[case] expected: &[&str]) {
        let mut headers = headers(values);
        remove(&mut headers);
        let left: Vec<&HeaderValue> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().collect();
        assert_eq!(left, expected);
    }
}
