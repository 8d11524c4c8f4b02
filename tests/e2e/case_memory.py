"""Memory as announced at the start, with as many grid disks as a cell has at most."""

import contextlib
import http.client
import json
import os
import pwd
import re
import socket
import time

import catalog
import nbdclient
from harness import MIB, Place, Skip, check, contains, equal, test, wait_until

# As crates/celldisk has it, and the administrator's guide.
GRID_DISKS_MAX = 16384
# Beyond so many the metrics of those that nobody has used are not shown.
GRID_DISKS_UNUSED_MAX = 1024
# So many have more than the 100,000 values that LIST METRICCURRENT shows.
USED = 2100


def announced_bytes(cell):
    return int(re.findall(r"all_max_mib=(\d+)", cell.log())[-1]) * MIB


def within_announced(cell, when):
    resident = cell.resident_bytes()
    print(f"# {when}: {resident >> 20} MiB resident, {announced_bytes(cell) >> 20} announced", flush=True)
    check(resident <= announced_bytes(cell), f"{when}: {resident >> 20} MiB resident, {announced_bytes(cell) >> 20} announced")
    return resident


def make_a_thousand(cell):
    statements = [f"create griddisk g{n:04} celldisk=CD_00_cell, size=4M" for n in range(1, GRID_DISKS_UNUSED_MAX)]
    for at in range(0, len(statements), 128):
        cell.cellcli(";\n".join(statements[at : at + 128]))


@test
def a_thousand_idle_grid_disks_stay_within_the_memory_announced():
    with Place("thousand") as place:
        cell = place.cell(disks=("20G",), flash=("128M",), griddisks=("data:4M",))
        cell.start()
        few = cell.resident_bytes()
        make_a_thousand(cell)
        equal(len(cell.json("list griddisk attributes name")), GRID_DISKS_UNUSED_MAX, "grid disks")
        # Served anew, so that nothing of making them is counted; and each is looked at once.
        for when in ("made", "served anew"):
            if when != "made":
                cell.stop()
                cell.start()
            for n in range(1, GRID_DISKS_UNUSED_MAX, 16):
                client = nbdclient.Client(cell.socket, export=f"g{n:04}")
                client.read(0, 4096)
                client.disconnect()
            resident = within_announced(cell, when)
            # A grid disk that nobody uses takes some tens of KiB at most.
            check(resident - few <= GRID_DISKS_UNUSED_MAX * (64 << 10), f"{(resident - few) >> 10} KiB for {GRID_DISKS_UNUSED_MAX} idle grid disks")
        names = {row["metricObjectName"] for row in cell.json("list metriccurrent GD_IO_RQ_R_SM")}
        equal(len(names), GRID_DISKS_UNUSED_MAX, "each has metrics, used or not")
        # The next one is beyond what was announced.
        before = announced_bytes(cell)
        cell.cellcli("create griddisk onemore celldisk=CD_00_cell, size=4M")
        check(announced_bytes(cell) > before, "announced anew")
        cell.stop()


