//! ◆ Times in kubectl's format. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// A time in the format of RFC 1123, in UTC.
pub(super) fn time(time: &Time) -> String {
    time.0.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_in_utc() {
        let at = Time("2026-01-02T03:04:05.6Z".parse().unwrap());
        assert_eq!(time(&at), "Fri, 02 Jan 2026 03:04:05 +0000");
    }
}
