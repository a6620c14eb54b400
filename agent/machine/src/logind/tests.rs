//! A scripted bus for logind's answers, and a real one for the wire format.

use std::io::{BufRead as _, BufReader, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tempfile::TempDir;

use super::*;
use crate::dbus::Message;
use crate::dbus::testing::Daemon;

/// Writes a header field of a type, with its value at the right alignment.
fn field(bytes: &mut Vec<u8>, code: u8, kind: u8, value: &[u8]) {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend([code, 1, kind, 0]);
    bytes.extend(value);
}

fn text(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    [&length[..], text.as_bytes(), &[0]].concat()
}

/// A message of a type with a body.
fn message(kind: u8, fields: &[u8], body: &[u8]) -> Vec<u8> {
    let number = |number: usize| u32::try_from(number).unwrap().to_le_bytes();
    let mut bytes = vec![b'l', kind, 0, 1];
    bytes.extend(number(body.len()));
    bytes.extend(number(9));
    bytes.extend(number(fields.len()));
    bytes.extend(fields);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend(body);
    bytes
}

fn signal(begins: bool) -> Vec<u8> {
    let mut fields = Vec::new();
    field(&mut fields, 1, b'o', &text(OBJECT));
    field(&mut fields, 2, b's', &text(MANAGER));
    field(&mut fields, 3, b's', &text(SIGNAL));
    field(&mut fields, 8, b'g', &[1, b'b', 0]);
    message(4, &fields, &u32::from(begins).to_le_bytes())
}

/// An answer to a call, with its signature and body.
fn answer(serial: u32, signature: &str, body: &[u8], descriptors: u32) -> Vec<u8> {
    let mut fields = Vec::new();
    field(&mut fields, 5, b'u', &serial.to_le_bytes());
    if !signature.is_empty() {
        let length = u8::try_from(signature.len()).unwrap();
        field(&mut fields, 8, b'g', &[&[length], signature.as_bytes(), &[0]].concat());
    }
    if descriptors > 0 {
        field(&mut fields, 9, b'u', &descriptors.to_le_bytes());
    }
    message(2, &fields, body)
}

/// Serves one client of the scripted bus. Returns the members that it called.
fn serve(mut stream: UnixStream, delay: u64, lock: &UnixStream) -> Vec<String> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for expected in ["\0AUTH EXTERNAL ", "NEGOTIATE_UNIX_FD", "BEGIN"] {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with(expected), "{line:?}");
        let said = match expected {
            "BEGIN" => continue,
            "NEGOTIATE_UNIX_FD" => "AGREE_UNIX_FD\r\n",
            _ => "OK 0123\r\n",
        };
        stream.write_all(said.as_bytes()).unwrap();
    }
    let mut called = Vec::new();
    let mut bytes = Vec::new();
    loop {
        let mut one = [0; 512];
        match reader.read(&mut one) {
            Ok(0) | Err(_) => return called,
            Ok(count) => bytes.extend(&one[..count]),
        }
        while let Some(length) =
            crate::dbus::length(&bytes).unwrap().filter(|it| bytes.len() >= *it)
        {
            let call: Vec<u8> = bytes.drain(..length).collect();
            let serial = u32::from_le_bytes(call[8..12].try_into().unwrap());
            let member = crate::dbus::parse(&call).unwrap().member.unwrap();
            match member.as_str() {
                "Get" => {
                    let variant = [&[1, b't', 0, 0, 0, 0, 0, 0][..], &delay.to_le_bytes()].concat();
                    // Sent in pieces, with a signal before the answer.
                    let whole = [signal(true), answer(serial, "v", &variant, 0)].concat();
                    for piece in whole.chunks(7) {
                        stream.write_all(piece).unwrap();
                    }
                }
                "Inhibit" => {
                    let reply = answer(serial, "h", &[0; 4], 1);
                    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                    let mut ancillary = SendAncillaryBuffer::new(&mut space);
                    let descriptors = [lock.as_fd()];
                    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
                    let parts = [IoSlice::new(&reply)];
                    sendmsg(&stream, &parts, &mut ancillary, SendFlags::empty()).unwrap();
                }
                "AddMatch" => {
                    let all = [answer(serial, "", &[], 0), signal(true), signal(false)].concat();
                    stream.write_all(&all).unwrap();
                }
                _ => stream.write_all(&answer(serial, "", &[], 0)).unwrap(),
            }
            called.push(member);
        }
    }
}

