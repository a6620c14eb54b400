//! Every metric has values, with the labels of its descriptor.

use super::*;

#[test]
fn metric_names_are_sorted_and_unique() {
    let names: Vec<_> = ALL.iter().map(|d| d.name).collect();
    assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    assert_eq!(names.len(), 56);
}

#[test]
fn metric_values_carry_descriptor_labels() {
    let mut subject = Subject {
        disk: Some(("/dev/vda".to_owned(), Disk::default())),
        network: vec![Traffic::default()],
        cpu_limits: [1, 1, 1],
        ..Subject::default()
    };
    let some = Some(1);
    let pressure = Some(Default::default());
    subject.usage.io.devices = vec![DeviceIo { device: "8:0".to_owned(), ..DeviceIo::default() }];
    subject.usage.huge_pages.insert("2Mi".to_owned(), HugePages { now: some, most: some });
    let (cpu, memory) = (&mut subject.usage.cpu, &mut subject.usage.memory);
    (cpu.total, cpu.user, cpu.system, cpu.periods) = (some, some, some, some);
    (cpu.throttled, cpu.throttled_periods, cpu.pressure) = (some, some, pressure);
    (memory.usage, memory.max_usage, memory.rss, memory.cache) = (some, some, some, some);
    (memory.mapped_file, memory.kernel, memory.swap) = (some, some, some);
    (memory.failures, memory.faults, memory.major_faults) = (some, some, some);
    (memory.oom_kills, memory.pressure) = (some, pressure);
    subject.usage.io.pressure = pressure;
    subject.usage.tasks.max_descriptors = some;
    for descriptor in ALL {
        let values = (descriptor.values)(&subject);
        assert!(!values.is_empty(), "{}", descriptor.name);
        for (labels, _) in values {
            assert_eq!(labels.len(), descriptor.labels.len(), "{}", descriptor.name);
        }
    }
}

#[test]
fn unavailable_metrics_are_omitted() {
    let told: Vec<_> = ALL
        .iter()
        .filter(|d| !(d.values)(&Subject::default()).is_empty())
        .map(|d| d.name)
        .collect();
    assert!(!told.contains(&"container_memory_rss"), "{told:?}");
    assert!(!told.contains(&"container_network_receive_bytes_total"), "{told:?}");
}
