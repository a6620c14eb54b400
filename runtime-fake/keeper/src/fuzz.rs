//! Fuzz targets of this package: frames between daemon and keeper, the documents in them, and other input that a keeper parses:
//! from images, clients, criu and the kernel.
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::Shutdown as StdShutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use fuzz_target::{Target, bytes, text, two_texts};
use jiff::Timestamp;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::contract::criu::{self, Dump, dump};
use crate::contract::frame::{MAX_FRAME, Receiver};
use crate::contract::plan::UserPlan;
use crate::contract::protocol::{Exit, Message, Request};
use crate::kernel::cgroup::hierarchy;
use crate::kernel::interpreter::{elf, interpreter, read_from};
use crate::kernel::seccomp::{Arch, Filter, HostContext, Instruction, filter};
use crate::parent::log::{Encoder, MAX_PART, Stream};
use crate::setup::user;

/// Every target of this package.
#[must_use]
pub fn targets() -> Vec<Target> {
    [TARGETS, CRIU, ACCOUNTS, INTERPRETER, MOUNTINFO, OUTPUT, SECCOMP].concat()
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
    theirs.shutdown(StdShutdown::Write).unwrap();
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

const ACCOUNTS: &[Target] = &[Target::new("accounts", accounts, account_seeds)];

/// A lookup by name and a lookup by the resulting ids agree, and no id exceeds the highest one that a process may have.
/// A numeric user needs no entry in the files.
fn accounts(data: &[u8]) {
    const MAX_ID: u32 = i32::MAX as u32;
    let (passwd, group) = two_texts(data);
    let plan = |user: &str, group: Option<&str>| UserPlan {
        user: user.to_owned(),
        group: group.map(str::to_owned),
        additional_gids: vec![7],
        merge_groups: true,
    };
    let name = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let first = (passwd.lines().next().map(name), group.lines().next().map(name));
    if let (Some(user), group_name) = first
        && let Ok(found) = user::resolve(&plan(&user, group_name.as_deref()), passwd, group)
    {
        let ids = [found.uid, found.gid];
        for id in ids.into_iter().chain(found.additional_gids.iter().copied()) {
            assert!(id <= MAX_ID, "{id} of {found:?}");
        }
        assert!(found.additional_gids.contains(&7), "{found:?}");
        let (uid, gid) = (found.uid.to_string(), found.gid.to_string());
        // Another user with the same uid may be in other groups.
        let mut numbers = plan(&uid, Some(&gid));
        numbers.merge_groups = false;
        let again = user::resolve(&numbers, passwd, group).unwrap();
        assert_eq!((again.uid, again.gid), (found.uid, found.gid));
    }
    // Without merging: a group in the file may have an id that no process can have.
    let mut number = plan("1000", Some("2000"));
    number.merge_groups = false;
    let found = user::resolve(&number, passwd, group).unwrap();
    assert_eq!((found.uid, found.gid), (1000, 2000));
}

fn account_seeds() -> Vec<Vec<u8>> {
    bytes(&[
        "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1000::/home/web:/bin/sh\n\x00root:x:0:\nwheel:x:10:root,web\n",
        "a:x:7:8::\na:x:9:10:::\n\0a:x:9:a,a\nb:x:3:\n",
        "x:::\n:x:2147483647:4294967295::\n\0:x:2147483648:\n",
    ])
}

const INTERPRETER: &[Target] = &[Target::new("interpreter", interpreters, interpreter_seeds)];

/// A returned path occurs unchanged in the file, contains no NUL, and is shorter than PATH_MAX.
fn interpreters(data: &[u8]) {
    use std::os::unix::ffi::OsStrExt as _;
    let Some(path) = interpreter(&read_from(data)) else {
        return;
    };
    let path = path.as_os_str().as_bytes();
    assert!(!path.is_empty() && path.len() < 4096 && !path.contains(&0));
    assert!(data.windows(path.len()).any(|window| window == path));
}

fn interpreter_seeds() -> Vec<Vec<u8>> {
    vec![
        b"#!/bin/sh -e\necho hello\n".to_vec(),
        elf(1, 3, b"/lib/ld-linux.so.2\0"),
        elf(2, 3, b"/lib64/ld-linux-x86-64.so.2\0"),
    ]
}

const MOUNTINFO: &[Target] = &[Target::new("mountinfo", mountinfo, mountinfo_seeds)];

/// Both parsers of the same table agree about where cgroup hierarchies are mounted.
fn mountinfo(data: &[u8]) {
    let (table, cgroup) = two_texts(data);
    let _ = criu::external_mounts(table);
    let places: BTreeSet<String> = criu::assembled(table, "");
    for hierarchy in hierarchy::mounted(table, cgroup) {
        let place = hierarchy.mount.to_str().unwrap_or_default();
        let known =
            places.contains(place) || !place.starts_with('/') || matches!(place, "/" | "/dev");
        assert!(known, "{place:?} is in none of {places:?}");
    }
}

fn mountinfo_seeds() -> Vec<Vec<u8>> {
    bytes(&[
        "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
         27 0 254:0 / / rw shared:1 - ext4 /dev/vda rw\n\
         29 28 0:25 / /sys/fs/cgroup ro,nosuid shared:4 - tmpfs tmpfs ro,mode=755\n\
         30 29 0:26 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n\
         31 29 0:27 /a\\040b /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\0\
         4:cpu,cpuacct:/a b/c\n0::/init.scope\n",
        "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\x000::/user.slice\n",
        "93 89 0:40 / /a\\134b rw - tmpfs shm rw\n94 93 0:41 / /a\\134b rw - tmpfs b rw",
    ])
}

const OUTPUT: &[Target] = &[Target::new("log_output", output, output_seeds)];

/// The log contains all output, read in chunks of a size that the first byte determines, in lines with a time, a stream and a
/// tag.
fn output(data: &[u8]) {
    let Some((cut, text)) = data.split_first() else {
        return;
    };
    let mut encoder = Encoder::new(Stream::Stderr);
    let mut log = Vec::new();
    for piece in text.chunks(usize::from(*cut) + 1) {
        encoder.feed(piece, Timestamp::UNIX_EPOCH, &mut log);
    }
    encoder.finish(Timestamp::UNIX_EPOCH, &mut log);
    let mut joined = Vec::new();
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        let rest = line.strip_prefix(b"1970-01-01T00:00:00.000000000Z stderr ").unwrap();
        let (tag, text) = (&rest[..2], &rest[2..rest.len() - 1]);
        assert!(text.len() <= MAX_PART);
        joined.extend_from_slice(text);
        match tag {
            b"F " => joined.push(b'\n'),
            b"P " => {}
            _ => panic!("tag {}", tag.escape_ascii()),
        }
    }
    assert_eq!(joined, text);
}

