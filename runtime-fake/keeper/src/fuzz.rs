//! Fuzz targets of this package: frames between daemon and keeper, the documents in them, and the targets of the
//! modules below.
#![allow(clippy::unwrap_used, reason = "a test's tool")]

mod accounts;
mod interpreter;
mod kernel;
mod output;
mod seccomp;

use std::{io::Write as _, net::Shutdown, os::unix::net::UnixStream};

use fuzz_target::{Target, bytes};
use serde::{Serialize, de::DeserializeOwned};

use crate::contract::frame::{MAX_FRAME, Receiver};
use crate::contract::protocol::{Exit, Message, Request};

/// Every target of this package.
#[must_use]
pub fn targets() -> Vec<Target> {
    [
        TARGETS,
        crate::contract::criu::fuzz::TARGETS,
        accounts::TARGETS,
        interpreter::TARGETS,
        kernel::TARGETS,
        output::TARGETS,
        seccomp::TARGETS,
    ]
    .concat()
}

#[test]
fn fuzz_targets_pass_on_corpus_and_mutations() {
    fuzz_target::check(&targets());
}

const TARGETS: &[Target] = &[
    Target::new("keeper_frames", frames, frame_seeds),
    Target::new("keeper_messages", messages, message_seeds),
];

/// A receiver returns the documents that were sent, none longer than the limit.
fn frames(data: &[u8]) {
    let data = &data[..data.len().min(64 << 10)];
    let (mut theirs, ours) = UnixStream::pair().unwrap();
    theirs.write_all(data).unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    let mut receiver = Receiver::default();
    let mut seen = Vec::new();
    while receiver.fill(&ours).unwrap() > 0 {
        loop {
            match receiver.next_document() {
                Ok(Some(document)) => {
                    assert!(document.len() <= MAX_FRAME);
                    seen.extend(framed(&document));
                }
                Ok(None) => break,
                Err(_) => return assert_eq!(seen, data[..seen.len()]),
            }
        }
    }
    assert_eq!(seen, data[..seen.len()]);
}

fn framed(document: &[u8]) -> Vec<u8> {
    let length = u32::try_from(document.len()).unwrap();
    [&length.to_le_bytes()[..], document].concat()
}

fn frame_seeds() -> Vec<Vec<u8>> {
    vec![[framed(b"{}"), framed(b""), framed(&[7; 300])].concat(), framed(&[0; 20_000])]
}

/// A parsed document is serialised the same each time.
fn messages(data: &[u8]) {
    fn stable<T: DeserializeOwned + Serialize>(data: &[u8]) {
        if let Ok(read) = serde_json::from_slice::<T>(data) {
            let written = serde_json::to_vec(&read).unwrap();
            let again: T = serde_json::from_slice(&written).unwrap();
            assert_eq!(serde_json::to_vec(&again).unwrap(), written);
        }
    }
    stable::<Request>(data);
    stable::<Message>(data);
    stable::<Exit>(data);
}

fn message_seeds() -> Vec<Vec<u8>> {
    bytes(&[
        r#"{"number":7,"descriptors":2,"call":{"signal":{"container":"abc","signal":15}}}"#,
        r#"{"number":8,"call":"shutdown"}"#,
        r#"{"reply":{"number":1,"descriptors":0,"result":{"Ok":{"created":{"pid":9,"user":{"uid":1,"gid":2,"groups":[3]}}}}}}"#,
        r#"{"code":137,"at":"1970-01-01T00:00:00Z","started":null,"start_error":"no","oom_killed":true}"#,
    ])
}
