//! The printer thread, the only writer of standard output and standard error while pods run: a terminal or pipe may block.
//!
//! Container lines and JSON go to standard output; everything else, including the live view, goes to standard error.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use agent::clock::{Clock as _, SystemClock};
use agent::{Event, ReadinessChange, Transition};
use cluster::controllers::JobResult;
use crib_base::args::Output;
use crib_base::exit::Exit;
use crib_base::logging::no_color;
use crib_base::terminal_text::{escape_keeping_colours, plain};
use harness::cri_log::Line;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::{OwnedSemaphorePermit, mpsc as tokio_mpsc, oneshot};

use crate::output::json;
use crate::output::label::Label;
use crate::output::lines;
use crate::output::screen::Screen;
use crate::output::view::{self, Frame};
use crate::reports::Reports;
use crate::snapshot::RunSnapshot;

/// The interval at which the live view is drawn.
const FRAME: Duration = Duration::from_millis(100);

/// An item to print.
#[derive(Debug)]
pub(crate) enum Print {
    /// Lines of one container; the permit is released when they are written.
    Logs {
        /// The container.
        label: Arc<Label>,
        /// The lines.
        lines: Vec<Line>,
        /// Limits the number of queued lines.
        permit: OwnedSemaphorePermit,
    },
    /// A change of a pod or container.
    Transition(Transition),
    /// A container became ready or unready.
    Readiness(ReadinessChange),
    /// An event that a kubelet would record.
    Event(Event),
    /// The latest state of all pods.
    State(State),
    /// A message for the user.
    Note(String),
    /// A message that the live view makes redundant.
    Progress(String),
    /// The result of the run, and the messages about failed pods; only notes may follow.
    Result(Exit, State, Vec<JobResult>, Vec<String>),
    /// Drops the sender when all earlier items are written.
    Flush(oneshot::Sender<()>),
    /// Redirects standard error to this file, then drops the sender.
    ErrorsTo(File, oneshot::Sender<()>),
}

/// The pods of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// The agent's reports of all pods.
    pub(crate) reports: Arc<Reports>,
    /// The view of the pods.
    pub(crate) snapshot: RunSnapshot,
}

/// The style of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    output: Output,
    quiet: bool,
    /// Whether all events are printed, and not only those whose information no other line contains.
    events: bool,
    live: bool,
    colour_out: bool,
    colour_err: bool,
}

impl Style {
    /// The style for the options and the types of the two outputs.
    pub(crate) fn choose(output: Output, quiet: bool, events: bool) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let (out, err) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        Self { events, ..Self::of(output, quiet, out, err, dumb, no_color()) }
    }

    /// The style of a background run: lines on standard error, even on a terminal, and nothing on standard output.
    pub(crate) fn of_background(quiet: bool, events: bool) -> Self {
        Self { events, ..Self::of(Output::Text, quiet, false, false, false, no_color()) }
    }

    fn shows(&self, event: &Event) -> bool {
        self.events || (!self.quiet && lines::is_only_event(event))
    }

    fn of(output: Output, quiet: bool, out: bool, err: bool, dumb: bool, no_color: bool) -> Self {
        let plain = dumb || no_color;
        Self {
            output,
            quiet,
            events: false,
            live: err && !dumb && !quiet && output == Output::Text,
            colour_out: out && !plain && output == Output::Text,
            colour_err: err && !plain,
        }
    }
}

/// A handle for sending items to the printer. Never blocks.
#[derive(Clone, Debug)]
pub(crate) struct Printer {
    sender: mpsc::Sender<Print>,
}

impl Printer {
    /// Starts the printer for containers with these labels. Notifies `closed` when the reader closes standard output.
    pub(crate) fn start(
        style: Style,
        labels: &[Label],
        started: Instant,
        closed: tokio_mpsc::UnboundedSender<()>,
    ) -> Self {
        let (sender, inbox) = mpsc::channel();
        let prefixes = lines::Prefixes::new(labels, style.colour_out, io::stdout().is_terminal());
        let gone = closed.clone();
        std::thread::spawn(move || wait_for_reader_to_leave(&gone));
        std::thread::spawn(move || {
            let live = style.live.then(Screen::default);
            let state = State::default();
            Thread {
                style,
                prefixes,
                started,
                closed: Some(closed),
                live,
                drawn: started,
                state,
                tick: 0,
            }
            .run(&inbox);
        });
        Self { sender }
    }

