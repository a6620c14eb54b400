//! The daemon's end of a keeper's connection: numbered calls, and news for the store.

use std::{
    collections::HashMap,
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::net as std_net,
    },
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::Interest,
    net::UnixStream,
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use super::{
    forward::ForwardPlan,
    frame::{MAX_FRAME, Receiver, encode, send},
    protocol::{Call, Event, Failure, FailureKind, Message, Outcome, Request, SOCKET},
};
use crate::{
    container::LOST_EXIT_CODE,
    launch::{ExecPlan, PodPlan},
};

/// How long a keeper may take for what it does at once. One that was stopped, or hangs in the kernel, never answers.
const ANSWER: Duration = Duration::from_secs(10);

/// An exec: its process, and what becomes of it.
pub(crate) struct RunningExec {
    pub(crate) pid: i32,
    pub(crate) ending: Arc<Ending>,
    /// The daemon's side of its terminal, if it has one.
    pub(crate) terminal: Option<OwnedFd>,
}

/// The end of an exec, for everybody who waits for it.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// The exit code, when it is known.
    code: OnceLock<i32>,
    /// Cancelled when it has ended, known or unknown how.
    pub(crate) over: CancellationToken,
}

impl Ending {
    /// Waits for it; 255 stands for an end that nobody saw.
    pub(crate) async fn code(&self) -> i32 {
        self.over.cancelled().await;
        self.code.get().copied().unwrap_or(LOST_EXIT_CODE)
    }
}

/// Who knows of an exec's end first. Dropping it without a word is the end, too.
struct Teller(Arc<Ending>);

impl Drop for Teller {
    fn drop(&mut self) {
        self.0.over.cancel();
    }
}

/// An answer, and the descriptors that came along.
type Answer = (Outcome, Vec<OwnedFd>);

#[derive(Default)]
struct Waiting {
    calls: HashMap<u64, oneshot::Sender<Result<Answer, Failure>>>,
    /// Execs that have been asked for, by the number of the call.
    asked: HashMap<u64, Teller>,
    /// Execs that run, by their process.
    execs: HashMap<i32, Teller>,
    gone: bool,
}

/// A keeper, as the daemon speaks to it. Clones speak to the same one.
#[derive(Clone)]
pub(crate) struct KeeperClient {
    outgoing: mpsc::UnboundedSender<(Vec<u8>, Vec<OwnedFd>)>,
    waiting: Arc<Mutex<Waiting>>,
    next: Arc<AtomicU64>,
}

/// What a keeper tells without being asked.
#[derive(Debug)]
pub(crate) enum Told {
    Event(Event),
    /// It has ended, or cannot be understood.
    Gone,
}

/// Connects to the socket of the keeper in `directory`, whatever the length of its path.
pub(crate) fn connect(directory: &Path) -> io::Result<std_net::UnixStream> {
    let handle = open_path(directory)?;
    std_net::UnixStream::connect(short_path(&handle))
}

/// Listens on the keeper's socket in `directory`, whatever the length of its path.
pub(crate) fn listen(directory: &Path) -> io::Result<std_net::UnixListener> {
    let handle = open_path(directory)?;
    std_net::UnixListener::bind(short_path(&handle))
}

