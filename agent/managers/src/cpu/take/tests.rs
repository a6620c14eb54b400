//! Results of Kubernetes' own code on machines of several forms.
#![allow(clippy::unwrap_used)]

use compact::Map;

use super::super::distribute::distributed;
use super::super::layout::Cpu;
use super::super::set::{format, parse};
use super::*;

/// Lines of `topology number sockets cores cpus`, where each CPU is `core.socket.node.cache`, and of `take topology mode
/// available count result`, as recorded from Kubernetes 1.36.2, pkg/kubelet/cm/cpumanager/cpu_assignment.go.
const VECTORS: &str = include_str!("../../../tests/vectors/cpu_assignment.tsv");

fn layout(sockets: &str, cores: &str, text: &str) -> Layout {
    let cpu = |text: &str| {
        let numbers: Vec<usize> = text.split('.').map(|number| number.parse().unwrap()).collect();
        let [core, socket, node, cache] = numbers[..] else { panic!("{text}") };
        Cpu { core, socket, node, cache }
    };
    let cpus = Cpus(text.split_whitespace().map(cpu).enumerate().collect::<Map<_, _>>());
    let count = |part| cpus.parts(part).len();
    Layout {
        sockets: sockets.parse().unwrap(),
        cores: cores.parse().unwrap(),
        nodes: count(Part::Node),
        caches: count(Part::Cache),
        cpus,
    }
}

#[test]
fn processors_are_taken_as_by_a_kubelet() {
    let mut layouts = Vec::new();
    let (mut count, mut wrong) = (0, Vec::new());
    for line in VECTORS.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["topology", _, sockets, cores, cpus] => layouts.push(layout(sockets, cores, cpus)),
            ["take", number, mode, available, wanted, expected] => {
                let layout = &layouts[number.parse::<usize>().unwrap()];
                let (available, wanted) = (parse(available).unwrap(), wanted.parse().unwrap());
                let groups = layout.cpus_per_core();
                let taken = match mode {
                    "packed" => packed(layout, &available, wanted, Order::Packed, false),
                    "spread" => packed(layout, &available, wanted, Order::Spread, false),
                    "uncore" => packed(layout, &available, wanted, Order::Packed, true),
                    "numa" => distributed(layout, &available, wanted, 1, Order::Packed),
                    "numagroups" => distributed(layout, &available, wanted, groups, Order::Packed),
                    other => panic!("{other}"),
                };
                let taken = taken.map_or_else(|error| format!("!{error}"), |set| format(&set));
                count += 1;
                if taken != expected {
                    wrong.push(format!("{line}: {taken}"));
                }
            }
            _ => panic!("{line}"),
        }
    }
    assert_eq!(count, 600);
    assert_eq!(wrong, [""; 0]);
}
