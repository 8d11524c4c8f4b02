//! Goal: the fuzz target of the claim's block starts from valid input, written by the code as it is. Method: the inputs are made
//! here and compared with those committed; with `-- --ignored` they are written anew.
#![expect(clippy::unwrap_used, reason = "tests")]

use celldisk::claim::{Found, Holder, Stamped, decode};
use celldisk::layout::CLAIM_HOST_NAME_BYTES_MAX;

/// The fuzzer's first byte: the checksum is left as it is, or repaired.
const AS_IT_IS: u8 = 0;
const REPAIRED: u8 = 1;
const SECTOR_BYTES: usize = 512;

fn stamp(host_name: String, released: bool) -> Stamped {
    let holder =
        Holder { host: 0x1111 << 64, boot: u128::MAX, instance: 3, process: 4711, process_started: 5, host_name };
    Stamped { holder, counter: 6, released, over: None }
}

fn corpus() -> [(&'static str, u8, Stamped); 4] {
    [
        ("held", REPAIRED, stamp("exa1cel01".to_owned(), false)),
        ("released", REPAIRED, stamp(String::new(), true)),
        ("recorded", REPAIRED, Stamped { over: Some(2), ..stamp("exa1cel01".to_owned(), false) }),
        ("long-name", AS_IT_IS, stamp("ü".repeat(CLAIM_HOST_NAME_BYTES_MAX / 2), false)),
    ]
}

fn input(mode: u8, stamp: &Stamped) -> Vec<u8> {
    [&[mode][..], &stamp.encode()[..SECTOR_BYTES]].concat()
}

fn path_of(name: &str) -> String {
    format!("{}/fuzz/corpus/claim/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
#[ignore = "writes the fuzzer's corpus anew"]
#[expect(clippy::disallowed_methods, reason = "a tool, not a test")]
fn write_the_corpus() {
    for (name, mode, stamp) in corpus() {
        std::fs::write(path_of(name), input(mode, &stamp)).unwrap();
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the corpus is files of the repository")]
fn the_fuzzer_starts_from_valid_input() {
    for (name, mode, stamp) in corpus() {
        let bytes = input(mode, &stamp);
        assert_eq!(decode(&bytes[1..]), Found::Stamp(stamp), "{name}");
        assert!(std::fs::read(path_of(name)).unwrap() == bytes, "{name}");
    }
}
