//! Signals by name: pure.

use super::Invalid;

/// A signal by name (`SIGTERM`, `TERM`, `SIGRTMIN+3`, `RTMINPLUS3`) or number.
pub(super) fn number(name: &str) -> Result<i32, Invalid> {
    /// The first real-time signal that programs may use, and the last (signal(7), glibc).
    const RTMIN: i32 = 34;
    const RTMAX: i32 = 64;
    let unknown = || Invalid(format!("unknown signal {name:?}"));
    let upper = name.to_ascii_uppercase();
    // The contract's names are SIGNAL_SIGTERM and so on.
    let plain = upper.strip_prefix("SIGNAL_").unwrap_or(&upper);
    let short = match plain.strip_prefix("SIG").unwrap_or(plain) {
        "CLD" => "CHLD",
        "POLL" => "IO",
        other => other,
    };
    let offset = |rest: &str, words: [&str; 2]| {
        words.iter().find_map(|w| rest.strip_prefix(w)).map_or(
            if rest.is_empty() {
                Ok(0)
            } else {
                Err(unknown())
            },
            |n| n.parse::<i32>().map_err(|_| unknown()),
        )
    };
    let number = if let Ok(number) = short.parse::<i32>() {
        number
    } else if let Some(rest) = short.strip_prefix("RTMIN") {
        RTMIN + offset(rest, ["+", "PLUS"])?
    } else if let Some(rest) = short.strip_prefix("RTMAX") {
        RTMAX - offset(rest, ["-", "MINUS"])?
    } else {
        format!("SIG{short}")
            .parse::<nix::sys::signal::Signal>()
            .map_err(|_| unknown())? as i32
    };
    if (1..=RTMAX).contains(&number) {
        Ok(number)
    } else {
        Err(unknown())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("SIGTERM", 15)]
    #[case("term", 15)]
    #[case("SIGNAL_SIGKILL", 9)]
    #[case("9", 9)]
    #[case("SIGRTMIN+3", 37)]
    #[case("SIGNAL_SIGRTMINPLUS3", 37)]
    #[case("RTMAX-1", 63)]
    #[case("SIGNAL_SIGRTMAX", 64)]
    #[case("SIGNAL_SIGCLD", 17)]
    #[case("SIGNAL_SIGPOLL", 29)]
    fn known(#[case] name: &str, #[case] expected: i32) {
        assert_eq!(number(name).unwrap(), expected);
    }

    #[rstest]
    #[case("")]
    #[case("SIGNOPE")]
    #[case("0")]
    #[case("65")]
    #[case("RTMIN+99")]
    #[case("RTMAX-99")]
    #[case("RTMIN+")]
    fn unknown(#[case] name: &str) {
        assert!(number(name).unwrap_err().0.contains(name));
    }
}
