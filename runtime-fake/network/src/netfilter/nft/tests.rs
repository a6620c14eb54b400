//! The form of the messages, and the parsing of responses.
#![allow(clippy::unwrap_used)]

use rstest::rstest;

use super::*;

#[test]
fn nft_messages_are_complete_and_aligned() {
    let rules = Rules {
        bridge: "crib12345678".to_owned(),
        subnets: vec![PodSubnet { network: "10.200.7.0".parse().unwrap(), prefix_len: 22 }],
        ports: vec![PortRule {
            transport: 6,
            host: None,
            host_port: 12000,
            pod: "10.200.7.2".parse().unwrap(),
            pod_port: 80,
        }],
    };
    let bytes = replace(&rules);
    let (mut rest, mut kinds) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
        assert_eq!(length % 4, 0);
        kinds.push(u16::from_ne_bytes(rest[4..6].try_into().unwrap()));
        rest = &rest[length..];
    }
    assert_eq!(
        kinds,
        [
            BATCH_BEGIN,
            NEW_TABLE,
            DELETE_TABLE,
            NEW_TABLE,
            NEW_CHAIN,
            NEW_CHAIN,
            NEW_RULE,
            NEW_RULE,
            BATCH_END
        ]
    );
    // The mask of /22.
    assert!(bytes.windows(4).any(|bytes| bytes == [255, 255, 252, 0]));
}

#[rstest]
#[case(INET, FORWARD, DROP, Some((true, true)))]
#[case(IPV4, FORWARD, DROP, Some((true, false)))]
#[case(IPV6, FORWARD, DROP, Some((false, true)))]
#[case(IPV4, FORWARD, 1, None)]
#[case(IPV4, POSTROUTING, DROP, None)]
fn drop_policy_of_chain_is_detected(
    #[case] family: u8,
    #[case] hook: u32,
    #[case] policy: u32,
    #[case] expected: Option<(bool, bool)>,
) {
    let hook = [number(1, hook), number(2, 0)].concat();
    let parts = [text(1, "filter"), nested(4, &hook), number(5, policy)];
    let payload = [&[family, 0, 0, 0][..], &parts.concat()].concat();
    assert_eq!(drops(NEW_CHAIN, &payload), expected);
    // A chain without a hook.
    let plain = [&[family, 0, 0, 0][..], &text(1, "filter")].concat();
    assert_eq!(drops(NEW_CHAIN, &plain), None);
}

#[test]
fn tables_are_recognised_by_name() {
    let payload = [&[INET, 0, 0, 0][..], &number(2, 0), &text(1, "filter")].concat();
    assert_eq!(table_name(NEW_TABLE, &payload), Some("filter".to_owned()));
    assert_eq!(table_name(NEW_CHAIN, &payload), None);
    assert_eq!(table_name(NEW_TABLE, &payload[..6]), None);
}
