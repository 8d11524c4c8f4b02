"""Clients that do not keep to the protocol, and very many of them: never a crash, never memory without bound."""

import os
import random
import resource
import socket
import struct
import threading
import time

import nbdclient
from harness import MIB, check, equal, measured, served, test, timing_alone, wait_until

IDLE_BYTES_MAX = 64 << 10


def served_still(cell):
    cell.check_alive()
    client = nbdclient.Client(cell.socket)
    client.write(4096, b"alive" * 100)
    equal(client.read(4096, 500), b"alive" * 100, "a good client is served")
    client.disconnect()


def until_closed(raw, seconds=20):
    """Everything the server still sends, until it closes."""
    raw.sock.settimeout(seconds)
    data = b""
    try:
        while more := raw.sock.recv(65536):
            data += more
    except ConnectionResetError:
        pass
    except (TimeoutError, socket.timeout):
        raise AssertionError("the server keeps a broken connection open") from None
    return data


@test
def malformed_handshakes():
    with served() as cell:
        rng = random.Random(11)
        for garbage in (b"GET / HTTP/1.1\r\n\r\n" * 3, rng.randbytes(4096), b"\xff" * 64, b"\0" * 64):
            raw = nbdclient.Raw(cell.socket, hello=False)
            raw.receive(18)
            raw.send(garbage)
            raw.sock.shutdown(socket.SHUT_WR)
            until_closed(raw)
            raw.close()
        # Client flags nobody knows.
        raw = nbdclient.Raw(cell.socket, hello=False)
        raw.receive(18)
        raw.send(struct.pack(">I", 0xFFFFFFFF))
        until_closed(raw)
        raw.close()
        # An option of four gigabytes.
        raw = nbdclient.Raw(cell.socket)
        raw.send(b"IHAVEOPT" + struct.pack(">II", nbdclient.OPT_GO, 0xFFFFFFFF))
        before = cell.resident_bytes()
        try:
            for _ in range(64):
                raw.send(bytes(MIB))
        except nbdclient.Gone:
            pass
        check(cell.resident_bytes() - before < 16 * MIB, "a huge option takes no memory")
        raw.close()
        # An unknown option is refused, and the negotiation goes on.
        raw = nbdclient.Raw(cell.socket)
        raw.send(nbdclient.option(0x7777, b"abc"))
        _, kind, _ = raw.option_reply()
        check(kind & 1 << 31, "an unknown option is refused")
        raw.send(nbdclient.option(nbdclient.OPT_LIST))
        equal(raw.option_reply()[1], nbdclient.REP_SERVER, "a list after a refused option")
        raw.close()
        # GO with lengths inside that do not fit.
        for data in (b"", b"\0\0", struct.pack(">I", 1 << 30), struct.pack(">I", 4) + b"data", b"\0\0\0\4data\xff\xff"):
            raw = nbdclient.Raw(cell.socket)
            raw.send(nbdclient.option(nbdclient.OPT_GO, data))
            _, kind, _ = raw.option_reply()
            check(kind & 1 << 31, f"GO with {data!r} is refused")
            raw.close()
        # Connections that say nothing at all, and half a word.
        for count in (0, 3):
            raw = nbdclient.Raw(cell.socket, hello=False)
            raw.receive(18)
            raw.send(b"\0\0\0\3"[:count])
            raw.close()
        served_still(cell)
        cell.stop()


