//! ◆ Looks names up in the table.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    message::{Data, Record, kind},
    table::{Name, Table},
};

/// Limit on chains of aliases.
const ALIASES: usize = 8;

/// The names of a table, for lookups.
#[derive(Debug, Default)]
pub(super) struct Zone {
    domain: String,
    names: BTreeMap<String, Name>,
    /// The names above others: they exist, without records (RFC 8020).
    parents: BTreeSet<String>,
}

/// The outcome of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lookup {
    /// These records; empty if the name has records of other types only.
    Found(Vec<Record>),
    /// The name does not exist.
    Missing,
    /// The records of an alias, and its target, which the host's name servers resolve.
    Elsewhere(Vec<Record>, String),
}

impl Zone {
    pub(super) fn new(table: &Table) -> Self {
        let names = table.names.iter();
        let names: BTreeMap<String, Name> = names.map(|n| (n.name.clone(), n.clone())).collect();
        let within = |name: &str| is_within(name, &table.zone);
        let parents = names.keys().filter(|name| within(name));
        let parents = parents.flat_map(|name| {
            let above = |name: &String| name.split_once('.').map(|(_, rest)| rest.to_owned());
            std::iter::successors(above(name), above).filter(|name| within(name))
        });
        let zone = [table.zone.clone()].into_iter();
        Self { parents: parents.chain(zone).collect(), domain: table.zone.clone(), names }
    }

    /// Looks up records of a type. `turn` rotates the order of the addresses.
    pub(super) fn lookup(&self, asked: &str, kind: u16, turn: usize) -> Lookup {
        let (mut records, mut current) = (Vec::new(), asked.to_owned());
        for _ in 0..ALIASES {
            let Some(found) = self.names.get(&current) else {
                return match is_within(&current, &self.domain) {
                    false => Lookup::Elsewhere(records, current),
                    true if self.parents.contains(&current) => Lookup::Found(records),
                    true => Lookup::Missing,
                };
            };
            let name = match current == asked {
                true => String::new(),
                false => current.clone(),
            };
            let record = |data| Record { name: name.clone(), data };
            let Some(alias) = &found.alias else {
                records.extend(found.data(kind, turn).into_iter().map(record));
                return Lookup::Found(records);
            };
            records.push(record(Data::Cname(alias.clone())));
            if kind == kind::CNAME {
                return Lookup::Found(records);
            }
            current = alias.to_ascii_lowercase();
        }
        Lookup::Missing
    }
}

impl Name {
    fn data(&self, asked: u16, turn: usize) -> Vec<Data> {
        let wants = |kind| asked == kind || asked == kind::ANY;
        let mut data = Vec::new();
        if wants(kind::A) && !self.addresses.is_empty() {
            let mut addresses = self.addresses.clone();
            addresses.rotate_left(turn % self.addresses.len());
            data.extend(addresses.into_iter().map(Data::A));
        }
        if wants(kind::SRV) {
            data.extend(
                self.servers
                    .iter()
                    .map(|(target, port)| Data::Srv { target: target.clone(), port: *port }),
            );
        }
        if wants(kind::PTR) {
            data.extend(self.pointer.clone().map(Data::Ptr));
        }
        data
    }
}

