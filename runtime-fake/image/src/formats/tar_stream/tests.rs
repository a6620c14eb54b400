//! Reads streams built here, and changed, truncated and arbitrary ones.
#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;

fn read_all(bytes: &[u8]) -> Result<Vec<(Member, Vec<u8>)>, ContentError> {
    let mut reader = TarReader::new(Sequential(bytes), "it", 1 << 16);
    let mut out = Vec::new();
    while let Some(member) = reader.next_member()? {
        let mut body = Vec::new();
        reader.read_to_end(&mut body).map_err(ContentError::io("read"))?;
        out.push((member, body));
    }
    Ok(out)
}

#[test]
fn tar_reader_applies_long_names_and_attributes() {
    let mut builder = tar::Builder::new(Vec::new());
    builder
        .append_pax_extensions([
            ("SCHILY.xattr.user.a", b"x\ny=\0".as_slice()),
            ("mtime", b"7.5"),
            ("uid", b"4000000000"),
        ])
        .unwrap();
    let long = format!("{}/file", "d".repeat(200));
    let mut header = tar::Header::new_gnu();
    header.set_size(3);
    header.set_mode(0o4755);
    header.set_cksum();
    builder.append_data(&mut header, &long, &b"abc"[..]).unwrap();
    let bytes = builder.into_inner().unwrap();
    let all = read_all(&bytes).unwrap();
    let [(member, body)] = &all[..] else { panic!("{all:?}") };
    assert_eq!((member.path.as_slice(), body.as_slice()), (long.as_bytes(), b"abc".as_slice()));
    assert_eq!((member.uid, member.mtime, member.mode), (4_000_000_000, (7, 500_000_000), 0o4755));
    assert_eq!(member.xattrs, [("user.a".to_owned(), b"x\ny=\0".to_vec())]);
    for cut in 0..bytes.len() - 1024 {
        match read_all(&bytes[..cut]) {
            Err(ContentError::Truncated { .. }) => {}
            Ok(members) if members.is_empty() && cut == 0 => {}
            other => panic!("cut at {cut}: {other:?}"),
        }
    }
}

/// Otherwise a few compressed kilobytes of headers would make a gigabyte of attributes for one file.
#[test]
fn extension_headers_of_one_member_share_their_limit() {
    let attributes = [7; 1000];
    let members = |headers: usize| {
        let mut builder = tar::Builder::new(Vec::new());
        for _ in 0..headers {
            let record = ("SCHILY.xattr.user.a", attributes.as_slice());
            builder.append_pax_extensions([record]).unwrap();
        }
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o644);
        builder.append_data(&mut header, "a", &b""[..]).unwrap();
        let bytes = builder.into_inner().unwrap();
        // Each member has its own limit.
        read_all(&[&bytes[..bytes.len() - 1024], &bytes[..]].concat())
    };
    assert_eq!(members(60).unwrap().len(), 2);
    assert!(matches!(members(70), Err(ContentError::TooMuch { .. })));
}

proptest! {
    #[test]
    fn tar_reader_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let _ = read_all(&bytes);
    }

    #[test]
    fn tar_reader_survives_changed_bytes(at in 0usize..1536, to in any::<u8>()) {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_size(5);
        header.set_mode(0o644);
        builder.append_data(&mut header, "a", &b"12345"[..]).unwrap();
        let mut bytes = builder.into_inner().unwrap();
        bytes[at] = to;
        let _ = read_all(&bytes);
    }
}