@test
def as_many_grid_disks_as_there_can_be_stay_within_the_memory_announced():
    with Place("many") as place:
        cell = place.cell(disks=("300G",), flash=("128M",), griddisks=("data:64K",))
        cell.start()
        cell.stop()
        # Making them one by one takes minutes.
        catalog.fill([cell.device("disk"), cell.device("flash")], GRID_DISKS_MAX, 64 << 10)
        began = time.monotonic()
        cell.start()
        print(f"# started in {time.monotonic() - began:.1f} s", flush=True)
        within_announced(cell, "started")
        equal(len(cell.json("list griddisk attributes name")), GRID_DISKS_MAX, "grid disks")
        told = cell.cellcli("create griddisk onemore celldisk=CD_00_cell, size=64K", ok=False).stderr
        contains(told, "CELL-09006", "one more")
        contains(told, "16384", "one more")
        contains(told, "hint:", "one more")
        last = f"g{GRID_DISKS_MAX:05}"
        written = {name: os.urandom(4096) for name in ("data", last)}
        for name, data in written.items():
            client = nbdclient.Client(cell.socket, export=name)
            equal(client.read(4096, 4096), bytes(4096), f"{name}, never written")
            client.write(4096, data)
            client.flush()
            client.disconnect()
        names = {row["metricObjectName"] for row in cell.json("list metriccurrent GD_IO_RQ_R_SM")}
        equal(names, {"data", last}, "metrics of those that are used")
        # What is used has metrics: more than one answer has room for.
        for n in range(100, 100 + USED):
            client = nbdclient.Client(cell.socket, export=f"g{n:05}")
            client.read(0, 512)
            client.disconnect()
        equal(len(cell.json("list metriccurrent GD_IO_RQ_R_SM")), USED + 2, "metrics of those that are used")
        told = cell.cellcli("list metriccurrent", ok=False).stderr
        contains(told, "CELL-09006", "all metrics")
        contains(told, "hint:", "all metrics")
        check(len(cell.json("list metriccurrent where metricObjectName = 'g00100'")) > 40, "all of one grid disk")
        within_announced(cell, f"{USED} used")
        cell.cellcli("drop griddisk g00007")
        cell.cellcli("create griddisk again celldisk=CD_00_cell, size=64K")
        contains(cell.cellcli("create griddisk onemore celldisk=CD_00_cell, size=64K", ok=False).stderr, "CELL-09006", "full again")
        within_announced(cell, "changed")
        cell.stop()
        cell.start()
        for name, data in written.items():
            client = nbdclient.Client(cell.socket, export=name)
            equal(client.read(4096, 4096), data, name)
            client.disconnect()
        equal(len(cell.json("list griddisk attributes name")), GRID_DISKS_MAX, "grid disks")
        within_announced(cell, "served anew")
        cell.stop()


class Asker(http.client.HTTPConnection):
    """One connection to the admin socket, as `user`."""

    def __init__(self, cell, user=None):
        super().__init__("cell", timeout=300)
        self.path, self.user = cell.admin_socket, user

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        # The kernel tells the cell who it was that connected.
        if self.user:
            os.setegid(self.user.pw_gid)
            os.seteuid(self.user.pw_uid)
        try:
            self.sock.connect(self.path)
        finally:
            os.seteuid(0)
            os.setegid(0)

    def post(self, statements, form="json"):
        self.request("POST", "/v1/cellcli", json.dumps({"text": ";\n".join(statements), "form": form}), {"content-type": "application/json"})
        return self

    def results(self):
        answer = self.getresponse()
        text = answer.read()
        equal(answer.status, 200, f"status; {text[:300]}")
        return json.loads(text)["results"]


def most_resident_bytes(cell):
    with open(f"/proc/{cell.process.pid}/status") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read())[1]) << 10


class Administration:
    """The memory that statements take: what the cell takes at most, without what it had taken before them."""

    def __init__(self, cell):
        self.cell = cell
        # The most so far becomes what is resident now.
        with open(f"/proc/{cell.process.pid}/clear_refs", "w") as file:
            file.write("5")
        self.before = most_resident_bytes(cell)
        self.announced = int(re.findall(r"administration_max_mib=(\d+)", cell.log())[-1]) * MIB

    def within_announced(self, when):
        most = most_resident_bytes(self.cell)
        took = most - self.before
        print(f"# {when}: {took >> 20} MiB taken at most, {self.announced >> 20} announced for administration", flush=True)
        check(took <= self.announced, f"{when}: {took >> 20} MiB taken, {self.announced >> 20} announced for administration")
        check(most <= announced_bytes(self.cell), f"{when}: {most >> 20} MiB resident, {announced_bytes(self.cell) >> 20} announced")


