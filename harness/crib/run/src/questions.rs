//! Serves `run.sock`: each connection is one question to the event loop, which alone knows the answer.

use std::io;
use std::path::Path;

use crib_base::run_socket::{self, Answer, Request};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

/// The longest request, in bytes.
const LONGEST: u64 = 64 << 10;

/// A request, and the way back.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) request: Request,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// Listens in the directory of a run, which no other user can look into.
pub(super) fn serve(run: &Path) -> io::Result<mpsc::UnboundedReceiver<Question>> {
    let listener = UnixListener::bind(run_socket::path(run))?;
    let (sender, questions) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let sender = sender.clone();
                    tokio::spawn(async move {
                        if let Err(error) = answer(stream, &sender).await {
                            tracing::warn!(%error, "failed to answer a question about the run");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection to run.sock");
                    // No more descriptors, for one. The socket is ready at once again.
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
            }
        }
    });
    Ok(questions)
}

async fn answer(
    mut stream: UnixStream,
    questions: &mpsc::UnboundedSender<Question>,
) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut line = String::new();
    BufReader::new(read.take(LONGEST)).read_line(&mut line).await?;
    let request: Request = serde_json::from_str(&line)?;
    let (answer, answered) = oneshot::channel();
    let question = Question { request, answer };
    // Without an answer the run is ending, and so is this connection.
    if questions.send(question).is_err() {
        return Ok(());
    }
    let Ok(answer) = answered.await else {
        return Ok(());
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    write.write_all(&line).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crib_base::run_socket::{PodAnswer, RunConnection};

    fn ask(run: &Path, request: Request) -> tokio::task::JoinHandle<Option<Answer>> {
        let run = run.to_owned();
        tokio::task::spawn_blocking(move || {
            let mut connection = RunConnection::open(&run).unwrap()?;
            connection.ask(request).unwrap()
        })
    }

    #[tokio::test]
    async fn questions_are_answered_until_the_loop_ends() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(ask(run.path(), Request::Pods).await.unwrap(), None);
        let mut questions = serve(run.path()).unwrap();
        for request in [Request::Pods, Request::End] {
            let asked = ask(run.path(), request.clone());
            let question = questions.recv().await.unwrap();
            assert_eq!(question.request, request);
            let answer = Answer { pods: vec![PodAnswer::default()], ..Answer::default() };
            question.answer.send(answer.clone()).unwrap();
            assert_eq!(asked.await.unwrap(), Some(answer));
        }
        drop(questions);
        assert_eq!(ask(run.path(), Request::Pods).await.unwrap(), None);
    }

    #[tokio::test]
    async fn invalid_requests_are_dropped() {
        let run = tempfile::tempdir().unwrap();
        let mut questions = serve(run.path()).unwrap();
        for text in ["{}\n", "", "\"dance\"\n", &"x".repeat(100_000)] {
            let mut stream = UnixStream::connect(run_socket::path(run.path())).await.unwrap();
            // The other end may have closed already.
            let _ = stream.write_all(text.as_bytes()).await;
            let _ = stream.shutdown().await;
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            assert_eq!(rest, b"", "{text}");
        }
        assert!(questions.try_recv().is_err());
    }
}
