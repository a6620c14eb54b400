//! The cost of probes: one per second and container, compared with the same operations without the agent.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::Failed;
use crate::node::Node;
use crate::usage::Usage;

/// The duration of the measurement.
const MEASURED: Duration = Duration::from_secs(30);
/// The time after which each container is ready and its probe runs.
const SETTLE_TIME: Duration = Duration::from_secs(5);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// The kinds of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    None,
    Exec,
    Tcp,
    Http,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::None, Self::Exec, Self::Tcp, Self::Http];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Exec => "exec",
            Self::Tcp => "tcpSocket",
            Self::Http => "httpGet",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The YAML field of a container.
    fn field(self, port: u16) -> String {
        let action = match self {
            Self::None => return String::new(),
            Self::Exec => "exec: {command: [\"true\"]}".to_owned(),
            Self::Tcp => format!("tcpSocket: {{port: {port}}}"),
            Self::Http => format!("httpGet: {{path: /, port: {port}}}"),
        };
        format!(", livenessProbe: {{periodSeconds: 1, {action}}}")
    }

    /// The same operation with blocking calls.
    fn by_hand(self, port: u16) -> io::Result<()> {
        match self {
            Self::None | Self::Exec => {}
            Self::Tcp => drop(TcpStream::connect(("127.0.0.1", port))?),
            Self::Http => {
                let mut stream = TcpStream::connect(("127.0.0.1", port))?;
                stream.write_all(REQUEST)?;
                stream.read_to_end(&mut Vec::new())?;
            }
        }
        Ok(())
    }
}

pub(crate) fn print_head(pods: usize) -> io::Result<()> {
    writeln!(
        io::stdout(),
        "\
A probe a second for each of {pods} containers, for {} s; by hand: the same done with calls that block
 probe     | % core  wakes/s   probes/s  us a probe  us by hand",
        MEASURED.as_secs()
    )
}

pub(crate) async fn measure(pods: usize, kind: Kind) -> Result<(), Failed> {
    let mut node = Node::start().await?;
    node.probe = kind.field(node.port);
    node.each(0..pods, Node::write)?;
    node.until_ready(pods).await?;
    tokio::time::sleep(SETTLE_TIME).await;
    let begun = node.used()?;
    tokio::time::sleep(MEASURED).await;
    let ended = node.used()?;

    let before = Usage::of_process()?;
    for _ in 0..pods {
        kind.by_hand(node.port)?;
    }
    let by_hand = (Usage::of_process()? - before).cpu;
    let a_second = if kind == Kind::None { 0 } else { pods };
    writeln!(
        io::stdout(),
        " {:9} | {:6.2} {:8.0} {a_second:10} {:11.1} {:11.1}",
        kind.name(),
        ended.share(&begun),
        ended.wakes(&begun),
        ended.share(&begun) * 1e4 / pods as f64,
        by_hand.as_secs_f64() * 1e6 / pods as f64,
    )?;
    Ok(())
}
