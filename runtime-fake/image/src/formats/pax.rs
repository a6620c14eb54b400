//! ◆ PAX extended headers (POSIX.1-2017, pax): records that override fields of a tar header.

use crate::error::ContentError;
use crate::formats::sparse::SparseHeaders;

/// The extensions for the next member.
#[derive(Default)]
pub(crate) struct Extensions {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u64>,
    pub(crate) gid: Option<u64>,
    pub(crate) mtime: Option<(i64, u32)>,
    pub(crate) xattrs: Vec<(String, Vec<u8>)>,
    pub(crate) sparse: SparseHeaders,
    pub(crate) any: bool,
}

impl Extensions {
    /// PAX records: `<length> <key>=<value>\n`, where the length counts the whole record.
    pub(crate) fn read(&mut self, mut records: &[u8], at: u64) -> Result<(), ContentError> {
        let broken = || ContentError::Header { at, why: "a broken PAX record" };
        while !records.is_empty() {
            let space = records.iter().position(|b| *b == b' ').ok_or_else(broken)?;
            let length: usize =
                text(&records[..space]).and_then(|t| t.parse().ok()).ok_or_else(broken)?;
            let record = records.get(space + 1..length).ok_or_else(broken)?;
            let record = record.strip_suffix(b"\n").ok_or_else(broken)?;
            let equals = record.iter().position(|b| *b == b'=').ok_or_else(broken)?;
            let (key, value) = (text(&record[..equals]).ok_or_else(broken)?, &record[equals + 1..]);
            records = &records[length..];
            let number = || text(value).and_then(|t| t.parse::<u64>().ok()).ok_or_else(broken);
            // A negative id means its two's complement bits: -2 is `nobody` on some systems.
            let id = || {
                let id = text(value).and_then(|t| t.parse::<i64>().ok());
                let bits = |id: i64| {
                    u64::try_from(id).or(i32::try_from(id).map(|id| u64::from(id as u32)))
                };
                id.and_then(|id| bits(id).ok()).ok_or_else(broken)
            };
            match key {
                // An empty value cancels the earlier one.
                "path" => self.path = given(value),
                "linkpath" => self.link = given(value),
                "size" | "uid" | "gid" | "mtime" if value.is_empty() => {}
                "size" => self.size = Some(number()?),
                "uid" => self.uid = Some(id()?),
                "gid" => self.gid = Some(id()?),
                "mtime" => self.mtime = Some(text(value).and_then(time).ok_or_else(broken)?),
                _ => {
                    if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
                        self.xattrs.push((name.to_owned(), value.to_vec()));
                    } else if let Some(key) = key.strip_prefix("GNU.sparse.") {
                        self.sparse.take(key, value).ok_or_else(broken)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn given(value: &[u8]) -> Option<Vec<u8>> {
    (!value.is_empty()).then(|| value.to_vec())
}

/// `-12.5` seconds as whole seconds (rounded down) and nanoseconds.
fn time(text: &str) -> Option<(i64, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: u32 = digits.parse().ok()?;
    if whole.starts_with('-') && nanos > 0 {
        return Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos));
    }
    Some((seconds, nanos))
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("12", Some((12, 0)))]
    #[case("12.5", Some((12, 500_000_000)))]
    #[case("-12.25", Some((-13, 750_000_000)))]
    #[case("1.1234567899", Some((1, 123_456_789)))]
    #[case("x", None)]
    #[case("1.-5", None)]
    fn pax_times_are_parsed(#[case] input: &str, #[case] want: Option<(i64, u32)>) {
        assert_eq!(time(input), want);
    }
}