/// logind on a scripted bus that accepts `clients` connections, and the calls that it receives.
fn logind(
    clients: usize,
    lock: UnixStream,
) -> (TempDir, SystemdLogind, thread::JoinHandle<Vec<String>>) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("bus");
    let listener = UnixListener::bind(&socket).unwrap();
    let serve = move || {
        let clients = listener.incoming().take(clients);
        clients.flat_map(|stream| serve(stream.unwrap(), 5_000_000, &lock)).collect()
    };
    let served = thread::spawn(serve);
    let logind = SystemdLogind::new(&socket, &directory.path().join("conf"));
    (directory, logind, served)
}

#[test]
fn longest_delay_is_a_property() {
    let (_directory, logind, served) = logind(1, UnixStream::pair().unwrap().0);
    assert_eq!(logind.max_inhibit_delay().unwrap(), Duration::from_secs(5));
    assert_eq!(served.join().unwrap(), ["Hello", "Get"]);
}

#[test]
fn lock_is_held_until_it_is_dropped() {
    let (theirs, mut ours) = UnixStream::pair().unwrap();
    let (_directory, logind, served) = logind(1, theirs);
    let lock = logind.inhibit().unwrap();
    assert_eq!(served.join().unwrap(), ["Hello", "Inhibit"]);
    ours.set_nonblocking(true).unwrap();
    let held = ours.read(&mut [0]).unwrap_err();
    assert_eq!(held.kind(), io::ErrorKind::WouldBlock, "another end is open");
    drop(lock);
    assert_eq!(ours.read(&mut [0]).unwrap(), 0);
}

#[test]
fn watch_reports_begin_and_end_of_shutdown() {
    let (_directory, logind, _served) = logind(1, UnixStream::pair().unwrap().0);
    let mut events = logind.watch().unwrap();
    assert_eq!((events.blocking_recv(), events.blocking_recv()), (Some(true), Some(false)));
}

#[test]
fn ask_for_delay_writes_config_and_reloads_logind() {
    let (directory, logind, served) = logind(1, UnixStream::pair().unwrap().0);
    logind.set_max_inhibit_delay(Duration::from_secs(90)).unwrap();
    let written = fs::read_to_string(directory.path().join("conf/99-kubelet.conf")).unwrap();
    assert_eq!(written, "[Login]\nInhibitDelayMaxSec=90\n");
    assert_eq!(served.join().unwrap(), ["Hello", "KillUnit"]);
}

#[test]
fn machine_without_a_bus_is_an_error_with_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none");
    let error = SystemdLogind::new(&socket, directory.path()).inhibit().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().contains("none"), "{error}");
}

#[test]
fn calls_work_on_a_real_bus() {
    let Some(daemon) = Daemon::start() else { return };
    let (socket, directory) = (daemon.socket(), tempfile::tempdir().unwrap());
    let mut bus = Bus::connect(&socket).unwrap();
    bus.add_match("type='signal',member='NameOwnerChanged'").unwrap();
    let of_bus = |member| Method {
        destination: "org.freedesktop.DBus",
        path: "/org/freedesktop/DBus",
        interface: "org.freedesktop.DBus",
        member,
    };
    let id: Message = bus.call(of_bus("GetId"), &[]).unwrap();
    assert_eq!(id.text().map(|id| id.len()), Some(32));
    let error = bus.call(of_bus("GetNameOwner"), &[Argument::Text("no.body")]).unwrap_err();
    assert!(error.to_string().contains("NameHasNoOwner"), "{error}");
    // logind is not on this bus.
    let logind = SystemdLogind::new(&socket, directory.path());
    assert!(logind.max_inhibit_delay().is_err());
    let _other = Bus::connect(&socket).unwrap();
    loop {
        let signal = bus.next_signal().unwrap();
        if signal.member.as_deref() == Some("NameOwnerChanged") {
            assert!(signal.text().is_some_and(|name| name.starts_with(":1.")));
            return;
        }
    }
}