    /// A printer that sends to `sender`, for tests.
    #[cfg(test)]
    pub(crate) fn to(sender: mpsc::Sender<Print>) -> Self {
        Self { sender }
    }

    /// Queues an item.
    pub(crate) fn print(&self, what: Print) {
        // The thread ends only when all senders are dropped.
        let _ = self.sender.send(what);
    }

    /// Prints a message on standard error.
    pub(crate) fn note(&self, text: impl Into<String>) {
        self.print(Print::Note(text.into()));
    }

    /// Returns when all earlier items are written.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        self.print(Print::Flush(done));
        let _ = flushed.await;
    }

    /// Redirects standard error to a file; returns when all earlier items are written to the old standard error. The printer
    /// redirects it, so that no line is split between the two.
    pub(crate) async fn errors_to(&self, file: File) {
        let (done, changed) = oneshot::channel();
        self.print(Print::ErrorsTo(file, done));
        let _ = changed.await;
    }
}

/// Notifies `closed` when the reader closes standard output, even if nothing is written.
fn wait_for_reader_to_leave(closed: &tokio_mpsc::UnboundedSender<()>) {
    let stdout = io::stdout();
    loop {
        // poll reports errors and hang-ups even if no events are requested (poll(2)).
        let mut descriptors = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        match poll(&mut descriptors, PollTimeout::NONE) {
            Ok(_) => break,
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return,
        }
    }
    let _ = closed.send(());
}

struct Thread {
    style: Style,
    prefixes: lines::Prefixes,
    started: Instant,
    /// `None` after a write to standard output failed; nothing is written to it afterwards.
    closed: Option<tokio_mpsc::UnboundedSender<()>>,
    live: Option<Screen>,
    drawn: Instant,
    state: State,
    tick: usize,
}

impl Thread {
    fn run(mut self, inbox: &mpsc::Receiver<Print>) {
        loop {
            let next = match self.live {
                Some(_) => inbox.recv_timeout(FRAME.saturating_sub(self.drawn.elapsed())),
                None => inbox.recv().map_err(RecvTimeoutError::from),
            };
            match next {
                Ok(what) => self.print(what),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.end_live(),
            }
            // The view is also drawn while lines arrive without a pause.
            if self.live.is_some() && self.drawn.elapsed() >= FRAME {
                self.tick = self.tick.wrapping_add(1);
                self.draw();
            }
        }
    }

    fn print(&mut self, what: Print) {
        match what {
            Print::Logs { label, lines, permit } => {
                let one = |line| match self.style.output {
                    Output::Text => self.prefixes.line(&label, line),
                    Output::Json => json::log(&label, line),
                };
                let text: String = lines.iter().map(one).collect();
                self.out(&text);
                drop(permit);
            }
            Print::Transition(transition) => match self.style.output {
                Output::Json => self.out(&json::transition(&transition)),
                Output::Text if self.style.quiet || self.style.live => {}
                Output::Text if lines::is_unremarkable(&transition) => {}
                Output::Text => self.err(&lines::transition(&transition)),
            },
            Print::Readiness(change) => {
                if self.style.output == Output::Json {
                    self.out(&json::readiness(&change));
                }
            }
            Print::Event(event) => match self.style.output {
                Output::Json => self.out(&json::event(&event)),
                Output::Text if self.style.shows(&event) => self.err(&lines::event(&event)),
                Output::Text => {}
            },
            Print::State(state) => self.state = state,
            Print::Note(text) => self.err(&format!("crib: {text}")),
            Print::Progress(text) => {
                if !self.style.live && !self.style.quiet {
                    self.err(&format!("crib: {text}"));
                }
            }
            Print::Result(exit, state, jobs, failures) => {
                self.state = state;
                self.end_live();
                match self.style.output {
                    Output::Json => self.out(&json::result(exit, &self.state.reports, &jobs)),
                    Output::Text if self.style.quiet => {}
                    Output::Text => self.table(),
                }
                for line in failures {
                    self.err(&format!("crib: {line}"));
                }
            }
            Print::Flush(done) => drop(done),
            Print::ErrorsTo(file, done) => {
                // dup2 fails only for descriptors that are not open.
                let _ = rustix::stdio::dup2_stderr(&file);
                drop(done);
            }
        }
    }

