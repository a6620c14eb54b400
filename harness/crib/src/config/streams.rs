//! ◆ The section `streams:`, and `--stream-address`.

use std::net::SocketAddr;

use runtime_fake::Streams;
use serde::Deserialize;

use super::values::Timeout;

/// `streams:`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StreamsSection {
    address: Option<Address>,
    idle_timeout: Option<Timeout>,
    creation_timeout: Option<Timeout>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Address(SocketAddr);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        stream_address(&text).map(Self)
    }
}

/// Where streams are served.
pub(crate) fn stream_address(text: &str) -> Result<SocketAddr, String> {
    let problem = |_| format!("invalid address {text:?}: expected ADDRESS:PORT, as in 127.0.0.1:0");
    text.parse().map_err(problem)
}

impl StreamsSection {
    pub(crate) fn apply(self, to: &mut Streams) {
        if let Some(Address(address)) = self.address {
            to.address = address;
        }
        if let Some(Timeout(idle)) = self.idle_timeout {
            to.idle = idle;
        }
        if let Some(Timeout(creation)) = self.creation_timeout {
            to.creation = creation;
        }
    }
}
