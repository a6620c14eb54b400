//! Converts signals between names and numbers.

use std::{collections::BTreeMap, sync::LazyLock};

use cri::v1::Signal;

use super::Invalid;

/// Parses a signal by name (`SIGTERM`, `TERM`, `SIGRTMIN+3`, `RTMINPLUS3`) or number.
pub(super) fn number(name: &str) -> Result<i32, Invalid> {
    /// The first and the last real-time signal for programs (signal(7), glibc).
    const RTMIN: i32 = 34;
    const RTMAX: i32 = 64;
    let unknown = || Invalid(format!("unknown signal {name:?}"));
    let upper = name.to_ascii_uppercase();
    let short = match upper.strip_prefix("SIG").unwrap_or(&upper) {
        "CLD" => "CHLD",
        "POLL" => "IO",
        "IOT" => "ABRT",
        other => other,
    };
    let offset = |rest: &str, words: [&str; 2]| {
        words
            .iter()
            .find_map(|w| rest.strip_prefix(w))
            .map_or(if rest.is_empty() { Ok(0) } else { Err(unknown()) }, |n| {
                n.parse::<i32>().map_err(|_| unknown())
            })
    };
    let number = if let Ok(number) = short.parse::<i32>() {
        number
    } else if let Some(rest) = short.strip_prefix("RTMIN") {
        RTMIN + offset(rest, ["+", "PLUS"])?
    } else if let Some(rest) = short.strip_prefix("RTMAX") {
        RTMAX - offset(rest, ["-", "MINUS"])?
    } else {
        format!("SIG{short}").parse::<nix::sys::signal::Signal>().map_err(|_| unknown())? as i32
    };
    if (1..=RTMAX).contains(&number) { Ok(number) } else { Err(unknown()) }
}

/// The CRI's signal for a number; of two names, such as SIGCHLD and SIGCLD, the usual one.
pub(crate) fn signal_of(number: i32) -> Signal {
    static BY_NUMBER: LazyLock<BTreeMap<i32, Signal>> = LazyLock::new(|| {
        let all = (1..).map_while(|value| Signal::try_from(value).ok());
        // SIGCLD, SIGPOLL and SIGIOT are aliases: insert them first, so that the usual names replace them.
        let (aliases, usual): (Vec<_>, Vec<_>) = all.partition(|signal| {
            matches!(signal, Signal::Sigcld | Signal::Sigpoll | Signal::Sigiot)
        });
        let numbered = |signal: Signal| Some((self::number(signal.as_str_name()).ok()?, signal));
        aliases.into_iter().chain(usual).filter_map(numbered).collect()
    });
    let known = BY_NUMBER.get(&number).copied();
    known.unwrap_or(Signal::RuntimeDefault)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(15, Signal::Sigterm)]
    #[case(10, Signal::Sigusr1)]
    #[case(17, Signal::Sigchld)]
    #[case(29, Signal::Sigio)]
    #[case(37, Signal::Sigrtminplus3)]
    #[case(34, Signal::Sigrtmin)]
    #[case(64, Signal::Sigrtmax)]
    #[case::of_no_name(33, Signal::RuntimeDefault)]
    fn signal_numbers_map_to_cri_names(#[case] number: i32, #[case] expected: Signal) {
        assert_eq!(signal_of(number), expected);
    }

    #[rstest]
    #[case("SIGTERM", 15)]
    #[case("term", 15)]
    #[case("SIGKILL", 9)]
    #[case("9", 9)]
    #[case("SIGRTMIN+3", 37)]
    #[case("SIGRTMINPLUS3", 37)]
    #[case("RTMAX-1", 63)]
    #[case("SIGRTMAX", 64)]
    #[case("SIGCLD", 17)]
    #[case("SIGPOLL", 29)]
    fn signal_names_map_to_numbers(#[case] name: &str, #[case] expected: i32) {
        assert_eq!(number(name).unwrap(), expected);
    }

    #[test]
    fn every_cri_signal_has_a_number() {
        let all: Vec<Signal> = (1..).map_while(|v| Signal::try_from(v).ok()).collect();
        assert!(all.len() > 60, "{}", all.len());
        for signal in all {
            let number = number(signal.as_str_name()).unwrap();
            assert_ne!(signal_of(number), Signal::RuntimeDefault, "{signal:?}");
        }
    }

    #[rstest]
    #[case("")]
    #[case("SIGNOPE")]
    #[case("0")]
    #[case("65")]
    #[case("RTMIN+99")]
    #[case("RTMAX-99")]
    #[case("RTMIN+")]
    fn unknown_signal_is_refused(#[case] name: &str) {
        assert!(number(name).unwrap_err().0.contains(name));
    }
}
