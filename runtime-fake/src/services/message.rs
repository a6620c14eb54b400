//! ◆ DNS messages (RFC 1035): reads queries and the answers of name servers, and writes answers.

use std::net::Ipv4Addr;

const HEADER: usize = 12;
/// The largest message over UDP without EDNS (RFC 1035, 4.2.1).
const PLAIN_LIMIT: usize = 512;
/// Limit on the pointers in a name: a message with more is hostile.
const POINTERS: usize = 32;
/// The longest name in octets (RFC 1035, 3.1).
const LONGEST_NAME: usize = 255;

/// The time to live of records in seconds, as in a cluster's DNS server: short, because pods come and go.
const TTL: u32 = 5;

/// Types of records.
pub(super) mod kind {
    pub(crate) const A: u16 = 1;
    pub(crate) const CNAME: u16 = 5;
    pub(crate) const PTR: u16 = 12;
    pub(crate) const AAAA: u16 = 28;
    pub(crate) const SRV: u16 = 33;
    pub(super) const OPT: u16 = 41;
    pub(crate) const ANY: u16 = 255;
}

/// The outcome of a query (RCODE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NameError = 3,
    NotImplemented = 4,
}

/// A query with one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) id: u16,
    /// The name in lower case, without a final dot.
    pub(super) name: String,
    pub(super) kind: u16,
    recursion_desired: bool,
    /// The question as received; answers repeat it.
    question: Vec<u8>,
    /// The longest answer over UDP, if the client specifies it (EDNS).
    payload: Option<u16>,
}

/// Why a message is not a query that can be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueryError {
    /// The message gets no answer.
    Ignore,
    /// The query with this id gets only an outcome.
    Refuse(u16, Outcome),
}

/// A record of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// The name; empty: the question's.
    pub(super) name: String,
    pub(super) data: Data,
}

/// The data of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Data {
    A(Ipv4Addr),
    Cname(String),
    Ptr(String),
    Srv {
        target: String,
        port: u16,
    },
    /// From another name server: type, time to live, data without compressed names.
    Raw(u16, u32, Vec<u8>),
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*bytes))
}

/// Reads a query.
pub(super) fn query(bytes: &[u8]) -> Result<Query, QueryError> {
    let (Some(id), Some(flags), Some(questions)) =
        (u16_at(bytes, 0), u16_at(bytes, 2), u16_at(bytes, 4))
    else {
        return Err(QueryError::Ignore);
    };
    if bytes.len() < HEADER || flags & 0x8000 != 0 {
        return Err(QueryError::Ignore);
    }
    if flags & 0x7800 != 0 {
        return Err(QueryError::Refuse(id, Outcome::NotImplemented));
    }
    let malformed = QueryError::Refuse(id, Outcome::FormatError);
    if questions != 1 {
        return Err(malformed);
    }
    let (name, after) = name_at(bytes, HEADER).ok_or(malformed)?;
    let kind = u16_at(bytes, after).ok_or(malformed)?;
    let question = bytes.get(HEADER..after + 4).ok_or(malformed)?.to_vec();
    let only_additional = u16_at(bytes, 6) == Some(0) && u16_at(bytes, 8) == Some(0);
    let payload = (only_additional && u16_at(bytes, 10).is_some_and(|count| count > 0))
        .then(|| options(bytes, after + 4))
        .flatten();
    Ok(Query { id, name, kind, recursion_desired: flags & 0x0100 != 0, question, payload })
}

/// The payload size of an OPT record (RFC 6891, 6.1.2).
fn options(bytes: &[u8], at: usize) -> Option<u16> {
    let is_opt = bytes.get(at) == Some(&0) && u16_at(bytes, at + 1) == Some(kind::OPT);
    is_opt.then(|| u16_at(bytes, at + 3))?
}

/// The name at an offset, and the offset after it.
fn name_at(bytes: &[u8], mut at: usize) -> Option<(String, usize)> {
    let (mut name, mut after, mut pointers, mut octets) = (String::new(), None, 0, 0);
    loop {
        let length = usize::from(*bytes.get(at)?);
        match length {
            0 => return Some((name, after.unwrap_or(at + 1))),
            1..=63 => {
                octets += length + 1;
                if octets >= LONGEST_NAME {
                    return None;
                }
                if !name.is_empty() {
                    name.push('.');
                }
                for byte in bytes.get(at + 1..at + 1 + length)? {
                    match byte {
                        b'.' | b'\\' => name.extend(['\\', char::from(*byte)]),
                        b'!'..=b'~' => name.push(char::from(byte.to_ascii_lowercase())),
                        byte => name.push_str(&format!("\\{byte:03}")),
                    }
                }
                at += length + 1;
            }
            192.. => {
                pointers += 1;
                let target = usize::from(u16_at(bytes, at)? & 0x3fff);
                after.get_or_insert(at + 2);
                if pointers > POINTERS || target >= at {
                    return None;
                }
                at = target;
            }
            _ => return None,
        }
    }
}

