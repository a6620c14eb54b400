//! ◆ Escaping in the parts of a URL, as in Go's `net/url`. Pure.

/// Why a text is not a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    #[error("net/url: invalid control character in URL")]
    ControlCharacter,
    #[error("missing protocol scheme")]
    NoScheme,
    #[error("first path segment in URL cannot contain colon")]
    ColonInFirstSegment,
    #[error("invalid URL escape {0:?}")]
    Escape(String),
    #[error("invalid character {0:?} in host name")]
    HostCharacter(String),
    #[error("invalid port {0:?} after host")]
    Port(String),
    #[error("missing ']' in host")]
    OpenBracket,
    #[error("invalid IP-literal")]
    IpLiteral,
    #[error("net/url: invalid userinfo")]
    UserInfo,
}

/// A part of a URL, which decides the bytes that are escaped in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Path,
    Host,
    Zone,
    User,
    Fragment,
}

impl Part {
    /// Whether a byte is written without an escape.
    pub(super) fn has_plain(self, byte: u8) -> bool {
        let more: &[u8] = match self {
            Self::Path => b"$&+,/:;=@",
            Self::Host | Self::Zone => b"!$&'()*+,;=:[]<>\"",
            Self::User => b"$&+,;=",
            Self::Fragment => b"$&+,/:;=?@!()*",
        };
        byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || more.contains(&byte)
    }

    pub(super) fn escape(self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        for &byte in bytes {
            if self.has_plain(byte) {
                text.push(char::from(byte));
            } else {
                text.push_str(&format!("%{byte:02X}"));
            }
        }
        text
    }

    pub(super) fn unescape(self, text: &str) -> Result<Vec<u8>, Problem> {
        let bytes = text.as_bytes();
        let mut plain = Vec::with_capacity(bytes.len());
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            if byte != b'%' {
                let in_host = matches!(self, Self::Host | Self::Zone);
                if in_host && byte.is_ascii() && !self.has_plain(byte) {
                    return Err(Problem::HostCharacter(char::from(byte).to_string()));
                }
                plain.push(byte);
                at += 1;
                continue;
            }
            let escape = bytes.get(at..bytes.len().min(at + 3)).unwrap_or_default();
            let wrong = || Problem::Escape(String::from_utf8_lossy(escape).into_owned());
            let value = hex(escape).ok_or_else(wrong)?;
            let allowed = match self {
                // A host may escape only non-ASCII bytes; a zone only bytes that a host may have, and a space.
                Self::Host => !value.is_ascii() || value == b'%',
                Self::Zone => value == b'%' || value == b' ' || Self::Host.has_plain(value),
                Self::Path | Self::User | Self::Fragment => true,
            };
            if !allowed {
                return Err(wrong());
            }
            plain.push(value);
            at += 3;
        }
        Ok(plain)
    }

    /// The written form of a part: the original text if it is a valid escape of the part, or else the default escape.
    pub(super) fn written(self, plain: &[u8], raw: &str) -> String {
        let is_valid = |byte: u8| b"!'()*[]%".contains(&byte) || self.has_plain(byte);
        let fits = !raw.is_empty()
            && raw.bytes().all(is_valid)
            && self.unescape(raw).is_ok_and(|unescaped| unescaped == plain);
        if fits { raw.to_owned() } else { self.escape(plain) }
    }
}

fn hex(escape: &[u8]) -> Option<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    match escape {
        [_, high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
        _ => None,
    }
}
