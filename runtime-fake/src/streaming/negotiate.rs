//! Negotiates the protocol of a client, from the headers of its request ◆
//!
//! | upgrade | header | exec and attach | port-forward |
//! |---|---|---|---|
//! | SPDY/3.1 | X-Stream-Protocol-Version | v4 to v1, or none for v1 | portforward.k8s.io, or none |
//! | websocket | Sec-WebSocket-Protocol | v5, v4, v1 and their base64, or none for v1; SPDY/3.1+… | SPDY/3.1+portforward.k8s.io; v4, its base64, or none for channels |

use stream::Codec;

use super::token::Kind;

/// How the result of a command is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResultFormat {
    /// As a Status in JSON, also on success (v4 and later).
    Json,
    /// As a message, on failure only.
    Text,
}

/// The negotiated transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// SPDY directly on the connection.
    Spdy(Spdy),
    /// SPDY in WebSocket messages.
    Tunnelled(Spdy),
    /// WebSocket channels.
    Channels { codec: Codec, half_close: bool, outcome: ResultFormat },
}

/// The stream protocol over SPDY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spdy {
    pub(super) outcome: ResultFormat,
    /// Whether a client with a terminal opens a resize stream (v3 and later).
    pub(super) resize: bool,
}

/// The result of a negotiation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Negotiated {
    pub(super) transport: Transport,
    /// The protocol name to return to the client, if it offered any.
    pub(super) protocol: Option<String>,
}

/// Why a negotiation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NegotiationError {
    #[error("this URL requires an upgrade to SPDY/3.1 or websocket")]
    NotAnUpgrade,
    #[error("none of the protocols {offered:?} is supported; supported: {spoken}")]
    UnknownProtocols { offered: Vec<String>, spoken: String },
    #[error("the WebSocket handshake has another version than 13, or no key")]
    BrokenHandshake,
}

/// The request headers that matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HandshakeHeaders<'a> {
    /// All values of Connection.
    pub(super) connection: Vec<&'a str>,
    pub(super) upgrade: Option<&'a str>,
    /// All values of X-Stream-Protocol-Version.
    pub(super) stream_protocols: Vec<&'a str>,
    /// All values of Sec-WebSocket-Protocol.
    pub(super) websocket_protocols: Vec<&'a str>,
    pub(super) websocket_version: Option<&'a str>,
    pub(super) websocket_key: Option<&'a str>,
}

const TUNNEL: &str = "SPDY/3.1+";
const V4: &str = "v4.channel.k8s.io";
const PORT_FORWARD: &str = "portforward.k8s.io";

fn spdy(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Exec | Kind::Attach => {
            &[V4, "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"]
        }
        Kind::PortForward => &[PORT_FORWARD],
    }
}

fn channels(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Exec | Kind::Attach => &[
            "v5.channel.k8s.io",
            V4,
            "v4.base64.channel.k8s.io",
            "channel.k8s.io",
            "base64.channel.k8s.io",
        ],
        Kind::PortForward => &[V4, "v4.base64.channel.k8s.io"],
    }
}

/// Selects the client's first protocol that is supported.
pub(super) fn negotiate(
    kind: Kind,
    headers: &HandshakeHeaders<'_>,
) -> Result<Negotiated, NegotiationError> {
    let upgrades = listed(&headers.connection).any(|word| word.eq_ignore_ascii_case("upgrade"));
    let upgrade = headers.upgrade.filter(|_| upgrades).unwrap_or_default();
    if upgrade.eq_ignore_ascii_case("SPDY/3.1") {
        let offered: Vec<&str> = listed(&headers.stream_protocols).collect();
        return over_spdy(kind, &offered);
    }
    if upgrade.eq_ignore_ascii_case("websocket") {
        if headers.websocket_version != Some("13") || headers.websocket_key.is_none() {
            return Err(NegotiationError::BrokenHandshake);
        }
        let offered: Vec<&str> = listed(&headers.websocket_protocols).collect();
        return over_websocket(kind, &offered);
    }
    Err(NegotiationError::NotAnUpgrade)
}