# The most rows that LIST METRICHISTORY gives, and fewer than one reading of a thousand grid disks has.
HISTORY_ROWS_MAX, HISTORY_ROWS_MIN = 50_000, 20_000
LONG = (
    f"list metrichistory attributes all limit {HISTORY_ROWS_MAX}",
    f"list metrichistory attributes all order by metricObjectName desc, name limit {HISTORY_ROWS_MAX}",
    "list metriccurrent attributes all",
    "list metriccurrent detail",
    "list griddisk attributes all",
    "list flashcachecontent attributes all",
    "list alerthistory attributes all",
)


def check_history(rows):
    check(HISTORY_ROWS_MIN <= len(rows) <= HISTORY_ROWS_MAX, f"{len(rows)} rows of the history")


# Of the 32 connections that users who are not administrators have.
TAKE_NOTHING, PAGES = 20, 4


@test
def answers_of_administration_stay_within_the_memory_announced():
    """A user who may only look sends many long statements in one POST, and on many connections that take nothing of their answers.

    All long answers are made one after the other. When the owner's statements have been answered, so much has been made of those that others
    asked for before as the cell makes of answers that nobody takes. How such clients are cut off is shown in virtual time (admin/stream.rs).
    """
    if os.getuid() != 0:
        raise Skip("another user can only be tried as root")
    other = pwd.getpwnam("nobody")
    with Place("asked") as place:
        cell = place.cell(disks=("20G",), flash=("128M",), griddisks=("data:4M",))
        # Little besides what is looked at.
        cell.edit(lambda text: re.sub(r'(?m)^(requests|work) = .*$', r'\1 = "16M"', text))
        cell.start()
        make_a_thousand(cell)
        cell.stop()
        cell.start()
        path = cell.dir
        while path not in ("/", "/tmp"):
            os.chmod(path, os.stat(path).st_mode | 0o011)
            path = os.path.dirname(path)
        of_the_last = f"list metrichistory where metricObjectName = 'g{GRID_DISKS_UNUSED_MAX - 1:04}' limit 1"
        wait_until(lambda: cell.json(of_the_last), 90, "a reading of the thousand")
        memory = Administration(cell)
        with contextlib.ExitStack() as stack:
            ask = lambda user=None, into=stack: into.enter_context(contextlib.closing(Asker(cell, user)))
            # One POST, taken to its end.
            statements = [LONG[0]] * 10
            for outcome in ask(other).post(statements).results():
                equal(outcome["error"], None, "error")
                check_history(json.loads(outcome["output"]))
            memory.within_announced(f"one POST with {len(statements)} statements")
            # Connections that take nothing; and whole pages of metrics.
            idle = stack.enter_context(contextlib.ExitStack())
            for n in range(TAKE_NOTHING):
                ask(other, idle).post(list(LONG) * 10, form=("json", "text", "xml")[n % 3])
            for n in range(PAGES):
                accept = ("text/plain", "application/openmetrics-text")[n % 2]
                ask(other, idle).request("GET", "/metrics", headers={"accept": accept})
                ask(other, idle).request("GET", "/v1/metriccurrent")
            # The owner has memory of its own: its statements are answered whatever the others take.
            equal(len(cell.json("list cell")), 1, "cells, meanwhile")
            equal(len(cell.json("list griddisk")), GRID_DISKS_UNUSED_MAX, "grid disks, meanwhile")
            counts = []
            for form in ("json", "text", "xml"):
                results = ask().post(LONG, form=form).results()
                equal([outcome["error"] for outcome in results], [None] * len(LONG), "errors of the owner's statements")
                counts.append([len(outcome["output"]) for outcome in results])
            check(min(counts[0][:5]) > 100_000, f"bytes of the owner's answers: {counts[0]}")
            memory.within_announced("readers that take nothing")
            # A client that waits behind them is answered once they have gone.
            waiting = ask(other).post([LONG[0]])
            idle.close()
            outcome = waiting.results()[0]
            equal(outcome["error"], None, "error of one that has waited")
            check_history(json.loads(outcome["output"]))
        # All of that has ended, and the cell is as it was.
        check_history(cell.json(LONG[0]))
        memory.within_announced("afterwards")
        cell.stop()
