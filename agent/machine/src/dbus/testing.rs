//! A private bus for tests, with a real dbus-daemon, and services on it.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::message::Kind;
use super::value::Value;
use super::wire::Writer;
use super::{Bus, Path};

/// A dbus-daemon that ends when this value is dropped.
pub(crate) struct Daemon {
    process: Child,
    directory: TempDir,
}

impl Daemon {
    /// `None`, after a message, if the machine has no dbus-daemon.
    pub(crate) fn start() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let address = format!("unix:path={}", directory.path().join("bus").display());
        let config = directory.path().join("conf");
        let policy =
            "<allow send_destination=\"*\"/><allow receive_sender=\"*\"/><allow own=\"*\"/>";
        let text = format!(
            "<busconfig><listen>{address}</listen><auth>EXTERNAL</auth><policy context=\"default\">{policy}</policy></busconfig>"
        );
        fs::write(&config, text).unwrap();
        let process = Command::new("dbus-daemon")
            .args([&format!("--config-file={}", config.display()), "--nofork", "--print-address"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(process) = process else {
            eprintln!("skipped: there is no dbus-daemon on this machine");
            return None;
        };
        let mut daemon = Self { process, directory };
        let mut line = String::new();
        let stdout = daemon.process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert!(line.starts_with("unix:path="), "{line}");
        Some(daemon)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("bus")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A service's answer to a call.
pub(crate) enum Answer {
    Nothing,
    Path(String),
    /// An error of this name.
    Error(&'static str),
}

/// A JobRemoved signal: the job's number and path, the unit, and the result.
pub(crate) struct JobRemoved(
    pub(crate) u32,
    pub(crate) String,
    pub(crate) String,
    pub(crate) String,
);

/// The reaction to a call: signals before the answer, the answer, and signals after it.
pub(crate) type Reaction = (Vec<JobRemoved>, Answer, Vec<JobRemoved>);

/// A string in a header field.
struct Field(u8, &'static str, String);

fn message(
    kind: u8,
    serial: u32,
    texts: &[Field],
    reply: Option<u32>,
    signature: &str,
    body: &Writer,
) -> Vec<u8> {
    let mut fields = Writer::default();
    for Field(code, kind, text) in texts {
        fields.field(*code, kind, text);
    }
    if let Some(reply) = reply {
        fields.align(8);
        fields.0.push(5);
        fields.signature("u");
        fields.number(reply as usize);
    }
    if !signature.is_empty() {
        fields.align(8);
        fields.0.push(8);
        fields.signature("g");
        fields.signature(signature);
    }
    let mut message = Writer(vec![b'l', kind, 0, 1]);
    message.number(body.0.len());
    message.number(serial as usize);
    message.number(fields.0.len());
    message.0.extend_from_slice(&fields.0);
    message.align(8);
    message.0.extend_from_slice(&body.0);
    message.0
}

fn text(code: u8, kind: &'static str, text: &str) -> Field {
    Field(code, kind, text.to_owned())
}

fn job_removed(serial: u32, object: &str, interface: &str, signal: &JobRemoved) -> Vec<u8> {
    let JobRemoved(number, job, unit, result) = signal;
    let mut body = Writer::default();
    body.number(*number as usize);
    for one in [job, unit, result] {
        body.text(one);
    }
    let fields = [text(1, "o", object), text(2, "s", interface), text(3, "s", "JobRemoved")];
    message(4, serial, &fields, None, "uoss", &body)
}

/// Serves calls under a bus name until the bus ends. Returns once it owns the name.
pub(crate) fn serve(
    socket: &Path,
    name: &str,
    object: &'static str,
    interface: &'static str,
    mut react: impl FnMut(&str, &[Value]) -> Reaction + Send + 'static,
) {
    let mut bus = Bus::connect(socket).unwrap();
    let mut body = Writer::default();
    body.text(name);
    body.number(0);
    let of_bus = "org.freedesktop.DBus";
    let fields = [
        text(1, "o", "/org/freedesktop/DBus"),
        text(2, "s", of_bus),
        text(3, "s", "RequestName"),
        text(6, "s", of_bus),
    ];
    let mut serial = 100;
    bus.stream.write_all(&message(1, serial, &fields, None, "su", &body)).unwrap();
    while bus.receive().unwrap().reply_serial != Some(serial) {}
    bus.stream.set_read_timeout(None).unwrap();
    let mut write = move |bus: &mut Bus, bytes: &dyn Fn(u32) -> Vec<u8>| {
        serial += 1;
        // The bus may have ended.
        let _ = bus.stream.write_all(&bytes(serial));
    };
    std::thread::spawn(move || {
        while let Ok(call) = bus.receive() {
            if call.kind != Kind::Call {
                continue;
            }
            let values = call.values().unwrap();
            let (before, answer, after) = react(call.member.as_deref().unwrap(), &values);
            for signal in &before {
                write(&mut bus, &|serial| job_removed(serial, object, interface, signal));
            }
            let to = text(6, "s", call.sender.as_deref().unwrap());
            let reply = Some(call.serial);
            write(&mut bus, &|serial| {
                let to = text(to.0, to.1, &to.2);
                let mut body = Writer::default();
                match &answer {
                    Answer::Nothing => message(2, serial, &[to], reply, "", &body),
                    Answer::Path(path) => {
                        body.text(path);
                        message(2, serial, &[to], reply, "o", &body)
                    }
                    Answer::Error(name) => {
                        body.text("as the test says");
                        message(3, serial, &[text(4, "s", name), to], reply, "s", &body)
                    }
                }
            });
            for signal in &after {
                write(&mut bus, &|serial| job_removed(serial, object, interface, signal));
            }
        }
    });
}
