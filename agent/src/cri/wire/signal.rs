//! Conversion of stop signals between the CRI's names and Kubernetes' (`SIGRTMIN+1`).

use cri::v1::Signal;

/// The names that differ, and their parts.
const PARTS: [(&str, &str); 2] = [("SIGRTMINPLUS", "SIGRTMIN+"), ("SIGRTMAXMINUS", "SIGRTMAX-")];

/// A signal by its name in Kubernetes; the image's by any other.
pub(super) fn to_wire(name: &str) -> i32 {
    let name = PARTS
        .iter()
        .fold(name.to_owned(), |name, (of_cri, of_kubernetes)| name.replace(of_kubernetes, of_cri));
    Signal::from_str_name(&name).unwrap_or(Signal::RuntimeDefault).into()
}

/// The name of a signal in Kubernetes; `None` where the runtime does not report it.
pub(super) fn from_wire(signal: i32) -> Option<Box<str>> {
    let signal = Signal::try_from(signal).ok()?;
    if signal == Signal::RuntimeDefault {
        return None;
    }
    let name = signal.as_str_name().to_owned();
    let name = PARTS
        .iter()
        .fold(name, |name, (of_cri, of_kubernetes)| name.replace(of_cri, of_kubernetes));
    Some(name.into())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("SIGTERM", Signal::Sigterm)]
    #[case("SIGRTMIN", Signal::Sigrtmin)]
    #[case("SIGRTMIN+1", Signal::Sigrtminplus1)]
    #[case("SIGRTMAX-14", Signal::Sigrtmaxminus14)]
    fn signal_has_its_name_in_both_directions(#[case] name: &str, #[case] signal: Signal) {
        assert_eq!(to_wire(name), i32::from(signal));
        assert_eq!(from_wire(signal.into()).as_deref(), Some(name));
    }

    #[test]
    fn signal_of_image_has_no_name() {
        assert_eq!(to_wire(""), i32::from(Signal::RuntimeDefault));
        assert_eq!(from_wire(Signal::RuntimeDefault.into()), None);
        assert_eq!(from_wire(10_000), None);
    }
}