/// The words of list headers.
fn listed<'a>(values: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    let words = values.iter().flat_map(|value| value.split(','));
    words.map(str::trim).filter(|word| !word.is_empty())
}

fn over_spdy(kind: Kind, offered: &[&str]) -> Result<Negotiated, NegotiationError> {
    if offered.is_empty() {
        // Old clients offer none and mean the first version.
        let transport = Transport::Spdy(spdy_features("channel.k8s.io"));
        let protocol = None;
        return Ok(Negotiated { transport, protocol });
    }
    let name = offered.iter().find(|name| spdy(kind).contains(name));
    let name = name.ok_or_else(|| unknown_protocols(offered, spdy(kind).join(", ")))?;
    Ok(Negotiated {
        transport: Transport::Spdy(spdy_features(name)),
        protocol: Some((*name).to_owned()),
    })
}

fn spdy_features(name: &str) -> Spdy {
    Spdy {
        outcome: if name == V4 { ResultFormat::Json } else { ResultFormat::Text },
        resize: name == V4 || name == "v3.channel.k8s.io",
    }
}

fn over_websocket(kind: Kind, offered: &[&str]) -> Result<Negotiated, NegotiationError> {
    if offered.is_empty() {
        let transport = channel_transport("channel.k8s.io");
        let protocol = None;
        return Ok(Negotiated { transport, protocol });
    }
    for name in offered {
        let inner = name.strip_prefix(TUNNEL).filter(|name| spdy(kind).contains(name));
        let transport = match inner {
            Some(inner) => Transport::Tunnelled(spdy_features(inner)),
            None if channels(kind).contains(name) => channel_transport(name),
            None => continue,
        };
        let protocol = Some((*name).to_owned());
        return Ok(Negotiated { transport, protocol });
    }
    let tunnelled = spdy(kind).iter().map(|name| format!("{TUNNEL}{name}"));
    let spoken = channels(kind).iter().map(ToString::to_string);
    let spoken: Vec<String> = spoken.chain(tunnelled).collect();
    Err(unknown_protocols(offered, spoken.join(", ")))
}

fn channel_transport(name: &str) -> Transport {
    Transport::Channels {
        codec: if name.contains("base64") { Codec::Base64 } else { Codec::Binary },
        half_close: name.starts_with("v5."),
        outcome: if name.starts_with('v') { ResultFormat::Json } else { ResultFormat::Text },
    }
}

