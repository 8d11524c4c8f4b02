"""Super blocks of bcache, as make-bcache (bcache-tools) writes them: a backing device and a cache of one set.

From the kernel's drivers/md/bcache/bcache_ondisk.h. Writes into images that nobody uses yet; makes nothing else.
"""

import struct
import uuid

SECTOR_BYTES = 512
OFFSET_SECTORS = 8
MAGIC = bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81")
VERSION_CACHE, VERSION_BACKING = 0, 1
BLOCK_SECTORS, BUCKET_SECTORS = 8, 1024
# The super block and the journal's room before it may be used for data: make-bcache's rule.
FIRST_BUCKET = 23 // BUCKET_SECTORS + 1
POLYNOMIAL, ONES = 0x42F0E1EBA9EA3693, 0xFFFFFFFFFFFFFFFF


def crc64(data):
    """The kernel's crc64_be, inverted before and after."""
    crc = ONES
    for byte in data:
        crc ^= byte << 56
        for _ in range(8):
            crc = (crc << 1 ^ (POLYNOMIAL if crc >> 63 else 0)) & ONES
    return crc ^ ONES


def write(path, version, set_uuid, buckets):
    # Offset, version, magic, own and set's UUID, label; flags, sequence, padding; geometry; mount time, first bucket, keys.
    body = struct.pack("<QQ16s16s16s32s", OFFSET_SECTORS, version, MAGIC, uuid.uuid4().bytes, set_uuid.bytes, b"")
    body += struct.pack("<QQ8Q", 0, 0, *[0] * 8)
    body += struct.pack("<QHHHH", buckets, BLOCK_SECTORS, BUCKET_SECTORS, 1, 0)
    body += struct.pack("<IHH", 0, FIRST_BUCKET, 0)
    with open(path, "r+b") as file:
        file.seek(OFFSET_SECTORS * SECTOR_BYTES)
        file.write(struct.pack("<Q", crc64(body)) + body)


def make(backing, cache, cache_bytes):
    """Both super blocks; the set's UUID, for /sys/block/bcache0/bcache/attach."""
    set_uuid = uuid.uuid4()
    write(backing, VERSION_BACKING, set_uuid, 0)
    write(cache, VERSION_CACHE, set_uuid, cache_bytes // SECTOR_BYTES // BUCKET_SECTORS)
    return str(set_uuid)
