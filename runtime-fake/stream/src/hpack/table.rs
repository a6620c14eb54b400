//! The tables of HPACK: the static one (RFC 7541, appendix A) and the dynamic one of a connection. ◆

use std::collections::VecDeque;

use bytes::Bytes;

use super::{Field, HpackError};

/// The default size limit (RFC 9113, 6.5.2), which our server does not change.
const MAX_SIZE: usize = 4096;

/// The dynamic table, indexed after the static one.
#[derive(Debug)]
pub(super) struct Table {
    /// The newest first.
    entries: VecDeque<Field>,
    size: usize,
    max_size: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self { entries: VecDeque::new(), size: 0, max_size: MAX_SIZE }
    }
}

impl Table {
    /// The entry with this index, starting at 1 (RFC 7541, 2.3.3).
    pub(super) fn field(&self, index: usize) -> Result<Field, HpackError> {
        let at = index.checked_sub(1).ok_or(HpackError::Index)?;
        if let Some((name, value)) = STATIC.get(at) {
            return Ok(Field {
                name: Bytes::from_static(name.as_bytes()),
                value: Bytes::from_static(value.as_bytes()),
            });
        }
        let field = self.entries.get(at - STATIC.len());
        field.cloned().ok_or(HpackError::Index)
    }

    /// Inserts an entry. One larger than the table empties it, which is not an error (RFC 7541, 4.4).
    pub(super) fn insert(&mut self, field: Field) {
        let size = field.size();
        self.evict(self.max_size.saturating_sub(size));
        if size <= self.max_size {
            self.size += size;
            self.entries.push_front(field);
        }
    }

    /// Applies a table size update of the client's encoder.
    pub(super) fn resize(&mut self, size: usize) -> Result<(), HpackError> {
        if size > MAX_SIZE {
            return Err(HpackError::TableSize);
        }
        self.max_size = size;
        self.evict(size);
        Ok(())
    }

    fn evict(&mut self, limit: usize) {
        while self.size > limit
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size();
        }
    }
}

#[rustfmt::skip]
const STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""),
    ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""),
    ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""),
    ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""),
    ("www-authenticate", ""),
];
