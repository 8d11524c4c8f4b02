"""The catalog of a cell that is not running, by what docs/internals/disk-format.md says of it."""

import struct

PLACES = [n << 20 for n in range(4)]
CATALOG = 65536
HEADER, FIELDS, CRC_AT = 128, 76, 124
VERSION_AT, LENGTH_AT = 8, 72
PACKED = 2

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data):
    crc, table = 0xFFFFFFFF, TABLE
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def number(value):
    """Seven bits a byte, the lowest first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def text8(text):
    return bytes([len(text)]) + text.encode()


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        self.at += count
        return self.data[self.at - count : self.at]

    def u(self, count):
        return int.from_bytes(self.take(count), "little")

    def text8(self):
        return self.take(self.u(1)).decode()


def with_many(payload, count, size_bytes):
    """The payload with grid disks g00002 and so on, up to `count`, each of `size_bytes` in the first allocation unit that is free."""
    r = Reader(payload)
    r.take(8 + 16)
    r.take(8 + 16 + 32)
    r.text8()
    r.take(32 * r.u(1))
    members = []
    for _ in range(r.u(2)):
        members.append(r.take(16))
        r.take(1 + 1 + 8 + 4)
        r.text8()
        r.take(8)
    before = r.at
    out, last_id, last_created, next_au, home = [], 0, 0, 0, 0
    had = r.u(2)
    for _ in range(had):
        id, name, home, size = r.u(8), r.text8(), members.index(r.take(16)), r.u(8)
        purpose, mode, switch, policy = r.u(1), r.u(1), r.u(2), r.u(1)
        generation, created = r.u(4), r.u(8)
        assert (switch, generation, r.text8(), r.text8(), r.u(1)) == (0, 1, "", "", 0), "a plain grid disk"
        assert r.u(1) == 1, "in one extent"
        start, units = r.u(4), r.u(4)
        assert not any(r.take(8)), "without pins, journal and settings"
        word = struct.pack("<H", purpose | mode << 2 | policy << 5)
        out.append(
            number(id - last_id) + text8(name) + bytes([home]) + number(size // 4096) + number((created - last_created) * 2) + word + number(start) + number(units)
        )
        last_id, last_created, next_au = id, created, max(next_au, start + units)
    rest = payload[r.at :]
    # Data, in write-through, by the usual rules.
    word = struct.pack("<H", 1 | 1 << 2 | 1 << 5)
    for n in range(had + 1, count + 1):
        out.append(number(1) + text8(f"g{n:05}") + bytes([home]) + number(size_bytes // 4096) + number(0) + word + number(next_au) + number(1))
        last_id, next_au = last_id + 1, next_au + 1
    head = payload[:24] + struct.pack("<Q", last_id + 1) + payload[32:before]
    return head + struct.pack("<H", count) + b"".join(out) + rest


def fill(paths, count, size_bytes):
    """Give the catalogs on these devices, all of one cell, so many grid disks."""
    for path in paths:
        with open(path, "r+b") as file:
            for at in (place + CATALOG for place in PLACES):
                file.seek(at)
                header = bytearray(file.read(HEADER))
                assert header[VERSION_AT] == 1, "a catalog of few grid disks"
                payload = with_many(file.read(struct.unpack_from("<I", header, LENGTH_AT)[0]), count, size_bytes)
                struct.pack_into("<I", header, VERSION_AT, PACKED)
                struct.pack_into("<I", header, LENGTH_AT, len(payload))
                struct.pack_into("<I", header, FIELDS, crc32c(header[:FIELDS] + payload))
                struct.pack_into("<I", header, CRC_AT, crc32c(header[:CRC_AT]))
                file.seek(at)
                file.write(header + payload)
