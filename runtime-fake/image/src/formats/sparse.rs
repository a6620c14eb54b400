//! ◆ Sparse files in PAX archives: the parts of a file that its tar member stores; the rest is holes.
//!
//! GNU tar writes three formats (its manual, "Storing Sparse Files"): 0.0 and 0.1 have the map in extended headers,
//! 1.0 has it before the data. The older format, a member of type `S`, is refused, as in containerd and docker.

use crate::error::ContentError;

/// The data parts of a file: offset and length of each, in order and without overlap.
pub(crate) type Map = Vec<(u64, u64)>;

/// The records about a sparse file.
#[derive(Debug, Default)]
pub(crate) struct SparseHeaders {
    major: Option<Vec<u8>>,
    minor: Option<Vec<u8>>,
    name: Option<Vec<u8>>,
    size: Option<u64>,
    real_size: Option<u64>,
    blocks: Option<u64>,
    numbers: Vec<u64>,
}

/// A sparse file. Its map may be in the headers or before the data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sparse {
    /// The file's name: the member's own is a placeholder.
    pub(crate) name: Option<Vec<u8>>,
    /// The file's size including holes, if given.
    pub(crate) size: Option<u64>,
    /// The map; `None` if it comes before the data.
    pub(crate) map: Option<Map>,
}

impl SparseHeaders {
    /// Parses the record `GNU.sparse.<key>`. Returns `None` if its value is invalid.
    pub(crate) fn take(&mut self, key: &str, value: &[u8]) -> Option<()> {
        match key {
            "major" => self.major = Some(value.to_vec()),
            "minor" => self.minor = Some(value.to_vec()),
            "name" => self.name = Some(value.to_vec()),
            "size" => self.size = Some(number(value)?),
            "realsize" => self.real_size = Some(number(value)?),
            "numblocks" => self.blocks = Some(number(value)?),
            // In 0.0 these two alternate.
            "offset" if self.numbers.len().is_multiple_of(2) => self.numbers.push(number(value)?),
            "numbytes" if !self.numbers.len().is_multiple_of(2) => {
                self.numbers.push(number(value)?);
            }
            "offset" | "numbytes" => return None,
            "map" => {
                self.numbers = value
                    .split(|c| *c == b',')
                    .filter(|_| !value.is_empty())
                    .map(number)
                    .collect::<Option<_>>()?;
            }
            _ => {}
        }
        Some(())
    }

    /// The sparse file that the headers describe; `None` if the file is not sparse, or has an unknown version; then it is
    /// unpacked as it is stored.
    pub(crate) fn finish(self, at: u64) -> Result<Option<Sparse>, ContentError> {
        let broken = || ContentError::Header { at, why: "a broken map of a sparse file" };
        let in_headers = match (self.major.as_deref(), self.minor.as_deref()) {
            (Some(b"1"), Some(b"0")) => false,
            (Some(b"0"), Some(b"0" | b"1")) => true,
            (None, None) if !self.numbers.is_empty() => true,
            _ => return Ok(None),
        };
        let map = if in_headers {
            let parts = pairs(&self.numbers).ok_or_else(broken)?;
            if self.blocks != Some(parts.len() as u64) {
                return Err(broken());
            }
            Some(parts)
        } else {
            None
        };
        Ok(Some(Sparse {
            name: self.name.filter(|name| !name.is_empty()),
            size: self.size.or(self.real_size),
            map,
        }))
    }
}

/// Reads the map before a member's data (1.0): one number per line, the first of which is the number of pairs.
#[derive(Debug, Default)]
pub(crate) struct MapReader {
    line: Vec<u8>,
    numbers: Vec<u64>,
}

impl MapReader {
    /// Reads the next block. Returns the map when it is complete; the rest of the block is padding.
    pub(crate) fn block(&mut self, block: &[u8]) -> Result<Option<Map>, ()> {
        for byte in block {
            if *byte != b'\n' {
                self.line.push(*byte);
                // No valid number is longer: stop buffering a stream without line ends.
                if self.line.len() > 20 {
                    return Err(());
                }
                continue;
            }
            self.numbers.push(number(&self.line).ok_or(())?);
            self.line.clear();
            if let [count, rest @ ..] = &self.numbers[..]
                && rest.len() as u64 == count.checked_mul(2).ok_or(())?
            {
                return pairs(rest).map(Some).ok_or(());
            }
        }
        Ok(None)
    }
}

/// Whether a map fits a file of `size` bytes whose member stores `stored` of them.
pub(crate) fn fits(map: &Map, size: u64, stored: u64) -> bool {
    let mut end = 0;
    for (offset, length) in map {
        if *offset < end {
            return false;
        }
        match offset.checked_add(*length) {
            Some(next) if next <= size => end = next,
            Some(_) | None => return false,
        }
    }
    // Without overlap and within the size, the sum cannot overflow.
    map.iter().map(|(_, length)| length).sum::<u64>() == stored
}

