"""Clients that take and give nothing back, beside one that does its work: it is served, nothing leaks, and memory stays what was announced."""

import re
import struct
import subprocess
import textwrap

import nbdclient
from case_hostile import raise_files, served_still
from harness import MIB, Place, check, equal, need, pattern, run, served, test_alone, wait_until

HOSTILE = 200
# Beside clients that take everything nobody may wait for time-outs; machines that run tests are slow and shared.
ANSWER_SECONDS_MAX = 9


def scrape(cell):
    """{name with labels: value} of /metrics."""
    page = run(["curl", "-sS", "-f", "--unix-socket", cell.admin_socket, "http://cell/metrics"]).stdout
    lines = [line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def connections(cell):
    return scrape(cell)["flashcell_nbd_connections_open"]


def request(kind, cookie, offset, length):
    return struct.pack(">IHHQQI", nbdclient.REQUEST_MAGIC, 0, kind, cookie, offset, length)


KINDS = {
    "half a WRITE": lambda: request(nbdclient.WRITE, 1, 0, 32 * MIB) + b"z" * 1000,
    "a long READ unread": lambda: request(nbdclient.READ, 1, 0, 32 * MIB),
    "256 short READs unread": lambda: b"".join(request(nbdclient.READ, i, i * 4096, 4096) for i in range(256)),
}


def fill(cell, size):
    client = nbdclient.Client(cell.socket)
    for at in range(0, size, MIB):
        client.write(at, pattern(str(at), MIB))
    client.flush()
    client.disconnect()


@test_alone
def hostile_clients_stop_nobody():
    raise_files(2500)
    with served() as cell:
        fill(cell, 64 * MIB)
        most = int(re.search(r"all_max_mib=(\d+)", cell.log())[1]) * MIB
        check(cell.resident_bytes() <= most, "memory at start is what was announced")
        for name, bytes_of in KINDS.items():
            hostile = [nbdclient.Client(cell.socket) for _ in range(HOSTILE)]
            for client in hostile:
                client.send(bytes_of())
            honest = nbdclient.Client(cell.socket, seconds=ANSWER_SECONDS_MAX)
            for i in range(300):
                at = i * 8192 % (32 * MIB)
                data = pattern(f"{name} {i}", 4096)
                honest.write(at, data)
                equal(honest.read(at, 4096), data, f"content beside {name}")
            honest.disconnect()
            check(cell.resident_bytes() <= most, f"{cell.resident_bytes()} bytes beside {name}, {most} announced")
            for client in hostile:
                client.close()
            wait_until(lambda: connections(cell) == 0, 30, f"connections with {name} are given up")
        served_still(cell)
        cell.stop()


@test_alone
def a_client_that_keeps_what_it_borrowed_is_cut_off():
    with served(griddisks=("data:128M",)) as cell:
        fill(cell, 96 * MIB)
        # Together they want more memory than there is.
        hostile = [nbdclient.Client(cell.socket) for _ in range(6)]
        for client in hostile:
            client.send(request(nbdclient.READ, 1, 0, 32 * MIB))
        honest = nbdclient.Client(cell.socket, seconds=60)
        equal(len(honest.read(32 * MIB, 32 * MIB)), 32 * MIB, "a read that needs what they keep")
        wait_until(lambda: scrape(cell)["flashcell_nbd_cut_off_total"] >= 1, 20, "the counter")
        check(scrape(cell)['flashcell_nbd_host_cut_off_total{host="localhost"}'] >= 1, "the counter of the host")
        wait_until(lambda: "was cut off" in cell.log() and "grid_disk=\"data\"" in cell.log(), 20, "a line in the log")
        honest.disconnect()
        for client in hostile:
            client.close()
        cell.stop()


@test_alone
def clients_that_die_with_long_reads_queued():
    need("nbdinfo")
    dying = textwrap.dedent("""
        import nbd, os, sys, time
        h = nbd.NBD()
        h.connect_uri(sys.argv[1])
        for i in range(64):
            h.aio_pread(nbd.Buffer(2 << 20), (i % 30) << 21)
        end = time.time() + 0.02
        while time.time() < end:
            h.poll(10)
        os._exit(0)
    """)
    with served() as cell:
        fill(cell, 64 * MIB)
        for _ in range(9):
            subprocess.run(["/usr/bin/python3", "-c", dying, cell.uri()], check=True, timeout=60)
        wait_until(lambda: connections(cell) == 0, 30, "connections of dead clients are given up")
        served_still(cell)
        cell.stop(seconds=20)


@test_alone
def sizes_are_those_asked_for():
    with Place("") as place:
        cell = place.cell(disks=("512M",), griddisks=("data:50M", "odd:1000001")).start()
        equal(nbdclient.Client(cell.socket, "data").size, 52_428_800, "size of 50M")
        equal(nbdclient.Client(cell.socket, "odd").size, 1_048_576, "size of 1,000,001 bytes")
        said = cell.cellcli("create griddisk third cellDisk=CD_00_cell, size=70001").stdout
        check("131072 bytes: 70001 rounded up" in said, said)
        cell.stop()


@test_alone
def the_default_export_is_the_one_that_is_named():
    with Place("") as place:
        cell = place.cell(griddisks=("one:16M", "two:32M"))
        cell.edit(lambda text: text + '\n[nbd]\ndefault = "two"\n')
        cell.start()
        equal(nbdclient.Client(cell.socket, "").size, 32 * MIB, "size of the default export")
        cell.cellcli("drop griddisk two force")
        try:
            nbdclient.Client(cell.socket, "")
        except nbdclient.Refused as refused:
            check("two, which does not exist" in str(refused), str(refused))
        else:
            check(False, "a default export that does not exist was opened")
        cell.stop()


@test_alone
def a_disconnect_with_unknown_flags_and_fast_zeroes_in_every_mode():
    modes = ("write-through", "write-back", "write-back-ordered")
    with served(disks=("512M",), griddisks=[f"d{i}:32M:data:{mode}" for i, mode in enumerate(modes)]) as cell:
        for i in range(len(modes)):
            client = nbdclient.Client(cell.socket, f"d{i}")
            client.write(0, b"x" * MIB)
            error, _ = client.call(nbdclient.ZEROES, offset=4096, length=65536, flags=16)
            equal(error, 0, f"FAST_ZERO over data in {modes[i]}")
            equal(client.read(0, MIB), b"x" * 4096 + bytes(65536) + b"x" * (MIB - 69632), "after FAST_ZERO")
            client.send(struct.pack(">IHHQQI", nbdclient.REQUEST_MAGIC, 0xFFFF, nbdclient.DISC, 9, 7, 7))
            try:
                client.receive(1)
            except nbdclient.Gone as gone:
                equal(str(gone), "end of stream", "after a DISC with flags")
            else:
                check(False, "a DISC was answered")
        cell.stop()