/// The encoding of a name in a message; `None` if the name is invalid.
fn encoded(name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let name = name.strip_suffix('.').unwrap_or(name);
    for label in name.split('.').filter(|_| !name.is_empty()) {
        let length = u8::try_from(label.len()).ok()?;
        if !(1..=63).contains(&length) {
            return None;
        }
        bytes.push(length);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    (bytes.len() <= LONGEST_NAME).then_some(bytes)
}

/// A query for a name server: with one question, and recursion desired.
pub(super) fn ask(id: u16, name: &str, kind: u16) -> Option<Vec<u8>> {
    let header = [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    let question = [&encoded(name)?[..], &kind.to_be_bytes(), &[0, 1]].concat();
    Some([header, question].concat())
}

/// The records of a name server's answer, and its response code.
pub(super) fn answers(bytes: &[u8]) -> Option<(u16, Vec<Record>)> {
    let outcome = u16_at(bytes, 2)? & 0xf;
    let (questions, count) = (u16_at(bytes, 4)?, u16_at(bytes, 6)?);
    let mut at = HEADER;
    for _ in 0..questions {
        at = name_at(bytes, at)?.1 + 4;
    }
    let mut records = Vec::new();
    for _ in 0..count {
        let (name, after) = name_at(bytes, at)?;
        let (kind, ttl) = (u16_at(bytes, after)?, u32_at(bytes, after + 4)?);
        let start = after + 10;
        let end = start + usize::from(u16_at(bytes, after + 8)?);
        let data = bytes.get(start..end)?;
        let data = match kind {
            kind::CNAME => encoded(&name_at(bytes, start)?.0)?,
            _ => data.to_vec(),
        };
        // Data of other types may have compressed names, which are invalid in another message.
        if matches!(kind, kind::A | kind::AAAA | kind::CNAME) {
            records.push(Record { name, data: Data::Raw(kind, ttl, data) });
        }
        at = end;
    }
    Some((outcome, records))
}

impl Query {
    /// The longest answer over UDP.
    pub(super) fn limit(&self) -> usize {
        self.payload.map_or(PLAIN_LIMIT, |size| usize::from(size).max(PLAIN_LIMIT))
    }

    /// The answer; an answer longer than `limit` has no records and is marked as truncated, so that the client retries over TCP.
    pub(super) fn answer(&self, outcome: Outcome, records: &[Record], limit: usize) -> Vec<u8> {
        let mut flags = 0x8480 | outcome as u16;
        if self.recursion_desired {
            flags |= 0x0100;
        }
        let encoded: Vec<Vec<u8>> = records.iter().filter_map(written).collect();
        // The answer to a client with EDNS contains this server's payload size.
        let options: &[u8] = match self.payload {
            Some(_) => &[0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0],
            None => &[],
        };
        let length = HEADER + self.question.len() + options.len();
        let length = encoded.iter().map(Vec::len).fold(length, usize::saturating_add);
        let (records, flags) = match u16::try_from(encoded.len()) {
            Ok(count) if length <= limit => ((count, encoded.concat()), flags),
            Ok(_) | Err(_) => ((0, Vec::new()), flags | 0x0200),
        };
        let additional = u16::from(self.payload.is_some());
        let header = [self.id, flags, 1, records.0, 0, additional].map(u16::to_be_bytes);
        [header.as_flattened(), &self.question, &records.1, options].concat()
    }
}

/// An answer without a question.
pub(super) fn refusal(id: u16, outcome: Outcome) -> Vec<u8> {
    [id, 0x8000 | outcome as u16, 0, 0, 0, 0].map(u16::to_be_bytes).as_flattened().to_vec()
}

fn written(record: &Record) -> Option<Vec<u8>> {
    let name = match record.name.as_str() {
        "" => vec![0xc0, HEADER as u8],
        name => encoded(name)?,
    };
    let (kind, ttl, data) = match &record.data {
        Data::A(address) => (kind::A, TTL, address.octets().to_vec()),
        Data::Cname(target) => (kind::CNAME, TTL, encoded(target)?),
        Data::Ptr(target) => (kind::PTR, TTL, encoded(target)?),
        Data::Srv { target, port } => {
            let numbers = [0, 100, *port].map(u16::to_be_bytes);
            let data = [numbers.as_flattened(), &encoded(target)?].concat();
            (kind::SRV, TTL, data)
        }
        Data::Raw(kind, ttl, data) => (*kind, *ttl, data.clone()),
    };
    let length = u16::try_from(data.len()).ok()?;
    Some(
        [&name[..], &kind.to_be_bytes(), &[0, 1], &ttl.to_be_bytes(), &length.to_be_bytes(), &data]
            .concat(),
    )
}

#[cfg(test)]
mod tests;