fn pairs(numbers: &[u64]) -> Option<Map> {
    let (pairs, rest) = numbers.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[offset, length]| (*offset, *length)).collect())
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn headers(records: &[(&str, &str)]) -> Option<SparseHeaders> {
        let mut headers = SparseHeaders::default();
        for (key, value) in records {
            headers.take(key, value.as_bytes())?;
        }
        Some(headers)
    }

    #[rstest]
    #[case::none(&[], None)]
    #[case::unknown_version(&[("major", "2"), ("minor", "0")], None)]
    #[case::half_a_version(&[("major", "1")], None)]
    #[case::version_1_0(&[("major", "1"), ("minor", "0"), ("name", "a"), ("realsize", "9")], Some((Some("a"), Some(9), None)))]
    #[case::version_0_1(&[("map", "0,1,5,2"), ("numblocks", "2"), ("size", "7"), ("name", "a")], Some((Some("a"), Some(7), Some(vec![(0, 1), (5, 2)]))))]
    #[case::version_0_0(&[("numblocks", "2"), ("offset", "0"), ("numbytes", "1"), ("offset", "5"), ("numbytes", "2"), ("size", "7")], Some((None, Some(7), Some(vec![(0, 1), (5, 2)]))))]
    #[case::all_holes(&[("major", "0"), ("minor", "1"), ("map", ""), ("numblocks", "0"), ("size", "7")], Some((None, Some(7), Some(vec![]))))]
    fn sparse_headers_of_each_version_are_parsed(
        #[case] records: &[(&str, &str)],
        #[case] want: Option<(Option<&str>, Option<u64>, Option<Map>)>,
    ) {
        let want = want.map(|(name, size, map)| Sparse {
            name: name.map(|name| name.as_bytes().to_vec()),
            size,
            map,
        });
        assert_eq!(headers(records).unwrap().finish(0).unwrap(), want);
    }

    #[rstest]
    #[case::no_number(&[("size", "x")])]
    #[case::negative(&[("map", "0,-1")])]
    #[case::length_first(&[("numbytes", "1")])]
    #[case::two_offsets(&[("offset", "1"), ("offset", "2")])]
    #[case::odd(&[("map", "0,1,5"), ("numblocks", "2")])]
    #[case::wrong_count(&[("map", "0,1,5,2"), ("numblocks", "1")])]
    #[case::no_count(&[("map", "0,1,5,2")])]
    fn broken_headers_are_refused(#[case] records: &[(&str, &str)]) {
        assert!(headers(records).is_none_or(|headers| headers.finish(0).is_err()));
    }

    #[rstest]
    #[case(&[(0, 1), (5, 2)], 7, 3, true)]
    #[case(&[], 7, 0, true)]
    #[case(&[(7, 0)], 7, 0, true)]
    #[case::too_little_data(&[(0, 1)], 7, 0, false)]
    #[case::too_much_data(&[(0, 1)], 7, 2, false)]
    #[case::overlap(&[(0, 5), (3, 5)], 10, 10, false)]
    #[case::backwards(&[(5, 2), (0, 1)], 7, 3, false)]
    #[case::beyond(&[(5, 3)], 7, 3, false)]
    #[case::overflow(&[(u64::MAX, 1)], u64::MAX, 1, false)]
    fn sparse_map_is_checked_against_size(
        #[case] map: &[(u64, u64)],
        #[case] size: u64,
        #[case] stored: u64,
        #[case] good: bool,
    ) {
        assert_eq!(fits(&map.to_vec(), size, stored), good);
    }

    #[rstest]
    #[case("2\n0\n1\n5\n2\n\0\0", Ok(Some(vec![(0, 1), (5, 2)])))]
    #[case("0\n", Ok(Some(vec![])))]
    #[case("2\n0\n1\n5\n", Ok(None))]
    #[case("x\n", Err(()))]
    #[case("\n", Err(()))]
    #[case("99999999999999999999999", Err(()))]
    #[case("18446744073709551615\n0\n", Err(()))]
    fn sparse_map_before_data_is_parsed(#[case] text: &str, #[case] want: Result<Option<Map>, ()>) {
        assert_eq!(MapReader::default().block(text.as_bytes()), want);
    }

    proptest! {
        #[test]
        fn sparse_map_reader_never_panics(blocks in proptest::collection::vec("[0-9\n]{0,40}", 0..8)) {
            let mut reader = MapReader::default();
            for block in blocks {
                if let Ok(Some(map)) = reader.block(block.as_bytes()) {
                    let _ = fits(&map, 100, 10);
                    break;
                }
            }
        }
    }
}
