//! The examples of RFC 7541, and invalid blocks.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .bytes()
        .filter(|b| !b.is_ascii_whitespace())
        .map(|b| u8::try_from(char::from(b).to_digit(16).unwrap()).unwrap())
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn field(name: &str, value: &str) -> Field {
    Field {
        name: Bytes::copy_from_slice(name.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
    }
}

fn text(fields: &[Field]) -> String {
    let line = |field: &Field| {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        format!("{}: {}\n", text(&field.name), text(&field.value))
    };
    fields.iter().map(line).collect()
}

const FIRST: &str = ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\n";
const SECOND: &str =
    ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\ncache-control: no-cache\n";
const THIRD: &str = ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\ncustom-key: custom-value\n";

#[rstest]
#[case::plain_strings([
    "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
    "8286 84be 5808 6e6f 2d63 6163 6865",
    "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
])]
#[case::huffman_coded_strings([
    "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
    "8286 84be 5886 a8eb 1064 9cbf",
    "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
])]
fn decoder_reads_consecutive_blocks_of_rfc_7541(#[case] blocks: [&str; 3]) {
    let mut decoder = Decoder::default();
    let lists = blocks.map(|block| text(&decoder.decode(&bytes(block)).unwrap()));
    assert_eq!(lists, [FIRST, SECOND, THIRD]);
}

/// RFC 7541, C.5: a table of 256 bytes, which evicts entries.
#[test]
fn decoder_evicts_oldest_entries_of_full_table() {
    let mut decoder = Decoder::default();
    decoder.decode(&bytes("3fe101")).unwrap();
    let blocks = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d 546e \
         1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
    ];
    let lists = blocks.map(|block| text(&decoder.decode(&bytes(block)).unwrap()));
    let rest = "cache-control: private\ndate: Mon, 21 Oct 2013 20:13:21 GMT\nlocation: https://www.example.com\n";
    assert_eq!(lists[0], format!(":status: 302\n{rest}"));
    assert_eq!(lists[1], format!(":status: 307\n{rest}"));
    // The second :status evicted the first: the oldest entry is now cache-control.
    assert_eq!(text(&decoder.decode(&[0xc1]).unwrap()), "cache-control: private\n");
    assert_eq!(decoder.decode(&[0xc2]), Err(HpackError::Index));
}

#[test]
fn entry_larger_than_table_empties_it() {
    let mut decoder = Decoder::default();
    let block = [&bytes("4001 6101 62")[..], &bytes("4001 637f a11f"), &[b'x'; 4128]].concat();
    assert_eq!(decoder.decode(&block).unwrap().len(), 2);
    assert_eq!(decoder.decode(&[0xbe]), Err(HpackError::Index));
}

#[rstest]
#[case::index_0("80", HpackError::Index)]
#[case::index_beyond_the_tables("be", HpackError::Index)]
#[case::name_index_beyond_the_tables("7f00 0161", HpackError::Index)]
#[case::literal_without_value("0001 61", HpackError::Truncated)]
#[case::string_longer_than_the_block("0005 61", HpackError::Truncated)]
#[case::integer_without_end("ffff ffff", HpackError::Truncated)]
#[case::integer_too_long("ffff ffff ffff ffff", HpackError::Integer)]
#[case::table_size_beyond_the_limit("3fe2 1f", HpackError::TableSize)]
#[case::table_size_after_a_field("8220", HpackError::TableSize)]
#[case::huffman_padding_of_zeros("0081 18 00", HpackError::Huffman)]
#[case::huffman_padding_of_a_byte("0082 1fff 00", HpackError::Huffman)]
#[case::huffman_end_of_string("0084 ffff ffff 00", HpackError::Huffman)]
fn decoder_rejects_invalid_block(#[case] block: &str, #[case] error: HpackError) {
    assert_eq!(Decoder::default().decode(&bytes(block)), Err(error));
}

#[test]
fn decoder_rejects_list_larger_than_limit() {
    let mut decoder = Decoder::default();
    let large = [&bytes("4001 617f a11e")[..], &[b'x'; 4000]].concat();
    assert_eq!(decoder.decode(&large).unwrap()[0].value.len(), 4000);
    assert_eq!(decoder.decode(&[0xbe; 16]).unwrap().len(), 16);
    assert_eq!(decoder.decode(&[0xbe; 17]), Err(HpackError::ListSize));
}

proptest! {
    #[test]
    fn decoder_reads_what_is_encoded(list in prop::collection::vec((".{0,40}", ".{0,300}"), 0..20)) {
        let fields: Vec<Field> = list.iter().map(|(name, value)| field(name, value)).collect();
        prop_assert_eq!(Decoder::default().decode(&encode(&fields)), Ok(fields));
    }

    #[test]
    fn decoder_survives_arbitrary_blocks(blocks in prop::collection::vec(any::<Vec<u8>>(), 1..4)) {
        let mut decoder = Decoder::default();
        for block in blocks {
            if decoder.decode(&block).is_err() {
                break;
            }
        }
    }
}
