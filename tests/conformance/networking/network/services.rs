//! The stream of Services: its addresses belong to the client while it is open.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use cri::services::{Balancer, ServeRequest, ServeResponse, Table};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::runtime_in_netns;
use crate::support::*;

/// An open stream, and its first response.
pub(super) struct Opened {
    pub(super) requests: mpsc::Sender<ServeRequest>,
    pub(super) responses: Streaming<ServeResponse>,
    pub(super) first: ServeResponse,
}

pub(super) async fn open(runtime: &Runtime, addresses: u32) -> Result<Opened, Status> {
    let (requests, stream) = mpsc::channel(4);
    let table = None;
    requests.try_send(ServeRequest { addresses, table }).unwrap();
    let mut client = runtime.client.services.clone();
    let responses = client.serve(ReceiverStream::new(stream)).await?;
    let mut responses = responses.into_inner();
    let first = responses.message().await?.unwrap();
    Ok(Opened { requests, responses, first })
}

#[tokio::test]
async fn addresses_of_services_are_free_when_their_stream_ends() {
    harness::needs!(Namespaces);
    let (_netns, runtime) = runtime_in_netns(Some("--pod-cidr=10.77.0.0/29")).await;
    // The network has five addresses.
    assert_eq!(code(open(&runtime, 5).await.map(drop)), Code::ResourceExhausted);
    for _ in 0..3 {
        let opened = open(&runtime, 4).await.unwrap();
        let addresses = opened.first.addresses.iter().chain([&opened.first.dns_server]);
        let addresses: BTreeSet<Ipv4Addr> = addresses.map(|text| text.parse().unwrap()).collect();
        let expected = (2..=6).map(|last| Ipv4Addr::new(10, 77, 0, last));
        assert_eq!(addresses, expected.collect());
        let error = runtime.client.run_pod(runtime.sandbox("pod")).await;
        assert_eq!(code(error), Code::ResourceExhausted);
    }
    // The last stream has ended, or is ending: then there is room for pods.
    let mut opened = open(&runtime, 0).await.unwrap();
    runtime.pod("pod").await.unwrap();
    // Later requests lease all addresses or none, next to those of the pods, and do not change the table.
    for (addresses, leased, problems) in [(4, 0, 1), (2, 2, 0), (2, 0, 1), (1, 1, 0), (1, 0, 1)] {
        let table = None;
        let request = ServeRequest { addresses, table };
        opened.requests.send(request).await.unwrap();
        let answer = opened.responses.message().await.unwrap().unwrap();
        let counts = (answer.addresses.len(), answer.problems.len());
        assert_eq!(counts, (leased, problems), "{answer:?}");
    }
    drop(opened);
}

#[tokio::test]
async fn malformed_tables_end_the_stream() {
    harness::needs!(Namespaces);
    let (_netns, runtime) = runtime_in_netns(None).await;
    assert_eq!(code(open(&runtime, 4096).await.map(drop)), Code::InvalidArgument);
    let mut opened = open(&runtime, 1).await.unwrap();
    let table = |address: &str, port| {
        let balancer = Balancer { address: address.to_owned(), port, ..Balancer::default() };
        Some(Table { balancers: vec![balancer], ..Table::default() })
    };
    for (table, expected) in
        [(table("", 30_080), None), (None, None), (table("web", 80), Some(Code::InvalidArgument))]
    {
        let addresses = 0;
        let request = ServeRequest { addresses, table };
        opened.requests.send(request).await.unwrap();
        let answer = opened.responses.message().await;
        assert_eq!(answer.err().map(|status| status.code()), expected);
    }
}
