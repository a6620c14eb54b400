//! Fuzz targets: SPDY frames and headers, and whole connections with a client that sends arbitrary bytes.
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    runtime::Builder,
};
use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role as End};

use super::{
    Channels, Codec, MAX_MESSAGE, Role, Tunnel, authority, connect,
    frame::{self, Frame, HEAD, Head, INITIAL_WINDOW_SIZE, MAX_CONTROL},
    headers::{Deflater, Headers, Inflater},
    websocket_config,
};
use fuzz_target::Target;

/// Every target of this package.
#[must_use]
pub fn targets() -> Vec<Target> {
    let mut targets = authority::fuzz::TARGETS.to_vec();
    targets.extend([
        Target::new("spdy_frame", spdy_frame, frames),
        Target::new("spdy_headers", spdy_headers, blocks),
        Target::new("spdy_connection", spdy_connection, conversations).slow(300),
        Target::new("websocket_channels", websocket_channels, messages).slow(300),
        Target::new("websocket_tunnel", websocket_tunnel, messages).slow(300),
    ]);
    targets
}

#[test]
fn fuzz_targets_pass_on_corpus_and_mutations() {
    fuzz_target::check(&targets());
}

/// Decoding, encoding and decoding again gives the same frame, and no frame exceeds the limit.
fn spdy_frame(data: &[u8]) {
    let Some((first, payload)) = data.split_first_chunk::<HEAD>() else {
        return;
    };
    match frame::head(*first) {
        Ok(Head::Data { id, fin, length }) => {
            assert_eq!(frame::head(frame::data_head(id, fin, length)), frame::head(*first));
        }
        Ok(Head::Control { kind, flags, length }) => {
            assert!(length <= MAX_CONTROL);
            let payload = &payload[..payload.len().min(length)];
            let Ok(read) = frame::control(kind, flags, payload) else {
                return;
            };
            let mut written = Vec::new();
            read.encode(&mut written);
            let Some((first, payload)) = written.split_first_chunk::<HEAD>() else {
                assert_eq!(read, Frame::Unknown);
                return;
            };
            match frame::head(*first) {
                Ok(Head::Control { kind, flags, length }) => {
                    assert_eq!(length, payload.len());
                    assert_eq!(frame::control(kind, flags, payload), Ok(read));
                }
                other => panic!("{other:?}"),
            }
        }
        Err(_) => {}
    }
}

fn all_frames() -> Vec<Frame> {
    let block = Deflater::new().block(&Headers::of(&[("streamType", "error"), ("port", "80")]));
    vec![
        Frame::SynStream { id: 1, fin: false, unidirectional: false, block: block.clone() },
        Frame::SynReply { id: 1, fin: true, block: block.clone() },
        Frame::Headers { id: 3, fin: false, block },
        Frame::Reset { id: 1, status: 5 },
        Frame::Settings(vec![(INITIAL_WINDOW_SIZE, 1024), (4, 100)]),
        Frame::Ping(1),
        Frame::GoAway { last: 1, status: 0 },
        Frame::WindowUpdate { id: 1, delta: 65536 },
    ]
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out
}

fn frames() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = all_frames().iter().map(encoded).collect();
    all.push(frame::data_head(1, true, 0).to_vec());
    all
}

/// Header blocks of one connection, each after its length: none inflates beyond the limit, and the decoded
/// headers can be encoded again.
fn spdy_headers(mut data: &[u8]) {
    let mut inflater = Inflater::new();
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (block, rest) = rest.split_at(length);
        data = rest;
        let Ok(headers) = inflater.headers(block) else {
            return;
        };
        let again = Inflater::new().headers(&Deflater::new().block(&headers));
        // Invalid UTF-8 grows when replaced, perhaps beyond the limit.
        assert!(again.is_err() || again == Ok(headers));
    }
}

fn blocks() -> Vec<Vec<u8>> {
    let mut deflater = Deflater::new();
    let mut out = Vec::new();
    for id in ["0", "1", "12"] {
        let pairs = [("streamType", "data"), ("requestID", id), ("several", "a\0b")];
        let block = deflater.block(&Headers::of(&pairs));
        out.extend(u16::try_from(block.len()).unwrap().to_be_bytes());
        out.extend(block);
    }
    vec![out]
}

/// Runs a future to completion and fails if it does not complete.
fn finish(work: impl Future<Output = ()>) {
    let mut builder = Builder::new_current_thread();
    builder.enable_all();
    // With paused time the clock advances as soon as every task waits, and the tasks here wait for the input only.
    builder.start_paused(true);
    let runtime = builder.build().unwrap();
    let ended =
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(600), work).await });
    assert!(ended.is_ok(), "the connection does not end");
}

/// A connection on which a client sends only `data`, and a future of all bytes that it receives.
fn client(data: &[u8]) -> (DuplexStream, impl Future<Output = Vec<u8>>) {
    let (ours, mut theirs) = duplex(256 << 10);
    let data = data[..data.len().min(128 << 10)].to_vec();
    let heard = async move {
        let mut heard = Vec::new();
        let _ = theirs.write_all(&data).await;
        let _ = theirs.shutdown().await;
        let _ = theirs.read_to_end(&mut heard).await;
        heard
    };
    (ours, heard)
}

