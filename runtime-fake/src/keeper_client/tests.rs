//! The client with a keeper simulated by the test.
#![allow(clippy::unwrap_used)]

use std::{
    fs::File,
    time::{Duration, Instant},
};

use keeper::contract::frame::{MAX_FRAME, Outgoing, Receiver};
use keeper::contract::plan::{Confinement, ProcessPlan, UserPlan};
use keeper::contract::protocol::{Message, Request};

use crate::keeper_client::*;

/// Longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(60);
/// A deadline that passes during the test.
const SHORT: Duration = Duration::from_millis(20);

/// A client whose keeper answers its first requests with `messages`, numbered from 1.
fn client(messages: &[Message]) -> (KeeperClient, std_net::UnixStream) {
    let (ours, keepers) = std_net::UnixStream::pair().unwrap();
    let (notify, _) = mpsc::unbounded_channel();
    let client = KeeperClient::start(ours, notify, Deadlines::all(LONG)).unwrap();
    for message in messages {
        say(&keepers, message);
    }
    (client, keepers)
}

/// A client with deadlines of `limit`, its keeper's end, and its notifications.
fn pair(
    limit: Duration,
) -> (KeeperClient, std_net::UnixStream, mpsc::UnboundedReceiver<Notification>) {
    let (ours, keepers) = std_net::UnixStream::pair().unwrap();
    let (notify, notifications) = mpsc::unbounded_channel();
    let client = KeeperClient::start(ours, notify, Deadlines::all(limit)).unwrap();
    (client, keepers, notifications)
}

fn say(keepers: &std_net::UnixStream, message: &Message) {
    let document = serde_json::to_vec(message).unwrap();
    let mut frame = Outgoing::<OwnedFd>::new(document, Vec::new()).unwrap();
    while !frame.send(keepers).unwrap() {}
}

/// Receives the next request, with its descriptors.
async fn hear(
    keepers: &std_net::UnixStream,
    receiver: Receiver,
) -> (Request, Vec<OwnedFd>, Receiver) {
    let (keepers, mut receiver) = (keepers.try_clone().unwrap(), receiver);
    tokio::task::spawn_blocking(move || {
        loop {
            if let Some(document) = receiver.next_document().unwrap() {
                let request: Request = serde_json::from_slice(&document).unwrap();
                let descriptors = receiver.take_descriptors(request.descriptors).unwrap();
                return (request, descriptors, receiver);
            }
            assert_ne!(receiver.fill(&keepers).unwrap(), 0);
        }
    })
    .await
    .unwrap()
}

fn reply(number: u64, outcome: Outcome) -> Message {
    Message::Reply { number, descriptors: 0, result: Ok(outcome) }
}

async fn exec(client: &KeeperClient) -> Result<RunningExec, Failure> {
    let process = ProcessPlan {
        args: Vec::new(),
        env: Vec::new(),
        cwd: String::new(),
        user: UserPlan::default(),
        capabilities: Vec::new(),
        ambient: Vec::new(),
        no_new_privileges: false,
        seccomp: None,
        confinement: Confinement::default(),
        act: None,
    };
    let null = || OwnedFd::from(File::open("/dev/null").unwrap());
    client
        .exec(
            "c",
            ExecPlan { process, user: keeper::contract::plan::UserIds::default(), terminal: false },
            vec![null(), null(), null()],
        )
        .await
}

fn ended(code: i32) -> Message {
    Message::Event(Event::ExecExited { pid: 7, code })
}

/// The first process, which never ran, had the process id that the second one gets.
#[tokio::test]
async fn exec_after_failed_exec_gets_its_own_exit_code() {
    let refused = Failure::new(FailureKind::Invalid, "no such file");
    let failed = Message::Reply { number: 1, descriptors: 0, result: Err(refused) };
    let begun = Message::Reply { number: 2, descriptors: 0, result: Ok(Outcome::Exec { pid: 7 }) };
    // On one thread the calls are made before the reader first runs.
    let (client, _keeper) = client(&[failed, ended(128), begun, ended(3)]);
    let (first, second) = tokio::join!(exec(&client), exec(&client));
    assert_eq!(first.err().unwrap().kind, FailureKind::Invalid);
    assert_eq!(second.ok().unwrap().exit.code().await, 3);
}

