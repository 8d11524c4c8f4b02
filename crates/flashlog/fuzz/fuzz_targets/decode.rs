//! Heads of batches: no bytes may make the decoder panic, allocate without bound, or give a batch or a record that cannot be.
//!
//! With the high bit of the first byte set owner, version and checksum are made to fit, so that the records are reached; its low
//! bits choose the page.
#![no_main]

use flashlog::format::{
    BATCH_BYTES_MAX, BATCH_FIXED_BYTES, BATCH_MAGIC, BATCH_RECORDS_MAX, FORMAT_VERSION, RECORD_DATA_BYTES_MAX, RecordKind,
    ZEROES_BYTES_MAX, claimed_head_bytes, decode_head, encode_head, head_bytes,
};
use flashlog::Owner;
use libfuzzer_sys::fuzz_target;

const OWNER: Owner = Owner { cell_id: 0x1111_2222_3333_4444, device_id: 0xaaaa_bbbb, log_id: 3 };
const PAGES: u32 = 1 << 16;

fn fit(head: &mut Vec<u8>) {
    if head.len() < BATCH_FIXED_BYTES {
        head.resize(BATCH_FIXED_BYTES, 0);
    }
    head[..4].copy_from_slice(&BATCH_MAGIC.to_le_bytes());
    head[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    let records = (head.len() - BATCH_FIXED_BYTES) / 40;
    head[10..12].copy_from_slice(&(records.min(BATCH_RECORDS_MAX) as u16).to_le_bytes());
    head[16..32].copy_from_slice(&OWNER.cell_id.to_le_bytes());
    head[32..48].copy_from_slice(&OWNER.device_id.to_le_bytes());
    head[48..64].copy_from_slice(&OWNER.log_id.to_le_bytes());
    let end = head_bytes(records.min(BATCH_RECORDS_MAX));
    let crc = crc32c::crc32c(&head[8..end]);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, bytes)) = input.split_first() else { return };
    let page_bytes = 4096 << (choice & 3);
    let mut head = bytes.to_vec();
    if choice & 0x80 != 0 {
        fit(&mut head);
    }
    if let Some(claimed) = claimed_head_bytes(&head) {
        assert!(claimed <= head_bytes(BATCH_RECORDS_MAX));
    }
    let Ok((header, records)) = decode_head(&head, &OWNER, page_bytes, PAGES) else { return };
    assert!(header.pages > 0 && header.start_page + header.pages <= PAGES && header.tail <= header.number);
    let batch = header.pages as usize * page_bytes;
    assert!(batch <= BATCH_BYTES_MAX.next_multiple_of(page_bytes) && records.len() <= BATCH_RECORDS_MAX);
    for record in &records {
        let limit = if record.kind == RecordKind::Data { RECORD_DATA_BYTES_MAX as u64 } else { ZEROES_BYTES_MAX };
        assert!(record.len > 0 && u64::from(record.len) <= limit);
        assert!(record.offset.checked_add(u64::from(record.len)).is_some());
        assert!(record.data.start <= record.data.end && record.data.end <= batch);
        assert!(record.data.start >= head_bytes(records.len()));
    }
    let again = decode_head(&encode_head(&OWNER, &header, &records), &OWNER, page_bytes, PAGES);
    assert_eq!(again.expect("what was encoded decodes"), (header, records));
});
