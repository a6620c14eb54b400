//! ◆ Parsers of command-line values for which clap has none: durations, unix endpoints, listen addresses, output and log formats.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;

/// The longest path of a unix socket: `sun_path` has 108 bytes, including the final NUL (unix(7)).
pub const LONGEST_SOCKET_PATH: usize = 107;

/// The format of a command's standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The format of log lines on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// A unix socket as an endpoint: `unix:///path`, or the bare absolute path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixEndpoint(PathBuf);

impl UnixEndpoint {
    /// The endpoint of the socket at `path`, which must be absolute.
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl std::fmt::Display for UnixEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

impl FromStr for UnixEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("an empty endpoint: give a unix socket, unix:///path".to_owned());
        }
        let path = match text.split_once("://") {
            Some(("unix", path)) => path,
            Some((scheme, _)) => {
                return Err(format!(
                    "{scheme}:// is not supported: give a unix socket, unix:///path"
                ));
            }
            None => text,
        };
        if !path.starts_with('/') {
            return Err("the path must be absolute: unix:///path".to_owned());
        }
        Ok(Self(PathBuf::from(path)))
    }
}

/// Parses an address to listen on: `127.0.0.1:5000`, `[::1]:5000`, `localhost:5000`, or `:5000` for all addresses.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = text
        .rsplit_once(':')
        .ok_or_else(|| format!("no port in {text:?}: give an address such as 127.0.0.1:5000"))?;
    let port: u16 = port
        .parse()
        .map_err(|_| format!("invalid port {port:?}: expected a number from 0 to 65535"))?;
    if host.is_empty() {
        return Ok((Ipv4Addr::UNSPECIFIED, port).into());
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let found = (bare.unwrap_or(host), port).to_socket_addrs();
    let found = found.map_err(|error| format!("failed to look up the host {host}: {error}"))?;
    // Prefers IPv4 if a name such as localhost has addresses of both families: every client tries 127.0.0.1.
    let mut addresses: Vec<SocketAddr> = found.collect();
    compact::sort_by_key(&mut addresses, SocketAddr::is_ipv6);
    addresses.first().copied().ok_or_else(|| format!("the host {host} has no address"))
}

/// Parses a duration: a number of seconds (`90`, `1.5`), or a sequence of numbers with the units `ms`, `s`, `m`, `h` (`1m30s`).
pub fn duration(text: &str) -> Result<Duration, String> {
    let expected = || format!("invalid duration {text:?}: expected 90, 1.5s, 250ms, 1m30s or 2h");
    if text.is_empty() {
        return Err(expected());
    }
    let (mut total, mut rest) = (0.0_f64, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| expected())?;
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "" if digits == text.len() => 1.0,
            _ => return Err(expected()),
        };
        total += number * seconds;
        rest = tail;
    }
    let duration =
        Duration::try_from_secs_f64(total).map_err(|_| format!("{text:?} is too long"))?;
    if duration.is_zero() {
        return Err("must be greater than zero".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("90", 90_000)]
    #[case("1.5", 1_500)]
    #[case("250ms", 250)]
    #[case("1m30s", 90_000)]
    #[case("2h", 7_200_000)]
    #[case("0.5m", 30_000)]
    fn duration_parses_seconds_and_units(#[case] text: &str, #[case] millis: u64) {
        assert_eq!(duration(text), Ok(Duration::from_millis(millis)));
    }

    #[rstest]
    #[case("")]
    #[case("soon")]
    #[case("0")]
    #[case("-1")]
    #[case("1 s")]
    #[case("5d")]
    #[case("1m30")]
    #[case("s")]
    #[case("1..5s")]
    #[case("99999999999999999999999h")]
    fn duration_rejects_malformed_text(#[case] text: &str) {
        duration(text).unwrap_err();
    }

    #[rstest]
    #[case("unix:///run/crib.sock", Some("/run/crib.sock"))]
    #[case("/run/crib.sock", Some("/run/crib.sock"))]
    #[case("unix://run/crib.sock", None)]
    #[case("run/crib.sock", None)]
    #[case("tcp://127.0.0.1:1", None)]
    #[case("", None)]
    fn endpoint_accepts_unix_urls_and_absolute_paths(
        #[case] text: &str,
        #[case] path: Option<&str>,
    ) {
        let seen = text.parse::<UnixEndpoint>().ok().map(|endpoint| endpoint.0);
        assert_eq!(seen, path.map(PathBuf::from));
    }

    #[test]
    fn endpoint_round_trips_through_display() {
        let endpoint: UnixEndpoint = "unix:///a/b".parse().unwrap();
        assert_eq!(endpoint.to_string().parse::<UnixEndpoint>().unwrap(), endpoint);
    }
}