    /// Redraws the whole live view, because the terminal's size may have changed, or typed characters may have been echoed.
    fn draw(&mut self) {
        let frame = self.frame(Some(self.tick));
        if let Some(live) = &mut self.live {
            let size = Screen::size();
            let picture = view::picture(&self.state.snapshot, &self.state.reports, frame, size);
            let picture: Vec<String> =
                picture.iter().map(|line| escape_keeping_colours(line)).collect();
            live.draw(&picture, size);
            self.drawn = Instant::now();
        }
    }

    fn frame(&self, tick: Option<usize>) -> Frame {
        let (elapsed, now) = (self.started.elapsed(), SystemClock.now());
        Frame { elapsed, now, tick, colour: self.style.colour_err }
    }

    /// Removes the live view until it is drawn again.
    fn clear(&mut self) {
        if let Some(live) = &mut self.live {
            live.clear();
        }
    }

    /// Removes the live view for good.
    fn end_live(&mut self) {
        self.clear();
        self.live = None;
    }

    /// Prints the state of all pods as plain lines.
    fn table(&mut self) {
        let State { reports, snapshot } = &self.state;
        for line in view::table(snapshot, reports, self.frame(None)) {
            self.styled_err(&escape_keeping_colours(&line));
        }
    }

    fn out(&mut self, text: &str) {
        if self.closed.is_none() {
            return;
        }
        self.clear();
        let mut stdout = io::stdout().lock();
        // Text lines of containers are escaped when their prefixes are added.
        let text = match self.style.output == Output::Json && stdout.is_terminal() {
            true => Cow::Owned(plain(text)),
            false => Cow::Borrowed(text),
        };
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        drop(stdout);
        if let Err(error) = written {
            if let Some(closed) = self.closed.take() {
                let _ = closed.send(());
            }
            if error.kind() != ErrorKind::BrokenPipe {
                self.err(&format!("crib: failed to write to standard output: {error}"));
            }
        }
    }

    /// Prints a line on standard error; ignores a closed standard error.
    fn err(&mut self, line: &str) {
        // Messages contain text from containers and images.
        self.styled_err(&plain(line));
    }

    fn styled_err(&mut self, line: &str) {
        self.clear();
        let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_follows_flags_terminal_and_no_color() {
        use Output::{Json, Text};
        // Options, environment, and expected style.
        let table = [
            // output, quiet | terminals: stdout, stderr | TERM=dumb, NO_COLOR | live, colours on stdout, stderr
            ((Text, false), (true, true), (false, false), (true, true, true)),
            ((Text, false), (false, true), (false, false), (true, false, true)),
            ((Text, false), (true, false), (false, false), (false, true, false)),
            ((Text, false), (true, true), (false, true), (true, false, false)),
            ((Text, false), (true, true), (true, false), (false, false, false)),
            ((Text, true), (true, true), (false, false), (false, true, true)),
            ((Json, false), (true, true), (false, false), (false, false, true)),
            ((Text, false), (false, false), (false, false), (false, false, false)),
        ];
        for ((output, quiet), (out, err), (dumb, no_color), (live, colour_out, colour_err)) in table
        {
            let style = Style::of(output, quiet, out, err, dumb, no_color);
            assert_eq!(style, Style { output, quiet, events: false, live, colour_out, colour_err });
        }
    }
}