#[tokio::test]
async fn request_over_frame_limit_is_not_sent() {
    let (client, keeper) = client(&[]);
    let call = Call::Start { container: "x".repeat(MAX_FRAME), restored: false };
    let failure = client.call(call).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Invalid);
    keeper.set_nonblocking(true).unwrap();
    let nothing = io::Read::read(&mut &keeper, &mut [0u8; 1]).unwrap_err();
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn call_carries_more_descriptors_than_one_message() {
    let (client, keepers, _news) = pair(LONG);
    let sockets: Vec<OwnedFd> = (0..600).map(|_| File::open("/dev/null").unwrap().into()).collect();
    let call = tokio::spawn(async move { client.connected(None, sockets).await });
    let (request, descriptors, _) = hear(&keepers, Receiver::default()).await;
    assert_eq!(descriptors.len(), 600);
    say(&keepers, &reply(request.number, Outcome::Done));
    assert!(matches!(call.await.unwrap(), Ok(Outcome::Done)));
}

#[tokio::test]
async fn every_call_fails_once_the_connection_has_failed() {
    let (client, keepers, mut notifications) = pair(LONG);
    let pending = tokio::spawn({
        let client = client.clone();
        async move { client.call(Call::State).await }
    });
    let (_, _, _) = hear(&keepers, Receiver::default()).await;
    // A reader alone does not notice a failed write, and a writer alone does not notice this.
    keepers.shutdown(std::net::Shutdown::Write).unwrap();
    let failure = pending.await.unwrap().unwrap_err();
    assert_eq!(failure.kind, FailureKind::Disconnected);
    assert!(matches!(notifications.recv().await, Some(Notification::Disconnected(_))));
    let failure = client.call(Call::State).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Disconnected);
}

#[tokio::test]
async fn every_call_fails_when_the_writer_fails() {
    let (client, keepers, mut notifications) = pair(LONG);
    // The other end could still write, so a reader notices nothing.
    keepers.shutdown(std::net::Shutdown::Read).unwrap();
    let failure = client.call(Call::State).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Disconnected);
    assert!(matches!(notifications.recv().await, Some(Notification::Disconnected(_))));
}

#[tokio::test]
async fn call_fails_at_its_deadline_and_others_go_on() {
    let (client, keepers, _news) = pair(SHORT);
    let failure = client.call(Call::State).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Silent);
    let (_, _, receiver) = hear(&keepers, Receiver::default()).await;
    let (other, others, _told) = pair(LONG);
    let began = Instant::now();
    let call = tokio::spawn(async move { other.call(Call::State).await });
    let (request, ..) = hear(&others, Receiver::default()).await;
    say(&others, &reply(request.number, Outcome::Done));
    assert!(call.await.unwrap().is_ok());
    assert!(began.elapsed() < LONG);
    drop(receiver);
}

/// The caller got an error, so the effects of the call must be undone.
#[tokio::test]
async fn late_answers_are_undone() {
    let (client, keepers, mut notifications) = pair(SHORT);
    let start = Call::Start { container: "c".to_owned(), restored: false };
    assert!(client.call(start).await.is_err());
    assert!(exec(&client).await.is_err());
    let (started, _, receiver) = hear(&keepers, Receiver::default()).await;
    let (run, _, receiver) = hear(&keepers, receiver).await;
    let at = jiff::Timestamp::UNIX_EPOCH;
    let outcome = Outcome::Started { at, pid: None };
    say(&keepers, &reply(started.number, outcome));
    say(&keepers, &reply(run.number, Outcome::Exec { pid: 7 }));
    let (undone, ..) = hear(&keepers, receiver).await;
    assert!(matches!(undone.call, Call::KillExec { pid: 7 }));
    let told = notifications.recv().await;
    assert!(
        matches!(told, Some(Notification::Started { container, .. }) if container.as_str() == "c")
    );
}

/// A keeper that does not read fills its socket: a queued call is dropped when its caller has given up.
#[tokio::test]
async fn calls_given_up_in_the_queue_are_never_sent() {
    let (client, keepers, _news) = pair(SHORT);
    let long = Call::Start { container: "x".repeat(1 << 20), restored: false };
    for call in [long, Call::Sockets, Call::Sockets] {
        assert!(client.call(call).await.is_err());
    }
    let (first, _, receiver) = hear(&keepers, Receiver::default()).await;
    assert!(matches!(first.call, Call::Start { .. }));
    let state = tokio::spawn(async move { client.call(Call::State).await });
    let (second, ..) = hear(&keepers, receiver).await;
    assert!(matches!(second.call, Call::State), "{:?}", second.call);
    drop(state);
}