/// The connection ends, opens each stream once, delivers no more bytes than it received, and answers in
/// proportion.
fn spdy_connection(data: &[u8]) {
    finish(async {
        let (ours, heard) = client(data);
        let (connection, mut streams, driver) = connect(ours, Role::Server);
        drop(connection);
        let taken = async {
            let (mut ids, mut length) = (BTreeSet::new(), 0);
            let mut readers = tokio::task::JoinSet::new();
            while let Some(mut stream) = streams.recv().await {
                assert!(ids.insert(stream.id) && stream.id % 2 == 1, "stream {}", stream.id);
                readers.spawn(tasks::boxed(async move {
                    let mut length = 0;
                    while let Some(chunk) = stream.inlet.next().await {
                        length += chunk.len();
                    }
                    stream.outlet.end().await;
                    length
                }));
            }
            while let Some(read) = readers.join_next().await {
                length += read.unwrap();
            }
            length
        };
        let (_, length, heard) = tokio::join!(driver.run(), taken, heard);
        assert!(length <= data.len(), "{length} bytes of {}", data.len());
        assert!(heard.len() <= 1024 + 64 * data.len(), "{} bytes of answers", heard.len());
    });
}

fn conversations() -> Vec<Vec<u8>> {
    let mut deflater = Deflater::new();
    let mut open = |id| {
        let block = deflater.block(&Headers::of(&[("streamType", "data"), ("requestID", "0")]));
        encoded(&Frame::SynStream { id, fin: false, unidirectional: false, block })
    };
    let (first, second) = (open(1), open(3));
    let said = [frame::data_head(1, false, 5).to_vec(), b"hello".to_vec()].concat();
    let end = frame::data_head(1, true, 0).to_vec();
    let control: Vec<u8> = all_frames()[4..].iter().flat_map(encoded).collect();
    vec![
        [first.clone(), said.clone(), second.clone(), control, end.clone()].concat(),
        [first.clone(), said, end].concat(),
        [first, second].concat(),
    ]
}

fn websocket(data: &[u8], work: impl AsyncFnOnce(WebSocketStream<DuplexStream>)) {
    finish(async {
        let (ours, heard) = client(data);
        let served = async {
            let socket =
                WebSocketStream::from_raw_socket(ours, End::Server, Some(websocket_config())).await;
            work(socket).await;
        };
        let (heard, ()) = tokio::join!(heard, served);
        assert!(heard.len() <= 1024 + 4 * data.len(), "{} bytes of answers", heard.len());
    });
}

/// Channels deliver no more bytes than they received, for each protocol that the first byte selects.
fn websocket_channels(data: &[u8]) {
    let Some((first, data)) = data.split_first() else {
        return;
    };
    let codec = if first & 1 == 0 { Codec::Binary } else { Codec::Base64 };
    websocket(data, async |socket| {
        let mut channels = Channels::new(socket, codec, first & 2 == 0, Role::Server);
        let (mut zero, mut four) = (channels.inlet(0), channels.inlet(4));
        let read = async |inlet: &mut super::Inlet| {
            let mut length = 0;
            while let Some(chunk) = inlet.next().await {
                length += chunk.len();
            }
            length
        };
        let outlet = channels.outlet(1);
        let write = async move {
            let _ = outlet.send(Bytes::from_static(b"out")).await;
        };
        let (_, zero, four, ()) =
            tokio::join!(channels.run(), read(&mut zero), read(&mut four), write);
        assert!(zero + four <= data.len());
    });
}

/// A tunnel delivers no more bytes than it received.
fn websocket_tunnel(data: &[u8]) {
    websocket(data, async |socket| {
        let mut bytes = Vec::new();
        let _ = Tunnel::new(socket).read_to_end(&mut bytes).await;
        assert!(bytes.len() <= data.len());
    });
}

/// A client's frame (RFC 6455, section 5.2), masked with zeros.
fn message(opcode: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0x80 | opcode];
    match u8::try_from(body.len()) {
        Ok(length) if length < 126 => out.push(0x80 | length),
        _ => {
            out.push(0x80 | 126);
            out.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        }
    }
    out.extend([0; 4]);
    out.extend(body);
    out
}

fn messages() -> Vec<Vec<u8>> {
    let binary = message(2, b"\x00typed\n");
    let text = message(1, b"0Zm9vCgo=");
    let end = message(2, b"\xff\x00");
    let close = message(8, &[3, 232]);
    let long = message(2, &[4; 300]);
    let mut split = message(2, b"\x00first");
    split[0] = 2;
    split.extend(message(0, b"second"));
    let huge = [&[0x82, 0xff][..], &(MAX_MESSAGE as u64 + 1).to_be_bytes(), &[0; 4]].concat();
    vec![
        [&[0][..], &binary, &end, &message(9, b"ping"), &close].concat(),
        [&[1][..], &text, &close].concat(),
        [&[2][..], &long, &split].concat(),
        huge,
        binary,
        [long, split, close].concat(),
    ]
}
