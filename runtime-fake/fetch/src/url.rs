//! ◆ URLs with the rules of Go's `net/url`, because a kubelet requests URLs with these rules. Pure.
//!
//! It differs from the WHATWG rules of other libraries where manifests make use of it: dots in paths are kept, `{` is escaped,
//! and text that is not a URL becomes a path.

mod escape;

use std::fmt;
use std::net::IpAddr;

use escape::{Part, Problem};

/// Pairs that are sent in a form, or appended to a query.
pub type Pairs<'a> = [(&'a str, &'a str)];

/// A URL, with its path and its host unescaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    /// The part after the scheme if it does not begin with a slash; it is kept unchanged.
    opaque: String,
    user: Option<(Vec<u8>, Option<Vec<u8>>)>,
    /// Host and port.
    host: Vec<u8>,
    omit_host: bool,
    path: Vec<u8>,
    /// The path as written, if escaping the path again gives a different text.
    raw_path: String,
    query: String,
    /// A `?` without a query.
    force_query: bool,
    fragment: Vec<u8>,
    raw_fragment: String,
}

/// Why a text is not a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parse {text:?}: {problem}")]
pub struct UrlError {
    text: String,
    problem: Problem,
}

impl Url {
    /// Parses a URL or a relative reference.
    ///
    /// # Errors
    ///
    /// If it is neither.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        let error = |problem| UrlError { text: rest.to_owned(), problem };
        let mut url = Self::without_fragment(rest).map_err(error)?;
        url.fragment = Part::Fragment.unescape(fragment).map_err(error)?;
        fragment.clone_into(&mut url.raw_fragment);
        Ok(url)
    }

    /// Parses the URL of a server: its scheme is http or https, and it has a host.
    #[must_use]
    pub fn of_server(text: &str) -> Option<Self> {
        Self::parse(text).ok().filter(Self::is_of_server)
    }

    pub(crate) fn is_of_server(&self) -> bool {
        let scheme = matches!(self.scheme.as_str(), "http" | "https");
        scheme && !self.hostname().is_empty() && self.port().is_some()
    }

    /// A URL with the text as its path, without parsing it.
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        Self { path: path.as_bytes().to_vec(), ..Self::default() }
    }

    /// The URL with this scheme, and this host and port.
    #[must_use]
    pub fn at(self, scheme: String, authority: &str) -> Self {
        Self { scheme, host: authority.as_bytes().to_vec(), ..self }
    }

    /// The URL with these pairs after its query.
    #[must_use]
    pub fn with_query(mut self, pairs: &Pairs<'_>) -> Self {
        if !self.query.is_empty() && !pairs.is_empty() {
            self.query.push('&');
        }
        self.query.push_str(&form(pairs));
        self
    }

    fn without_fragment(text: &str) -> Result<Self, Problem> {
        if text.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(Problem::ControlCharacter);
        }
        let mut url = Self::default();
        if text == "*" {
            url.path = b"*".to_vec();
            return Ok(url);
        }
        let (scheme, rest) = split_scheme(text)?;
        url.scheme = scheme.to_ascii_lowercase();
        let (mut rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        url.force_query = query.is_empty() && text.contains('?');
        query.clone_into(&mut url.query);
        if !rest.starts_with('/') {
            if !url.scheme.is_empty() {
                rest.clone_into(&mut url.opaque);
                return Ok(url);
            }
            if rest.split('/').next().is_some_and(|part| part.contains(':')) {
                return Err(Problem::ColonInFirstSegment);
            }
        }
        if let Some(authority) = rest.strip_prefix("//")
            && (!url.scheme.is_empty() || !authority.starts_with('/'))
        {
            let end = authority.find('/').unwrap_or(authority.len());
            rest = &authority[end..];
            url.set_authority(&authority[..end])?;
        } else if !url.scheme.is_empty() && rest.starts_with('/') {
            url.omit_host = true;
        }
        url.path = Part::Path.unescape(rest)?;
        rest.clone_into(&mut url.raw_path);
        Ok(url)
    }

    fn set_authority(&mut self, authority: &str) -> Result<(), Problem> {
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        self.host = unescape_host(host)?;
        if let Some(user) = user {
            let plain =
                |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
            if !user.bytes().all(plain) {
                return Err(Problem::UserInfo);
            }
            let (name, password) = match user.split_once(':') {
                Some((name, password)) => (name, Some(Part::User.unescape(password)?)),
                None => (user, None),
            };
            self.user = Some((Part::User.unescape(name)?, password));
        }
        Ok(())
    }

    /// The scheme, in lower case.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Host and port, as in the Host header: without the zone of an IPv6 address.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = String::from_utf8_lossy(&self.host).into_owned();
        match (host.find('%'), host.rfind(']')) {
            (Some(zone), Some(end)) if host.starts_with('[') && zone < end => {
                format!("{}{}", &host[..zone], &host[end..])
            }
            _ => host,
        }
    }

    /// The host, without the brackets of an IPv6 address; empty if the URL has none.
    #[must_use]
    pub fn hostname(&self) -> String {
        let host = String::from_utf8_lossy(&self.host).into_owned();
        match host.strip_prefix('[').and_then(|rest| rest.rsplit_once(']')) {
            Some((inner, _)) => inner.to_owned(),
            None => host.split(':').next().unwrap_or_default().to_owned(),
        }
    }

    /// The port: the given one, or else the default of the scheme.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        let host = String::from_utf8_lossy(&self.host).into_owned();
        let after = host.rsplit_once(']').map_or(host.as_str(), |(_, rest)| rest);
        match after.split_once(':').map(|(_, port)| port) {
            Some(port) if !port.is_empty() => port.parse().ok(),
            Some(_) | None => match self.scheme.as_str() {
                "http" => Some(80),
                "https" => Some(443),
                _ => None,
            },
        }
    }

    /// Scheme, host, and port unless it is the scheme's default: the same for all URLs of a server.
    #[must_use]
    pub fn origin(&self) -> String {
        let host = self.hostname().to_ascii_lowercase();
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        match (self.scheme.as_str(), self.port()) {
            ("http", Some(80)) | ("https", Some(443)) | (_, None) => {
                format!("{}://{host}", self.scheme)
            }
            (scheme, Some(port)) => format!("{scheme}://{host}:{port}"),
        }
    }

    /// The user name and password in the URL.
    #[must_use]
    pub fn user(&self) -> Option<(&[u8], &[u8])> {
        let (name, password) = self.user.as_ref()?;
        Some((name, password.as_deref().unwrap_or_default()))
    }

    /// The URL without a password.
    #[must_use]
    pub fn redacted(&self) -> String {
        let mut url = self.clone();
        if let Some((_, Some(password))) = &mut url.user {
            *password = b"***".to_vec();
        }
        url.to_string()
    }

    /// The URL without user name and password.
    #[must_use]
    pub fn without_user(&self) -> String {
        let user = None;
        Self { user, ..self.clone() }.to_string()
    }

    /// Path and query, as in the first line of a request.
    #[must_use]
    pub fn request_uri(&self) -> String {
        let mut uri = if self.opaque.is_empty() {
            Some(self.written_path())
                .filter(|path| !path.is_empty())
                .unwrap_or_else(|| "/".to_owned())
        } else if self.opaque.starts_with("//") {
            format!("{}:{}", self.scheme, self.opaque)
        } else {
            self.opaque.clone()
        };
        self.push_query(&mut uri);
        uri
    }

    /// Path and query, with escapes for the bytes that the HTTP library refuses.
    #[must_use]
    pub fn escaped_request_uri(&self) -> String {
        let escape = |byte: u8| match byte {
            b'!'..=b'~' if !b"\"<>\\^`{|}#".contains(&byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        };
        self.request_uri().bytes().map(escape).collect()
    }

    /// The URL in the HTTP library's type; `None` if it is not the URL of a server.
    pub(crate) fn uri(&self) -> Option<http::Uri> {
        self.is_of_server().then_some(())?;
        let server = format!("{}://{}", self.scheme, self.authority());
        let exact = format!("{server}{}", self.request_uri()).parse();
        exact.or_else(|_| format!("{server}{}", self.escaped_request_uri()).parse()).ok()
    }

    /// Resolves the reference of a Location header relative to this URL.
    ///
    /// # Errors
    ///
    /// If it is not a URL.
    pub fn join(&self, reference: &str) -> Result<Self, UrlError> {
        let mut url = Self::parse(reference)?;
        let is_absolute = !url.scheme.is_empty();
        if !is_absolute {
            url.scheme.clone_from(&self.scheme);
        }
        if is_absolute || !url.host.is_empty() || url.user.is_some() {
            let path = resolved("", &url.written_path());
            url.set_path(path);
            return Ok(url);
        }
        if !url.opaque.is_empty() {
            return Ok(url);
        }
        if url.path.is_empty() && !url.force_query && url.query.is_empty() {
            url.query.clone_from(&self.query);
            if url.fragment.is_empty() {
                url.fragment.clone_from(&self.fragment);
                url.raw_fragment.clone_from(&self.raw_fragment);
            }
        }
        url.host.clone_from(&self.host);
        url.user.clone_from(&self.user);
        let path = resolved(&self.written_path(), &url.written_path());
        url.set_path(path);
        Ok(url)
    }

    /// Whether a text is a URL with a scheme.
    #[must_use]
    pub fn is_absolute(text: &str) -> bool {
        Self::parse(text).is_ok_and(|url| !url.scheme.is_empty())
    }

    fn set_path(&mut self, path: String) {
        // It consists of escaped paths.
        self.path = Part::Path.unescape(&path).unwrap_or_default();
        self.raw_path = path;
    }

    fn written_path(&self) -> String {
        if self.path == b"*" {
            return "*".to_owned();
        }
        Part::Path.written(&self.path, &self.raw_path)
    }

    fn push_query(&self, text: &mut String) {
        if self.force_query || !self.query.is_empty() {
            text.push('?');
            text.push_str(&self.query);
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        if !self.scheme.is_empty() {
            text.push_str(&self.scheme);
            text.push(':');
        }
        if self.opaque.is_empty() {
            let has_host = !self.host.is_empty() || self.user.is_some();
            let has_authority =
                has_host || !self.scheme.is_empty() && !self.omit_host && !self.path.is_empty();
            if has_authority {
                text.push_str("//");
            }
            if let Some((name, password)) = &self.user {
                text.push_str(&Part::User.escape(name));
                if let Some(password) = password {
                    text.push(':');
                    text.push_str(&Part::User.escape(password));
                }
                text.push('@');
            }
            text.push_str(&Part::Host.escape(&self.host));
            let path = self.written_path();
            if !path.is_empty() && !path.starts_with('/') && !self.host.is_empty() {
                text.push('/');
            }
            text.push_str(&path);
        } else {
            text.push_str(&self.opaque);
        }
        self.push_query(&mut text);
        if !self.fragment.is_empty() {
            text.push('#');
            text.push_str(&Part::Fragment.written(&self.fragment, &self.raw_fragment));
        }
        f.write_str(&text)
    }
}

/// Pairs as in a form or a query (WHATWG URL, application/x-www-form-urlencoded).
#[must_use]
pub fn form(pairs: &Pairs<'_>) -> String {
    let escape = |byte: u8| match byte {
        b' ' => "+".to_owned(),
        byte if byte.is_ascii_alphanumeric() || b"*-._".contains(&byte) => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    let escaped = |text: &str| text.bytes().map(escape).collect::<String>();
    let pairs = pairs.iter().map(|(name, value)| format!("{}={}", escaped(name), escaped(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Splits off the scheme; without one it is empty.
fn split_scheme(text: &str) -> Result<(&str, &str), Problem> {
    let is_of_scheme = |(index, byte): (usize, u8)| {
        byte.is_ascii_alphabetic() || index > 0 && (byte.is_ascii_digit() || b"+-.".contains(&byte))
    };
    let end = text.bytes().enumerate().position(|pair| !is_of_scheme(pair));
    match end {
        Some(0) if text.starts_with(':') => Err(Problem::NoScheme),
        Some(end) if text.as_bytes().get(end) == Some(&b':') => {
            Ok((&text[..end], &text[end + 1..]))
        }
        Some(_) | None => Ok(("", text)),
    }
}

fn unescape_host(host: &str) -> Result<Vec<u8>, Problem> {
    let check_port = |port: &str| match port.strip_prefix(':') {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Ok(()),
        None if port.is_empty() => Ok(()),
        Some(_) | None => Err(Problem::Port(port.to_owned())),
    };
    let Some(open) = host.rfind('[') else {
        check_port(host.find(':').map_or("", |colon| &host[colon..]))?;
        return Part::Host.unescape(host);
    };
    if open > 0 {
        return Err(Problem::IpLiteral);
    }
    let (name, port) = host[1..].rsplit_once(']').ok_or(Problem::OpenBracket)?;
    check_port(port)?;
    let (address, zone) = name.split_at(name.find("%25").unwrap_or(name.len()));
    let mut plain = Part::Host.unescape(address)?;
    let is_v6 =
        std::str::from_utf8(&plain).is_ok_and(|text| matches!(text.parse(), Ok(IpAddr::V6(_))));
    if !is_v6 {
        return Err(Problem::IpLiteral);
    }
    plain.extend(Part::Zone.unescape(zone)?);
    Ok([b"[", plain.as_slice(), b"]", port.as_bytes()].concat())
}

/// Resolves the path `reference` relative to `base` (RFC 3986, 5.2.4).
fn resolved(base: &str, reference: &str) -> String {
    let full = match reference {
        "" => base.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => {
            let end = base.rfind('/').map_or(0, |slash| slash + 1);
            format!("{}{path}", &base[..end])
        }
    };
    if full.is_empty() {
        return full;
    }
    let mut segments: Vec<&str> = Vec::new();
    for segment in full.strip_prefix('/').unwrap_or(&full).split('/') {
        match segment {
            "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    if full.ends_with("/.") || full.ends_with("/..") || full == "." || full == ".." {
        segments.push("");
    }
    format!("/{}", segments.join("/"))
}

#[cfg(test)]
mod tests;