fn open_path(directory: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    Ok(open(
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// A socket address has room for 107 bytes: the way through an open directory is always short enough.
fn short_path(directory: &OwnedFd) -> String {
    format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())
}

impl KeeperClient {
    /// Speaks over `stream`. News go to `told`, in the order in which the keeper sent them.
    pub(crate) fn start(
        stream: std_net::UnixStream,
        told: mpsc::UnboundedSender<Told>,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let stream = Arc::new(UnixStream::from_std(stream)?);
        let (outgoing, queue) = mpsc::unbounded_channel();
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        tokio::spawn(write(stream.clone(), queue));
        tokio::spawn(read(stream, waiting.clone(), told));
        Ok(Self {
            outgoing,
            waiting,
            next: Arc::new(AtomicU64::new(1)),
        })
    }

    /// Makes a call and waits for its answer.
    pub(crate) async fn call(&self, call: Call) -> Result<Outcome, Failure> {
        let (outcome, _) = self.call_with(call, Vec::new(), None).await?;
        Ok(outcome)
    }

    /// Makes a call that a keeper answers at once, and waits no longer than [`ANSWER`] for it.
    pub(crate) async fn call_soon(&self, call: Call) -> Result<Outcome, Failure> {
        let (outcome, _) = self.exchange(call, Vec::new()).await?;
        Ok(outcome)
    }

    /// [`Self::call_soon`] with descriptors either way.
    pub(crate) async fn exchange(
        &self,
        call: Call,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answer, Failure> {
        let answer = self.call_with(call, descriptors, None);
        tokio::time::timeout(ANSWER, answer)
            .await
            .unwrap_or_else(|_| Err(silent()))
    }

    /// Makes the pod's namespaces; `held` are kept open as long as it lives.
    pub(crate) async fn set_up(
        &self,
        plan: PodPlan,
        held: Vec<OwnedFd>,
    ) -> Result<Outcome, Failure> {
        let (outcome, _) = self
            .call_with(Call::Setup(Box::new(plan)), held, None)
            .await?;
        Ok(outcome)
    }

    /// Tells that the pod has its network; `sockets` are those that `forward` is about.
    pub(crate) async fn connected(
        &self,
        forward: Option<ForwardPlan>,
        sockets: Vec<OwnedFd>,
    ) -> Result<Outcome, Failure> {
        let (outcome, _) = self
            .call_with(Call::Connected { forward }, sockets, None)
            .await?;
        Ok(outcome)
    }

    /// Makes a call with descriptors to take along. `ended` is told of the end of the exec that the call begins.
    async fn call_with(
        &self,
        call: Call,
        descriptors: Vec<OwnedFd>,
        ended: Option<Teller>,
    ) -> Result<Answer, Failure> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let request = Request {
            number,
            descriptors: descriptors.len(),
            call,
        };
        let document = serde_json::to_vec(&request).map_err(|error| {
            Failure::new(
                FailureKind::System,
                format!("failed to write a request: {error}"),
            )
        })?;
        // A keeper would take it for nonsense and hang up, which would cost the whole pod.
        if document.len() > MAX_FRAME {
            return Err(Failure::new(
                FailureKind::Invalid,
                format!(
                    "the configuration is too long: {} bytes as JSON, of at most {MAX_FRAME}",
                    document.len()
                ),
            ));
        }
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = lock(&self.waiting);
            if waiting.gone {
                return Err(gone());
            }
            waiting.calls.insert(number, answer);
            if let Some(ended) = ended {
                waiting.asked.insert(number, ended);
            }
        }
        // A writer that has ended leaves the answer to the reader, which sees the same end.
        let _ = self.outgoing.send((encode(&document), descriptors));
        answered.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Runs a process in a container; `descriptors` become its stdin, stdout and stderr, unless it has a terminal.
    pub(crate) async fn exec(
        &self,
        container: &str,
        plan: ExecPlan,
        descriptors: Vec<OwnedFd>,
    ) -> Result<RunningExec, Failure> {
        let call = Call::Exec {
            container: container.to_owned(),
            plan: Box::new(plan),
        };
        let ending = Arc::new(Ending::default());
        let teller = Teller(ending.clone());
        let answer = self.call_with(call, descriptors, Some(teller));
        let (outcome, mut came) = tokio::time::timeout(ANSWER, answer)
            .await
            .unwrap_or_else(|_| Err(silent()))?;
        let Outcome::Exec { pid } = outcome else {
            return Err(unexpected(&outcome));
        };
        Ok(RunningExec {
            pid,
            ending,
            terminal: came.pop(),
        })
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn silent() -> Failure {
    let seconds = ANSWER.as_secs();
    Failure::new(
        FailureKind::Silent,
        format!(
            "the pod's keeper did not answer within {seconds} s: stop the pod sandbox, which ends it"
        ),
    )
}

fn gone() -> Failure {
    Failure::new(FailureKind::System, "the pod's keeper has ended")
}

/// The failure for an answer to another question.
pub(crate) fn unexpected(outcome: &Outcome) -> Failure {
    Failure::new(
        FailureKind::System,
        format!("the pod's keeper gave an unexpected answer: {outcome:?}"),
    )
}

async fn write(
    stream: Arc<UnixStream>,
    mut queue: mpsc::UnboundedReceiver<(Vec<u8>, Vec<OwnedFd>)>,
) {
    while let Some((bytes, descriptors)) = queue.recv().await {
        let mut rest = &bytes[..];
        let mut riding: Vec<_> = descriptors.iter().map(|d| d.as_fd()).collect();
        while !rest.is_empty() {
            match stream
                .async_io(Interest::WRITABLE, || send(&*stream, rest, &riding))
                .await
            {
                Ok(sent) => {
                    rest = &rest[sent..];
                    riding.clear();
                }
                // The reader sees the end too and tells.
                Err(_) => return,
            }
        }
    }
}

async fn read(
    stream: Arc<UnixStream>,
    waiting: Arc<Mutex<Waiting>>,
    told: mpsc::UnboundedSender<Told>,
) {
    let mut receiver = Receiver::default();
    while let Ok(1..) = stream
        .async_io(Interest::READABLE, || receiver.fill(&*stream))
        .await
    {
        if take(&mut receiver, &waiting, &told).is_err() {
            break;
        }
    }
    {
        let mut waiting = lock(&waiting);
        waiting.gone = true;
        waiting.calls.clear();
        waiting.asked.clear();
        waiting.execs.clear();
    }
    let _ = told.send(Told::Gone);
}

fn take(
    receiver: &mut Receiver,
    waiting: &Mutex<Waiting>,
    told: &mpsc::UnboundedSender<Told>,
) -> io::Result<()> {
    while let Some(document) = receiver.next()? {
        match serde_json::from_slice(&document)? {
            Message::Reply {
                number,
                descriptors,
                result,
            } => {
                let descriptors = receiver.take_descriptors(descriptors)?;
                let mut waiting = lock(waiting);
                // Here and now, so that its end, which may come right behind, finds it.
                if let (Some(ended), Ok(Outcome::Exec { pid })) =
                    (waiting.asked.remove(&number), &result)
                {
                    waiting.execs.insert(*pid, ended);
                }
                if let Some(answer) = waiting.calls.remove(&number) {
                    let _ = answer.send(result.map(|outcome| (outcome, descriptors)));
                }
            }
            Message::Event(Event::ExecExited { pid, code }) => {
                // One that never ran is nobody's: its process id may be the next one's.
                if let Some(teller) = lock(waiting).execs.remove(&pid) {
                    let _ = teller.0.code.set(code);
                }
            }
            Message::Event(event) => drop(told.send(Told::Event(event))),
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::launch::{Confinement, ProcessPlan, UserPlan};

    /// A client whose keeper answers its first requests with `messages`, numbers from 1 on.
    fn client(messages: &[Message]) -> (KeeperClient, std_net::UnixStream) {
        let (ours, keepers) = std_net::UnixStream::pair().unwrap();
        let (told, _) = mpsc::unbounded_channel();
        let client = KeeperClient::start(ours, told).unwrap();
        for message in messages {
            let frame = encode(&serde_json::to_vec(message).unwrap());
            io::Write::write_all(&mut &keepers, &frame).unwrap();
        }
        (client, keepers)
    }

    async fn exec(client: &KeeperClient) -> Result<RunningExec, Failure> {
        let process = ProcessPlan {
            argv: Vec::new(),
            env: Vec::new(),
            cwd: String::new(),
            user: UserPlan::default(),
            capabilities: Vec::new(),
            ambient: Vec::new(),
            no_new_privs: false,
            seccomp: None,
            confinement: Confinement::default(),
        };
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        client
            .exec(
                "c",
                ExecPlan {
                    process,
                    tty: false,
                },
                vec![null(), null(), null()],
            )
            .await
    }

    fn ended(code: i32) -> Message {
        Message::Event(Event::ExecExited { pid: 7, code })
    }

    /// The first process had the id that the second one gets, and never ran.
    #[tokio::test]
    async fn an_exec_that_failed_leaves_the_next_one_its_own_exit_code() {
        let refused = Failure::new(FailureKind::Invalid, "no such file");
        let failed = Message::Reply {
            number: 1,
            descriptors: 0,
            result: Err(refused),
        };
        let begun = Message::Reply {
            number: 2,
            descriptors: 0,
            result: Ok(Outcome::Exec { pid: 7 }),
        };
        // One thread: the calls are made before the reader has its first turn.
        let (client, _keeper) = client(&[failed, ended(128), begun, ended(3)]);
        let (first, second) = tokio::join!(exec(&client), exec(&client));
        assert_eq!(first.err().unwrap().kind, FailureKind::Invalid);
        assert_eq!(second.ok().unwrap().ending.code().await, 3);
    }

    #[tokio::test]
    async fn a_request_beyond_the_frame_limit_is_not_sent() {
        let (client, keeper) = client(&[]);
        let call = Call::Start {
            container: "x".repeat(MAX_FRAME),
        };
        let failure = client.call(call).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Invalid);
        keeper.set_nonblocking(true).unwrap();
        let nothing = io::Read::read(&mut &keeper, &mut [0u8; 1]).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
}