fn output_seeds() -> Vec<Vec<u8>> {
    vec![
        b"\x05one\ntwo\n\nthree".to_vec(),
        [b"\xff".to_vec(), vec![b'x'; MAX_PART], b"\ny\n".to_vec()].concat(),
    ]
}

const SECCOMP: &[Target] = &[Target::new("seccomp_profile", seccomp_profile, profiles).slow(400)];

/// The kernel accepts every filter (`bpf_check_classic`): it is not too long, every jump goes forwards and stays
/// inside, and it ends with a verdict. A filter read from its file is the one written.
fn seccomp_profile(data: &[u8]) {
    let host = HostContext { native: Arch::X86_64, kernel: (6, 1), capabilities: &[0, 1, 21] };
    let Ok(made) = filter(Some(text(data)), host) else {
        return;
    };
    let program = &made.program;
    assert!(program.len() <= 4096);
    assert!(program.last().is_some_and(|last| last.code == 0x06));
    for (at, one) in program.iter().enumerate() {
        for target in next_instructions(at, *one) {
            assert!(target < program.len(), "instruction {at} leads to {target}");
        }
    }
    assert_eq!(Filter::from_bytes(&made.to_bytes()), Some(made));
}

/// The instructions that can follow an instruction.
fn next_instructions(at: usize, one: Instruction) -> Vec<usize> {
    match one.code {
        0x05 => vec![at + 1 + one.k as usize],
        0x15 | 0x25 | 0x35 => vec![at + 1 + usize::from(one.jt), at + 1 + usize::from(one.jf)],
        0x06 => vec![],
        _ => vec![at + 1],
    }
}

fn profiles() -> Vec<Vec<u8>> {
    bytes(&[
        r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":1,"architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_X86"],"syscalls":[{"names":["read","write"],"action":"SCMP_ACT_ALLOW"},{"names":["clone"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":2114060288,"valueTwo":0,"op":"SCMP_CMP_MASKED_EQ"}]}]}"#,
        r#"{"defaultAction":"SCMP_ACT_ALLOW","archMap":[{"architecture":"SCMP_ARCH_X86_64","subArchitectures":["SCMP_ARCH_X32"]}],"flags":["SECCOMP_FILTER_FLAG_LOG"],"syscalls":[{"names":["mount"],"action":"SCMP_ACT_ERRNO","errno":"ENOSYS","excludes":{"caps":["CAP_SYS_ADMIN"]},"includes":{"minKernel":"5.4","arches":["amd64"]}},{"name":"bpf","action":"SCMP_ACT_TRACE","args":[{"index":5,"value":1,"op":"SCMP_CMP_GE"},{"index":1,"value":3,"op":"SCMP_CMP_NE"}]}]}"#,
    ])
}

/// criu's responses.
const CRIU: &[Target] = &[Target::new("criu_response", responses, response_seeds)];

/// Each packet follows a byte with its length. The exchange ends, and sends at most one packet more than it received.
fn responses(mut data: &[u8]) {
    let (ours, criu) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let mut sent = 0;
    while let Some((length, rest)) = data.split_first() {
        let (packet, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        data = rest;
        // Stop when the socket's buffer is full.
        if packet.is_empty() || send(&criu, packet, SendFlags::DONTWAIT).is_err() {
            break;
        }
        sent += 1;
    }
    shutdown(&criu, Shutdown::Write).unwrap();
    let nowhere = std::fs::File::open("/").unwrap();
    let what =
        Dump { pid: 1, images: nowhere.as_fd(), work: nowhere.as_fd(), external: Vec::new() };
    let mut frozen = 0;
    let _ = dump::<()>(ours, what, || {
        frozen += 1;
        Ok(())
    });
    let mut packet = [0; 4096];
    let mut heard = 0;
    while let Ok((1.., _)) = recv(&criu, &mut packet[..], RecvFlags::DONTWAIT) {
        heard += 1;
    }
    assert!(heard <= sent + 1 && frozen <= 1, "{heard} answers to {sent} packets");
}

fn response_seeds() -> Vec<Vec<u8>> {
    // Type, success, and a notification's script (images/rpc.proto).
    let notify = [&[0x08, 6, 0x10, 1, 0x2a, 11, 0x0a, 9][..], b"post-dump"].concat();
    let done = vec![0x08, 1, 0x10, 1];
    let failed = vec![0x08, 1, 0x10, 0, 0x4a, 2, b'n', b'o'];
    let packet = |bytes: &[u8]| [&[u8::try_from(bytes.len()).unwrap()][..], bytes].concat();
    vec![[packet(&notify), packet(&done)].concat(), packet(&failed), packet(&done)]
}
