//! UDP: each client has a socket of its own towards the pod, so that answers find back, for as long as they talk.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{net::UdpSocket, time::Instant};

/// How long a client is remembered that says nothing and hears nothing, as connection tracking does with a dialogue.
const SILENCE: Duration = Duration::from_secs(120);
/// The most clients at once; of more than that the new ones are not heard. Each takes a descriptor.
const CLIENTS: usize = 512;
/// The longest datagram.
const LONGEST: usize = 65536;

type Clients = Arc<Mutex<HashMap<SocketAddr, Arc<Client>>>>;

struct Client {
    pod: UdpSocket,
    /// Milliseconds since the forwarder began.
    last: AtomicU64,
}

fn lock(clients: &Clients) -> MutexGuard<'_, HashMap<SocketAddr, Arc<Client>>> {
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Moves datagrams to the pod and back, for ever.
pub(crate) async fn forward(socket: UdpSocket, port: u16, targets: Vec<IpAddr>) {
    let (socket, began) = (Arc::new(socket), Instant::now());
    let clients = Clients::default();
    let mut buffer = vec![0; LONGEST];
    loop {
        // An error is news of an earlier answer that could not be delivered.
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let known = lock(&clients).get(&from).cloned();
        let client = match known {
            Some(client) => client,
            None => {
                if lock(&clients).len() >= CLIENTS {
                    continue;
                }
                let Some(client) = connect(&targets, port).await else {
                    continue;
                };
                let client = Arc::new(client);
                lock(&clients).insert(from, client.clone());
                let back = back(socket.clone(), client.clone(), from, began);
                let clients = clients.clone();
                tokio::spawn(async move {
                    back.await;
                    lock(&clients).remove(&from);
                });
                client
            }
        };
        client.touch(began);
        // One that the pod's system refuses is lost, as datagrams may be.
        let _ = client.pod.send(&buffer[..length]).await;
    }
}

async fn connect(targets: &[IpAddr], port: u16) -> Option<Client> {
    let target = *targets.first()?;
    let any: IpAddr = match target {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let pod = UdpSocket::bind((any, 0)).await.ok()?;
    pod.connect((target, port)).await.ok()?;
    Some(Client {
        pod,
        last: AtomicU64::new(0),
    })
}

/// Takes the pod's answers to a client until neither has spoken for a while.
async fn back(socket: Arc<UdpSocket>, client: Arc<Client>, to: SocketAddr, began: Instant) {
    let mut buffer = vec![0; LONGEST];
    loop {
        let silent_at = client.last(began) + SILENCE;
        match tokio::time::timeout_at(silent_at, client.pod.recv(&mut buffer)).await {
            Ok(Ok(length)) => {
                client.touch(began);
                let _ = socket.send_to(&buffer[..length], to).await;
            }
            // Nobody listened when something was sent; somebody may by the next time.
            Ok(Err(_)) => {}
            Err(_) if client.last(began) + SILENCE <= Instant::now() => return,
            Err(_) => {}
        }
    }
}

impl Client {
    fn touch(&self, began: Instant) {
        let now = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    fn last(&self, began: Instant) -> Instant {
        began + Duration::from_millis(self.last.load(Ordering::Relaxed))
    }
}