/// Whether the name is the domain, or in it.
fn is_within(name: &str, domain: &str) -> bool {
    let rest = name.strip_suffix(domain);
    !domain.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn zone() -> Zone {
        let name = |name: &str| Name { name: name.to_owned(), ..Name::default() };
        Zone::new(&Table {
            zone: "cluster.local".to_owned(),
            names: vec![
                Name { addresses: vec![[10, 0, 0, 1].into()], ..name("web.a.svc.cluster.local") },
                Name {
                    addresses: vec![[10, 0, 0, 2].into(), [10, 0, 0, 3].into()],
                    ..name("db.a.svc.cluster.local")
                },
                Name {
                    servers: vec![("web.a.svc.cluster.local".to_owned(), 80)],
                    ..name("_http._tcp.web.a.svc.cluster.local")
                },
                Name { alias: Some("Example.org".to_owned()), ..name("out.a.svc.cluster.local") },
                Name {
                    alias: Some("web.a.svc.cluster.local".to_owned()),
                    ..name("in.a.svc.cluster.local")
                },
                Name {
                    alias: Some("loop.a.svc.cluster.local".to_owned()),
                    ..name("loop.a.svc.cluster.local")
                },
                Name {
                    pointer: Some("web.a.svc.cluster.local".to_owned()),
                    ..name("1.0.0.10.in-addr.arpa")
                },
            ],
            balancers: Vec::new(),
        })
    }

    fn found(data: &[Data]) -> Lookup {
        let name = String::new;
        let records = data.iter().map(|data| Record { name: name(), data: data.clone() });
        Lookup::Found(records.collect())
    }

    #[rstest]
    #[case::address("web.a.svc.cluster.local", kind::A, found(&[Data::A([10, 0, 0, 1].into())]))]
    #[case::no_ipv6("web.a.svc.cluster.local", kind::AAAA, found(&[]))]
    #[case::second_first("db.a.svc.cluster.local", kind::A,
        found(&[Data::A([10, 0, 0, 3].into()), Data::A([10, 0, 0, 2].into())]))]
    #[case::server("_http._tcp.web.a.svc.cluster.local", kind::SRV,
        found(&[Data::Srv { target: "web.a.svc.cluster.local".to_owned(), port: 80 }]))]
    #[case::pointer("1.0.0.10.in-addr.arpa", kind::PTR, found(&[Data::Ptr("web.a.svc.cluster.local".to_owned())]))]
    #[case::namespace("a.svc.cluster.local", kind::A, found(&[]))]
    #[case::zone("cluster.local", kind::A, found(&[]))]
    #[case::unknown("other.a.svc.cluster.local", kind::A, Lookup::Missing)]
    #[case::with_search_list("example.org.a.svc.cluster.local", kind::A, Lookup::Missing)]
    #[case::endless("loop.a.svc.cluster.local", kind::A, Lookup::Missing)]
    #[case::other_domain("example.org", kind::A, Lookup::Elsewhere(vec![], "example.org".to_owned()))]
    #[case::looks_alike("notcluster.local", kind::A, Lookup::Elsewhere(vec![], "notcluster.local".to_owned()))]
    #[case::other_pointer("2.0.0.10.in-addr.arpa", kind::PTR,
        Lookup::Elsewhere(vec![], "2.0.0.10.in-addr.arpa".to_owned()))]
    fn lookup_returns_records_of_table(
        #[case] name: &str,
        #[case] kind: u16,
        #[case] expected: Lookup,
    ) {
        assert_eq!(zone().lookup(name, kind, 1), expected);
    }

    #[test]
    fn alias_is_followed_inside_the_zone_and_named_outside() {
        let alias =
            |target: &str| Record { name: String::new(), data: Data::Cname(target.to_owned()) };
        let target = Record {
            name: "web.a.svc.cluster.local".to_owned(),
            data: Data::A([10, 0, 0, 1].into()),
        };
        let zone = zone();
        let inside = zone.lookup("in.a.svc.cluster.local", kind::A, 0);
        assert_eq!(inside, Lookup::Found(vec![alias("web.a.svc.cluster.local"), target]));
        let outside = zone.lookup("out.a.svc.cluster.local", kind::A, 0);
        let records = vec![alias("Example.org")];
        assert_eq!(outside, Lookup::Elsewhere(records.clone(), "example.org".to_owned()));
        let itself = zone.lookup("out.a.svc.cluster.local", kind::CNAME, 0);
        assert_eq!(itself, Lookup::Found(records));
    }

    #[test]
    fn lookup_without_table_refers_every_name_upstream() {
        let lookup = Zone::default().lookup("web", kind::A, 0);
        assert_eq!(lookup, Lookup::Elsewhere(vec![], "web".to_owned()));
    }
}
