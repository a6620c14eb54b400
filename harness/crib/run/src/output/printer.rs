//! The only writer of standard output and standard error while pods run: a thread, because a terminal or pipe may block.
//!
//! Container lines, and JSON, go to standard output; everything else goes to standard error, where the live view is.

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
use crib_base::terminal_text::{plain, tame};
use harness::cri_log::Line;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::{OwnedSemaphorePermit, mpsc as tokio_mpsc, oneshot};

use crate::output::json;
use crate::output::label::Label;
use crate::output::lines;
use crate::output::screen::Screen;
use crate::output::view::{self, Frame};
use crate::reports::Reports;
use crate::shown::Shown;

/// How often the live view is drawn.
const FRAME: Duration = Duration::from_millis(100);

/// Something to print.
#[derive(Debug)]
pub(crate) enum Print {
    /// Lines of one container; the permit goes back when they are written.
    Logs {
        /// Whose they are.
        label: Arc<Label>,
        /// The lines.
        lines: Vec<Line>,
        /// Bounds how many lines wait.
        permit: OwnedSemaphorePermit,
    },
    /// A change of a pod or container.
    Transition(Transition),
    /// A container is ready, or no longer.
    Readiness(ReadinessChange),
    /// What a kubelet would record.
    Event(Event),
    /// The latest state of all pods.
    State(State),
    /// A sentence for the user.
    Note(String),
    /// The same, of what the live view shows too.
    Progress(String),
    /// How it ended, and what is to be said of pods that failed; nothing but notes follows.
    Result(Exit, State, Vec<JobResult>, Vec<String>),
    /// Everything before this is to be written; then the sender is dropped.
    Flush(oneshot::Sender<()>),
    /// What follows on standard error goes to this file; then the sender is dropped.
    ErrorsTo(File, oneshot::Sender<()>),
}

/// The pods of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// What the agent reported of all that there were.
    pub(crate) reports: Arc<Reports>,
    /// What is shown of them.
    pub(crate) shown: Shown,
}

/// How things are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    output: Output,
    quiet: bool,
    /// All events, and not only those that nothing else tells.
    events: bool,
    live: bool,
    colour_out: bool,
    colour_err: bool,
}

impl Style {
    /// The style for the options and for what the two outputs are.
    pub(crate) fn choose(output: Output, quiet: bool, events: bool) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let (out, err) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        Self { events, ..Self::of(output, quiet, out, err, dumb, no_color()) }
    }

    /// The style of a run in the background: lines on standard error, whatever that is, and none on standard output.
    pub(crate) fn of_background(quiet: bool, events: bool) -> Self {
        Self { events, ..Self::of(Output::Text, quiet, false, false, false, no_color()) }
    }

    fn shows(&self, event: &Event) -> bool {
        self.events || (!self.quiet && lines::is_told_by_event_alone(event))
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

/// The way to the printer. Never blocks.
#[derive(Clone, Debug)]
pub(crate) struct Printer {
    sender: mpsc::Sender<Print>,
}

impl Printer {
    /// Starts the printer for containers with these labels. `closed` is notified when the reader of standard output goes away.
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

    /// A way that ends in `sender`, for tests of those who print.
    #[cfg(test)]
    pub(crate) fn to(sender: mpsc::Sender<Print>) -> Self {
        Self { sender }
    }

    /// Prints it when its turn comes.
    pub(crate) fn print(&self, what: Print) {
        // The thread ends only when all senders are gone.
        let _ = self.sender.send(what);
    }

    /// Prints a sentence on standard error.
    pub(crate) fn note(&self, text: impl Into<String>) {
        self.print(Print::Note(text.into()));
    }

    /// Returns when everything handed in so far is written.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        self.print(Print::Flush(done));
        let _ = flushed.await;
    }

    /// Makes a file of standard error, and returns when everything handed in before is written to what it was. It is the printer
    /// who does it, so that no line begins in one and ends in the other.
    pub(crate) async fn errors_to(&self, file: File) {
        let (done, changed) = oneshot::channel();
        self.print(Print::ErrorsTo(file, done));
        let _ = changed.await;
    }
}

/// Notifies `closed` when the reader of standard output goes away, without a write.
fn wait_for_reader_to_leave(closed: &tokio_mpsc::UnboundedSender<()>) {
    let stdout = io::stdout();
    loop {
        // No event is asked for: errors and hang-ups are always told (poll(2)).
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
    /// Gone once standard output failed; then nothing is written to it any more.
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
            // Also between lines that come without a pause.
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
                // It fails only for descriptors that are not open.
                let _ = rustix::stdio::dup2_stderr(&file);
                drop(done);
            }
        }
    }

    /// Draws the live view anew: whole, because the terminal may have changed its size or shown what was typed.
    fn draw(&mut self) {
        let frame = self.frame(Some(self.tick));
        if let Some(live) = &mut self.live {
            let size = Screen::size();
            let picture = view::picture(&self.state.shown, &self.state.reports, frame, size);
            let picture: Vec<String> = picture.iter().map(|line| tame(line)).collect();
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

    /// Takes the live view away.
    fn end_live(&mut self) {
        self.clear();
        self.live = None;
    }

    /// Prints the state of all pods as plain lines.
    fn table(&mut self) {
        let State { reports, shown } = &self.state;
        for line in view::table(shown, reports, self.frame(None)) {
            self.styled_err(&tame(&line));
        }
    }

    fn out(&mut self, text: &str) {
        if self.closed.is_none() {
            return;
        }
        self.clear();
        let mut stdout = io::stdout().lock();
        // Output of containers in lines is tamed where their prefixes are put before them.
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

    /// Prints a line on standard error; ignores a closed one.
    fn err(&mut self, line: &str) {
        // Messages have words of containers and images in them.
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
        // What is asked for, what the box is, what follows from it.
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
