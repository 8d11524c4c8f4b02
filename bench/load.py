"""A client with very many connections: one thread, epoll, 4 KiB random reads at a fixed depth on each connection.

Cheaper per read than fio's NBD client: it asks for nothing but simple replies to reads, which are all of one length, so that
counting bytes is counting replies. It checks the first header of whatever it receives at a reply's border.
"""

import random
import select
import struct
import time

import nbdclient
from place import Failure

BLOCK_BYTES = 4096
REPLY_BYTES = 16 + BLOCK_BYTES
REQUEST_BYTES = 28
REQUESTS = 16384
RECEIVE_BYTES_MAX = 1 << 18
DRAIN_SECONDS_MAX = 30
GOOD_HEAD = struct.pack(">II", nbdclient.SIMPLE_MAGIC, 0)


class Connections:
    """`count` connections to an export, past the handshake."""

    def __init__(self, address, export, count, size_bytes):
        self.clients = [nbdclient.Client(address, export) for _ in range(count)]
        draw = random.Random(count)
        blocks = size_bytes // BLOCK_BYTES
        self.requests = b"".join(
            struct.pack(">IHHQQI", nbdclient.REQUEST_MAGIC, 0, nbdclient.READ, i, draw.randrange(blocks) * BLOCK_BYTES, BLOCK_BYTES)
            for i in range(REQUESTS)
        )
        self.next = 0

    def touch(self):
        """One read on each, so that whatever a connection allocates at its first request is there."""
        for client in self.clients:
            client.read(0, BLOCK_BYTES)

    def run(self, depth, seconds):
        """Read for a while: (reads done within it, seconds it took, CPU seconds of this client)."""
        poll = select.epoll()
        state = {}
        for client in self.clients:
            client.sock.settimeout(None)
            state[client.sock.fileno()] = [client.sock, 0]
            poll.register(client.sock.fileno(), select.EPOLLIN)
        buffer = memoryview(bytearray(RECEIVE_BYTES_MAX))
        cpu = time.process_time()
        begin = time.monotonic()
        for client in self.clients:
            client.sock.sendall(self.take(depth))
        until = begin + seconds
        under_way = depth * len(self.clients)
        done, counted, took = 0, None, None
        while under_way > 0:
            now = time.monotonic()
            if counted is None and now >= until:
                counted, took, cpu = done, now - begin, time.process_time() - cpu
            if now > until + DRAIN_SECONDS_MAX:
                raise Failure(f"{under_way} reads were not answered within {DRAIN_SECONDS_MAX} s")
            for number, _ in poll.poll(1.0, 64):
                entry = state[number]
                got = entry[0].recv_into(buffer)
                if got == 0:
                    raise Failure("the server closed a connection")
                if entry[1] == 0 and bytes(buffer[: min(got, 8)]) != GOOD_HEAD[:got]:
                    raise Failure(f"not the head of a good reply: {bytes(buffer[:16])!r}")
                replies, entry[1] = divmod(entry[1] + got, REPLY_BYTES)
                done += replies
                if replies and counted is None:
                    entry[0].sendall(self.take(replies))
                else:
                    under_way -= replies
        if counted is None:
            raise Failure("no read was under way any more")
        return counted, took, cpu

    def take(self, count):
        """So many requests; the next ones of a ring."""
        if self.next + count > REQUESTS:
            self.next = 0
        at = self.next * REQUEST_BYTES
        self.next += count
        return self.requests[at : at + count * REQUEST_BYTES]

    def close(self):
        for client in self.clients:
            client.disconnect()
