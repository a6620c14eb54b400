//! ◆ Decides the next action of a process that carries out a plan.

use std::time::Duration;

use crate::contract::plan::{ActPlan, OnTerm};

/// The next action of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Exit with this code.
    Exit(u8),
    /// Fork a child.
    Fork,
    /// Allocate this many more bytes, and write to them.
    Allocate(u64),
    /// Write the line with this number.
    Line(u64),
    /// Wait for a signal, at most this long; `None`: without limit.
    Wait(Option<Duration>),
}

/// The completed actions of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// The lines that it has written.
    pub(super) lines: u64,
    /// The bytes that it has allocated.
    pub(super) bytes: u64,
    /// The children that it has forked.
    pub(super) children: u32,
    /// When the first SIGTERM arrived.
    pub(super) term: Option<Duration>,
}

/// The most bytes that are allocated in one action.
const PIECE: u64 = 1 << 20;

/// The next action, `now` after the process's start: the earliest due one. So a delayed process skips none: it writes every line
/// that is due before its exit.
pub(super) fn next(plan: &ActPlan, done: &Progress, now: Duration) -> Next {
    let term = match (plan.term, done.term) {
        (OnTerm::End, Some(at)) => Some((at, Next::Exit(TERMINATED))),
        (OnTerm::Exit(exit), Some(at)) => Some((at + exit.after, Next::Exit(exit.code))),
        (OnTerm::Ignore, Some(_)) | (_, None) => None,
    };
    let exit = plan.exit.map(|exit| (exit.after, Next::Exit(exit.code)));
    let fork = plan
        .children
        .filter(|children| done.children < children.count)
        .map(|children| (children.after, Next::Fork));
    let line =
        plan.log.map(|log| (line_at(done.lines, log.per_second), Next::Line(done.lines + 1)));
    let memory = plan.memory.and_then(|memory| {
        let left = memory.bytes.map_or(PIECE, |bytes| bytes - done.bytes);
        (left > 0).then(|| (memory.after, Next::Allocate(left.min(PIECE))))
    });
    // Of simultaneous actions the first wins: an exit leaves no time for a line.
    let deeds = [term, exit, fork, line, memory];
    match deeds.into_iter().flatten().min_by_key(|(at, _)| *at) {
        Some((at, deed)) if at <= now => deed,
        Some((at, _)) => Next::Wait(Some(at - now)),
        None => Next::Wait(None),
    }
}

/// The exit code that a shell reports after SIGTERM.
const TERMINATED: u8 = 143;

/// When the line after `before` others is due.
fn line_at(before: u64, per_second: u32) -> Duration {
    let rate = u64::from(per_second.max(1));
    let nanos = (before % rate) * 1_000_000_000 / rate;
    Duration::from_secs(before / rate) + Duration::from_nanos(nanos)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;
    use crate::contract::plan::{ChildrenPlan, ExitPlan, LinesPlan, MemoryPlan};

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn exit(code: u8, millis: u64) -> ExitPlan {
        ExitPlan { code, after: ms(millis) }
    }

    /// Runs a plan on a clock that only moves when the process waits, with SIGTERM at `term`, until its exit or `end`. Returns
    /// the actions with their times; consecutive equal ones are counted.
    fn play(plan: &ActPlan, term: Option<u64>, end: u64) -> Vec<String> {
        let (mut now, mut done, mut deeds) = (ms(0), Progress::default(), Vec::new());
        loop {
            let said = match next(plan, &done, now) {
                Next::Wait(time) => {
                    let until = time.map_or(ms(end), |time| now + time);
                    let signal = term.map(ms).filter(|_| done.term.is_none());
                    match signal.filter(|at| *at <= until) {
                        Some(at) => {
                            now = at;
                            done.term = Some(at);
                        }
                        None => now = until,
                    }
                    if now >= ms(end) {
                        return deeds;
                    }
                    continue;
                }
                Next::Exit(code) => {
                    deeds.push(format!("{} exit {code}", now.as_millis()));
                    return deeds;
                }
                Next::Fork => {
                    done.children += 1;
                    "fork".to_owned()
                }
                Next::Line(number) => {
                    done.lines = number;
                    format!("line {number}")
                }
                Next::Allocate(bytes) => {
                    done.bytes += bytes;
                    format!("allocate {bytes}")
                }
            };
            deeds.push(format!("{} {said}", now.as_millis()));
        }
    }

    fn lines(per_second: u32) -> Option<LinesPlan> {
        Some(LinesPlan { per_second, stderr: false })
    }

    #[rstest]
    #[case::waits(ActPlan::default(), None, &[])]
    #[case::ends_on_term(ActPlan::default(), Some(700), &["700 exit 143"])]
    #[case::ignores_term(ActPlan { term: OnTerm::Ignore, ..ActPlan::default() }, Some(700), &[])]
    #[case::exits_on_term(ActPlan { term: OnTerm::Exit(exit(3, 200)), ..ActPlan::default() }, Some(700), &["900 exit 3"])]
    #[case::exits_before_it_exits_on_term(
        ActPlan { exit: Some(exit(1, 800)), term: OnTerm::Exit(exit(3, 200)), ..ActPlan::default() },
        Some(700),
        &["800 exit 1"]
    )]
    #[case::exits_at_once(ActPlan { exit: Some(exit(7, 0)), log: lines(5), ..ActPlan::default() }, None, &["0 exit 7"])]
    #[case::writes_lines_before_exit(
        ActPlan { exit: Some(exit(0, 1_000)), log: lines(3), ..ActPlan::default() },
        None,
        &["0 line 1", "333 line 2", "666 line 3", "1000 exit 0"]
    )]
    #[case::forks(
        ActPlan { children: Some(ChildrenPlan { count: 2, after: ms(100) }), ..ActPlan::default() },
        None,
        &["100 fork", "100 fork"]
    )]
    #[case::allocates_in_pieces(
        ActPlan { memory: Some(MemoryPlan { bytes: Some(PIECE + 5), after: ms(50) }), ..ActPlan::default() },
        None,
        &["50 allocate 1048576", "50 allocate 5"]
    )]
    fn plan_is_played(#[case] plan: ActPlan, #[case] term: Option<u64>, #[case] want: &[&str]) {
        assert_eq!(play(&plan, term, 10_000), want);
    }

    #[test]
    fn delayed_process_writes_every_line() {
        let plan = ActPlan { exit: Some(exit(0, 1_000)), log: lines(1_000), ..ActPlan::default() };
        let mut done = Progress::default();
        while let Next::Line(number) = next(&plan, &done, ms(5_000)) {
            done.lines = number;
        }
        assert_eq!(done.lines, 1_000);
        assert_eq!(next(&plan, &done, ms(5_000)), Next::Exit(0));
    }

    #[test]
    fn unlimited_memory_plan_never_stops_allocating() {
        let plan = ActPlan {
            memory: Some(MemoryPlan { bytes: None, after: ms(0) }),
            ..ActPlan::default()
        };
        let done = Progress { bytes: 1 << 50, ..Progress::default() };
        assert_eq!(next(&plan, &done, ms(1)), Next::Allocate(PIECE));
    }
}