/// The offered protocols, truncated to fit into a message.
fn unknown_protocols(offered: &[&str], spoken: String) -> NegotiationError {
    let short = |name: &&str| name.chars().take(64).collect();
    NegotiationError::UnknownProtocols {
        offered: offered.iter().take(8).map(short).collect(),
        spoken,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    fn headers<'a>(upgrade: &'a str, protocols: &[&'a str]) -> HandshakeHeaders<'a> {
        HandshakeHeaders {
            connection: vec!["keep-alive, Upgrade"],
            upgrade: Some(upgrade),
            stream_protocols: protocols.to_vec(),
            websocket_protocols: protocols.to_vec(),
            websocket_version: Some("13"),
            websocket_key: Some("dGhlIHNhbXBsZSBub25jZQ=="),
        }
    }

    const fn v(outcome: ResultFormat, resize: bool) -> Spdy {
        Spdy { outcome, resize }
    }

    const fn c(codec: Codec, half_close: bool, outcome: ResultFormat) -> Transport {
        Transport::Channels { codec, half_close, outcome }
    }

    use Codec::{Base64, Binary};
    use Kind::{Attach, Exec, PortForward};
    use ResultFormat::{Json, Text};

    #[rstest]
    #[case::kubectl(Exec, "SPDY/3.1", &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"], Transport::Spdy(v(Json, true)), Some("v4.channel.k8s.io"))]
    #[case::in_one_line(Attach, "spdy/3.1", &["v9.channel.k8s.io, v3.channel.k8s.io"], Transport::Spdy(v(Text, true)), Some("v3.channel.k8s.io"))]
    #[case::v2(Exec, "SPDY/3.1", &["v2.channel.k8s.io"], Transport::Spdy(v(Text, false)), Some("v2.channel.k8s.io"))]
    #[case::of_old(Exec, "SPDY/3.1", &[], Transport::Spdy(v(Text, false)), None)]
    #[case::ports(PortForward, "SPDY/3.1", &["portforward.k8s.io"], Transport::Spdy(v(Text, false)), Some("portforward.k8s.io"))]
    #[case::v5(Exec, "websocket", &["v5.channel.k8s.io"], c(Binary, true, Json), Some("v5.channel.k8s.io"))]
    #[case::v4(Exec, "WebSocket", &["v4.channel.k8s.io, v5.channel.k8s.io"], c(Binary, false, Json), Some("v4.channel.k8s.io"))]
    #[case::base64(Exec, "websocket", &["v4.base64.channel.k8s.io"], c(Base64, false, Json), Some("v4.base64.channel.k8s.io"))]
    #[case::base64_of_old(Exec, "websocket", &["base64.channel.k8s.io"], c(Base64, false, Text), Some("base64.channel.k8s.io"))]
    #[case::no_name(Exec, "websocket", &[], c(Binary, false, Text), None)]
    #[case::tunnel(PortForward, "websocket", &["SPDY/3.1+portforward.k8s.io"], Transport::Tunnelled(v(Text, false)), Some("SPDY/3.1+portforward.k8s.io"))]
    #[case::a_command_in_a_tunnel(Exec, "websocket", &["SPDY/3.1+v4.channel.k8s.io"], Transport::Tunnelled(v(Json, true)), Some("SPDY/3.1+v4.channel.k8s.io"))]
    #[case::port_channels(PortForward, "websocket", &["v4.channel.k8s.io"], c(Binary, false, Json), Some("v4.channel.k8s.io"))]
    fn negotiate_selects_supported_protocol(
        #[case] kind: Kind,
        #[case] upgrade: &str,
        #[case] protocols: &[&str],
        #[case] transport: Transport,
        #[case] protocol: Option<&str>,
    ) {
        let protocol = protocol.map(str::to_owned);
        let negotiated = negotiate(kind, &headers(upgrade, protocols));
        assert_eq!(negotiated, Ok(Negotiated { transport, protocol }));
    }

    #[rstest]
    #[case::ports_are_no_commands(PortForward, "SPDY/3.1", &["v4.channel.k8s.io"])]
    #[case::v5_is_for_websockets(Exec, "SPDY/3.1", &["v5.channel.k8s.io"])]
    #[case::another_tunnel(Exec, "websocket", &["SPDY/3.1+portforward.k8s.io"])]
    #[case::ports_have_no_v5(PortForward, "websocket", &["v5.channel.k8s.io"])]
    fn negotiate_rejects_unknown_protocols(
        #[case] kind: Kind,
        #[case] upgrade: &str,
        #[case] protocols: &[&str],
    ) {
        let refused = negotiate(kind, &headers(upgrade, protocols)).unwrap_err();
        assert!(matches!(refused, NegotiationError::UnknownProtocols { .. }), "{refused}");
    }

    #[test]
    fn negotiate_rejects_missing_upgrade() {
        let none = HandshakeHeaders::default();
        assert_eq!(negotiate(Exec, &none), Err(NegotiationError::NotAnUpgrade));
        assert_eq!(negotiate(Exec, &headers("h2c", &[])), Err(NegotiationError::NotAnUpgrade));
        let mut headers = headers("SPDY/3.1", &[]);
        headers.connection = vec!["keep-alive"];
        assert_eq!(negotiate(Exec, &headers), Err(NegotiationError::NotAnUpgrade));
    }

    #[test]
    fn negotiate_rejects_invalid_websocket_handshake() {
        let mut old = headers("websocket", &[]);
        old.websocket_version = Some("8");
        assert_eq!(negotiate(Exec, &old), Err(NegotiationError::BrokenHandshake));
        let mut keyless = headers("websocket", &[]);
        keyless.websocket_key = None;
        assert_eq!(negotiate(Exec, &keyless), Err(NegotiationError::BrokenHandshake));
    }
}
