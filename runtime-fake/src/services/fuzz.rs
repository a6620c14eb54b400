//! Fuzz targets: queries of pods to the DNS server, and answers of the host's name servers.
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use fuzz_target::Target;

use super::message::{Data, Outcome, Record, answers, ask, kind, query};

pub(crate) const TARGETS: &[Target] = &[
    Target::new("dns_query", queries, query_seeds),
    Target::new("dns_answer", from_servers, answer_seeds),
];

/// An answer repeats the query's id, and does not exceed the limit.
fn queries(data: &[u8]) {
    let Ok(query) = query(data) else {
        return;
    };
    let answer = query.answer(Outcome::NoError, &vec![record(); 9], query.limit());
    assert_eq!(answer[..2], data[..2]);
    assert!(answer.len() <= query.limit().max(data.len() + 11));
}

/// Forwarded records can be parsed again.
fn from_servers(data: &[u8]) {
    let Some((_, records)) = answers(data) else {
        return;
    };
    let asked = query(&ask(1, "web", kind::A).unwrap()).unwrap();
    let whole = asked.answer(Outcome::NoError, &records, usize::MAX);
    let (outcome, again) = answers(&whole).unwrap();
    assert_eq!(outcome, 0);
    assert!(again.len() <= records.len());
}

fn record() -> Record {
    Record { name: String::new(), data: Data::A([10, 0, 0, 1].into()) }
}

fn query_seeds() -> Vec<Vec<u8>> {
    let plain = ask(7, "web.default.svc.cluster.local", kind::SRV).unwrap();
    let mut edns = plain.clone();
    edns[11] = 1;
    edns.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    vec![plain, edns]
}

fn answer_seeds() -> Vec<Vec<u8>> {
    let asked = query(&query_seeds()[0]).unwrap();
    let alias =
        Record { name: "other.example".to_owned(), data: Data::Cname("web.example".to_owned()) };
    let answer = asked.answer(Outcome::NoError, &[alias, record()], 512);
    // Its last record's name is a pointer to the question.
    vec![answer]
}