@test
def malformed_requests():
    with served() as cell:
        rng = random.Random(12)
        # A wrong magic number: the stream cannot be followed any further.
        client = nbdclient.Client(cell.socket)
        client.send(struct.pack(">IHHQQI", 0x12345678, 0, 0, 1, 0, 4096))
        equal(until_closed(client), b"", "answer to a wrong magic number")
        client.close()
        # Commands and flags nobody knows: refused, the stream goes on.
        client = nbdclient.Client(cell.socket)
        for command, flags in ((99, 0), (nbdclient.READ, 0xFFFF), (nbdclient.STATUS, 0), (0xFFFF, 0xFFFF)):
            error, _ = client.call(command, offset=0, length=4096, flags=flags)
            equal(error, 22, f"errno of command {command} with flags {flags:#x}")
        # Offsets and lengths at the ends of their ranges.
        for offset in (1 << 63, (1 << 64) - 1, (1 << 64) - 4096, 64 * MIB - 1, 64 * MIB):
            for command, length in ((nbdclient.READ, 4096), (nbdclient.ZEROES, 4096), (nbdclient.TRIM, 0xFFFFFFFF)):
                error, _ = client.call(command, offset=offset, length=length)
                check(error in (22, 28), f"errno {error} of command {command} at {offset:#x}")
        error, _ = client.call(nbdclient.READ, offset=0, length=0xFFFFFFFF)
        check(error in (22, 75), f"errno {error} of a read of four gigabytes")
        error, _ = client.call(nbdclient.WRITE, offset=64 * MIB - 5, data=b"x" * 100000)
        equal(error, 28, "errno of a write past the end, its payload drained")
        client.write(100, b"good")
        equal(client.read(100, 4), b"good", "the stream goes on")
        client.disconnect()
        # Payloads that never come: each holds its memory until it is given up, so they are less than there is.
        before = cell.resident_bytes()
        stuck = []
        for _ in range(12):
            client = nbdclient.Client(cell.socket)
            client.send(struct.pack(">IHHQQI", nbdclient.REQUEST_MAGIC, 0, nbdclient.WRITE, 1, 0, 8 * MIB))
            stuck.append(client)
        served_still(cell)
        for client in stuck:
            client.close()
        check(cell.resident_bytes() - before < 300 * MIB, "memory of writes that never come")
        # Garbage after a good handshake, many times.
        for i in range(100):
            client = nbdclient.Client(cell.socket)
            data = bytearray(struct.pack(">IHHQQI", nbdclient.REQUEST_MAGIC, 0, i % 9, i, 0, 512) * 3)
            for _ in range(rng.randrange(8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            try:
                client.send(bytes(data))
                client.sock.shutdown(socket.SHUT_WR)
            except (nbdclient.Gone, OSError):
                pass
            until_closed(client)
            client.close()
        served_still(cell)
        cell.stop()


@test
def requests_received_before_a_disconnect_are_completed():
    with served(model="fixed:5ms:8") as cell:
        client = nbdclient.Client(cell.socket)
        for i in range(50):
            client.submit(nbdclient.WRITE, offset=i * 4096, data=bytes([i + 1]) * 4096)
        client.disconnect()
        client = nbdclient.Client(cell.socket)
        wait_until(lambda: client.read(49 * 4096, 1) == bytes([50]), 20, "the last write is done")
        for i in range(50):
            equal(client.read(i * 4096, 4096), bytes([i + 1]) * 4096, f"write {i}")
        client.disconnect()
        cell.stop()


@timing_alone
def a_thousand_idle_connections():
    raise_files(2500)
    with served() as cell:
        warm = [nbdclient.Client(cell.socket) for _ in range(20)]
        for client in warm:
            client.read(0, 4096)
        before = cell.resident_bytes()
        clients = [nbdclient.Client(cell.socket) for _ in range(1000)]
        for client in clients:
            # Idle, but not fresh: each has had a request.
            client.read(0, 65536)
            client.write(8192, b"x" * 512)
        time.sleep(0.5)
        each = (cell.resident_bytes() - before) // 1000
        print(f"# {each / 1024:.1f} KiB of memory for each idle connection", flush=True)
        check(each <= IDLE_BYTES_MAX, f"{each} bytes for each idle connection, at most {IDLE_BYTES_MAX} are wanted")
        busy = nbdclient.Client(cell.socket)
        started = time.monotonic()
        for i in range(500):
            busy.read(i * 4096, 4096)
        measured(time.monotonic() - started < 5, "500 reads beside 1,000 idle connections take long")
        for client in clients:
            client.close()
        wait_until(lambda: open_files(cell) < 100, 30, "closed connections are given up")
        served_still(cell)
        cell.stop()


def open_files(cell):
    return len(os.listdir(f"/proc/{cell.process.pid}/fd"))


def raise_files(count):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


@timing_alone
def out_of_descriptors():
    """With few descriptors the server goes on serving who is connected, and takes new ones when others leave."""
    with served() as cell:
        cell.stop()
        cell.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80)))
        first = nbdclient.Client(cell.socket)
        crowd = []
        for _ in range(150):
            sock = socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            try:
                sock.connect(cell.socket)
            except OSError:
                pass
            crowd.append(sock)
        time.sleep(1)
        used = cell.cpu_seconds()
        for i in range(50):
            first.write(i * 4096, b"y" * 4096)
            equal(first.read(i * 4096, 4096), b"y" * 4096, "who is connected is served")
        time.sleep(2)
        measured(cell.cpu_seconds() - used < 1, "the server spins while it has no descriptor left")
        for sock in crowd:
            sock.close()
        first.disconnect()

        def again():
            try:
                client = nbdclient.Client(cell.socket, seconds=5)
                client.read(0, 1)
                client.disconnect()
                return True
            except (nbdclient.Gone, OSError):
                return False

        wait_until(again, 60, "new clients are served when the others have left")
        cell.stop()


@timing_alone
def an_idle_server_uses_no_processor():
    with served() as cell:
        clients = [nbdclient.Client(cell.socket) for _ in range(50)]
        for client in clients:
            client.write(0, b"z" * 4096)
        time.sleep(3)
        used = cell.cpu_seconds()
        time.sleep(3)
        measured(cell.cpu_seconds() - used < 0.1, f"{cell.cpu_seconds() - used:.2f} s of processor time in 3 idle seconds")
        for client in clients:
            client.close()
        cell.stop()


@test
def clients_killed_in_the_middle():
    """Connections cut at any byte of a request or a reply, beside a good client."""
    with served() as cell:
        stop = threading.Event()
        errors = []

        def good():
            try:
                client = nbdclient.Client(cell.socket)
                n = 0
                while not stop.is_set():
                    data = struct.pack(">Q", n) * 512
                    client.write(32 * MIB + (n % 100) * 4096, data)
                    if client.read(32 * MIB + (n % 100) * 4096, 4096) != data:
                        errors.append(f"wrong content in round {n}")
                        return
                    n += 1
                client.disconnect()
            except Exception as error:  # noqa: BLE001 - told to the test below
                errors.append(repr(error))

        thread = threading.Thread(target=good)
        thread.start()
        rng = random.Random(13)
        for _ in range(200):
            client = nbdclient.Client(cell.socket)
            length = rng.choice([512, 4096, 65536, MIB])
            whole = struct.pack(">IHHQQI", nbdclient.REQUEST_MAGIC, 0, 1, 1, rng.randrange(8) * MIB, length)
            whole += bytes(length)
            client.send(whole[: rng.randrange(len(whole) + 1)])
            if rng.randrange(2):
                for i in range(8):
                    try:
                        client.submit(nbdclient.READ, offset=i * 4096, length=65536)
                    except nbdclient.Gone:
                        break
            client.close()
        stop.set()
        thread.join()
        equal(errors, [], "the good client")
        served_still(cell)
        cell.stop()


