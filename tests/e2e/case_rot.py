"""Pages of flash that rot while the cell is down: what a FLUSH has covered is there or says EIO, and is never an older version."""

import random
import struct

import nbdclient
from harness import check, equal, served, test, wait_until

PAGE, BLOCKS = 4096, 200
MODES = ("write-back", "write-back-ordered")
# A chunk header begins with this; its sequence is at byte 80.
CHUNK = b"FCch"
# A witness ends with 96 bytes that begin with this; up to which sequence the member is durable is at byte 72.
WITNESS = b"FCop"
WITNESS_BYTES = 96


def written(cell, version, count=BLOCKS, flush=True):
    """Write blocks one by one in an order of their own; what each of them has."""
    client, content = nbdclient.Client(cell.socket), {}
    for block in random.Random(version).sample(range(BLOCKS), count):
        content[block] = random.Random(version * 1000 + block).randbytes(PAGE)
        client.write(block * PAGE, content[block])
    if flush:
        client.flush()
    client.disconnect()
    return content


def pages(cell):
    with open(cell.device("flash"), "rb") as file:
        data = file.read()
    return [data[at : at + PAGE] for at in range(0, len(data), PAGE)]


def headers(cell):
    """Pages of chunk headers, by their sequence."""
    found = [(struct.unpack_from("<Q", page, 80)[0], at) for at, page in enumerate(pages(cell)) if page[:4] == CHUNK]
    return [at for _, at in sorted(found)]


def await_witness(cell):
    """A witness of the last flush follows its answer at once, and is not part of it: wait until it is on the device."""

    def is_there():
        all_pages = pages(cell)
        last = max(struct.unpack_from("<Q", page, 80)[0] for page in all_pages if page[:4] == CHUNK)
        trailers = [page[-WITNESS_BYTES:] for page in all_pages if page[-WITNESS_BYTES:][:4] == WITNESS]
        return any(struct.unpack_from("<Q", trailer, 72)[0] >= last for trailer in trailers)

    wait_until(is_there, 20, "a witness of the last flush")


def rot(cell, page, byte=100):
    """Flip a bit."""
    with open(cell.device("flash"), "r+b") as file:
        file.seek(page * PAGE + byte)
        was = file.read(1)[0]
        file.seek(page * PAGE + byte)
        file.write(bytes([was ^ 1]))


def compared(cell, wanted, eio=()):
    """Every block has what a FLUSH has covered, or is one of those that may be unreadable, and is."""
    client = nbdclient.Client(cell.socket)
    unread = set()
    for block, content in wanted.items():
        try:
            got = client.read(block * PAGE, PAGE)
        except Exception as error:  # an NBD error
            check(block in eio, f"block {block}: {error!r}")
            unread.add(block)
            continue
        check(got == content, f"block {block} has what a FLUSH has covered")
    equal(unread, set(eio), "blocks that answer EIO")
    client.disconnect()


def each_mode(name, body):
    for mode in MODES:
        with served(name, griddisks=(f"data:64M:data:{mode}",)) as cell:
            body(cell)


@test
def a_rotten_chunk_header_never_makes_flushed_data_old():
    def body(cell):
        before = set(headers(cell))
        written(cell, 1)
        first = set(headers(cell))
        wanted = written(cell, 2)
        await_witness(cell)
        cell.kill()
        new = [page for page in headers(cell) if page not in first]
        check(new and first != before, "chunks of the second version")
        for page in {new[0], new[len(new) // 2], new[-1]}:
            rot(cell, page)
            cell.start()
            compared(cell, wanted)
            cell.kill()
        cell.start()
        cell.stop()

    each_mode("rot", body)


@test
def a_header_that_rots_while_the_cell_is_stopped_is_not_missed():
    def body(cell):
        written(cell, 1)
        first = set(headers(cell))
        wanted = written(cell, 2)
        new = [page for page in headers(cell) if page not in first]
        cell.stop()
        rot(cell, new[len(new) // 2])
        cell.start()
        wanted.update(written(cell, 3, 150))
        cell.kill()
        cell.start()
        compared(cell, wanted)
        cell.stop()

    each_mode("stopped", body)


@test
def a_rotten_part_that_was_flushed_answers_eio_for_itself():
    def body(cell):
        written(cell, 1)
        wanted = written(cell, 2)
        await_witness(cell)
        cell.kill()
        block, page = next((b, at) for at, page in enumerate(pages(cell)) for b in list(wanted)[-1:] if page == wanted[b])
        rot(cell, page)
        cell.start()
        compared(cell, wanted, eio=(block,))
        client = nbdclient.Client(cell.socket)
        wanted[block] = bytes(PAGE)
        client.write(block * PAGE, wanted[block])
        client.flush()
        client.disconnect()
        compared(cell, wanted)
        cell.stop()

    each_mode("part", body)
