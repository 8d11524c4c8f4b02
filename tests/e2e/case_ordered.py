"""Write-back in flush order: the disk alone is the grid disk of one moment, while it is frozen and when all flash is lost."""

import json
import os
import subprocess
import threading
import time

import nbdclient
from case_write_back import EIO, all_eio, flash_away, grid_disk, set_mode
from harness import MIB, binary, check, contains, equal, need, run, served, test, wait_until

ORDERED = "data:64M:data:write-back-ordered"
BLOCK = 4096
# Written over and over in this order, all over the grid disk, each time with the number of the round.
PLACES = [n * 37 % 512 * 128 * 1024 for n in range(96)]


class Rounds:
    """A client that writes rounds, each in the same order, with a FLUSH after each, until `end`."""

    def __init__(self, cell, name="data"):
        self.cell, self.name = cell, name
        self.going = True
        self.failed = None
        self.flushed = 0
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        try:
            client = nbdclient.Client(self.cell.socket, export=self.name)
            while self.going:
                number = self.flushed + 1
                for place in PLACES:
                    client.write(place, number.to_bytes(8, "little") * (BLOCK // 8))
                client.flush()
                self.flushed = number
            client.disconnect()
        except Exception as error:  # told in the main thread
            self.failed = error

    def until(self, condition, what):
        wait_until(lambda: self.failed or condition(), 60, what)
        if self.failed:
            raise self.failed

    def end(self):
        self.going = False
        self.thread.join()
        if self.failed:
            raise self.failed


def disk_alone(cell, name="data"):
    """What the disk image holds at the places: numbers of rounds."""
    offset = grid_disk(cell, name)["offset"]
    return image_rounds(cell.device("disk"), offset)


def image_rounds(path, offset):
    with open(path, "rb") as image:
        blocks = []
        for place in PLACES:
            image.seek(offset + place)
            blocks.append(image.read(BLOCK))
    for place, block in zip(PLACES, blocks):
        equal(block, block[:8] * (BLOCK // 8), f"the block at {place} is whole")
    return [int.from_bytes(block[:8], "little") for block in blocks]


def of_one_moment(rounds, what):
    """The first places may be one round further, the others not."""
    check(rounds == sorted(rounds, reverse=True) and rounds[0] - rounds[-1] <= 1, f"{what} is torn: {rounds}")
    return rounds[-1]


def flashcell(*arguments, ok=True):
    done = subprocess.run([binary(), *arguments], capture_output=True, text=True, timeout=60)
    if ok:
        equal(done.returncode, 0, f"exit code of {arguments}: {done.stderr}")
    return done


@test
def a_frozen_disk_is_of_one_moment_and_stays_so():
    with served(griddisks=(ORDERED, "other:16M")) as cell:
        equal(grid_disk(cell)["cachingMode"], "write-back-ordered", "caching mode")
        rounds = Rounds(cell)
        try:
            seen = []
            for _ in range(3):
                before = cell.metric("GD_FC_IO_RQ_BATCH", "data")
                rounds.until(lambda: cell.metric("GD_FC_IO_RQ_BATCH", "data") > before, "a batch")
                said = flashcell("freeze", "data", "--for", "50", "-c", cell.dir).stdout
                contains(said, "GridDisk data frozen for 50 s, as of 20", "what freeze says")
                check(0 < grid_disk(cell)["frozenFor"] <= 50, "LIST GRIDDISK tells of the freeze")
                frozen = disk_alone(cell)
                seen.append(of_one_moment(frozen, "the frozen disk"))
                until = rounds.flushed + 3
                rounds.until(lambda: rounds.flushed > until, "clients write on while it is frozen")
                equal(disk_alone(cell), frozen, "the frozen disk, later")
                refused = cell.cellcli('alter griddisk data cachingMode="write-through"', ok=None)
                contains(refused.stderr, "data is frozen", "a switch of modes meanwhile")
                flashcell("thaw", "--all", "-c", cell.dir)
                check("frozenFor" not in grid_disk(cell), "thawed")
            check(seen[0] < seen[-1], f"the disk follows between freezes: {seen}")
            told = json.loads(flashcell("freeze", "--all", "--for", "1", "--json", "-c", cell.dir).stdout)
            rows = sorted((row["griddisk"], row["seconds"], row["writes_wait"]) for row in told)
            equal(rows, [("data", 1, False), ("other", 1, True)], "what freeze --json says")
            check(all(row["as_of"].startswith("20") for row in told), f"of which moment the disks are: {told}")
            rounds.until(lambda: "frozenFor" not in grid_disk(cell), "a forgotten freeze ends by itself")
        finally:
            rounds.end()
        refused = flashcell("freeze", "other", "--for", "301", "-c", cell.dir, ok=False)
        equal(refused.returncode, 1, "writes that wait for too long")
        contains(refused.stderr, "hint: say 300 seconds or less", "message of freeze")
        # Other modes and back, with the same content.
        for mode in ("write-through", "write-back", "write-back-ordered", "none", "write-back-ordered"):
            set_mode(cell, mode)
        equal(cell.metric("FC_BY_DIRTY"), 0, "nothing is dirty after a switch")
        equal(disk_alone(cell), [rounds.flushed] * len(PLACES), "the disk after a switch")
        cell.stop()


@test
def in_other_modes_writes_wait_while_the_disks_are_frozen():
    names = ("data", "wal", "back")
    griddisks = ("data:64M", "wal:64M:redo", "back:64M:data:write-back")
    with served(disks=("512M",), flash=("256M",), griddisks=griddisks) as cell:
        check(cell.json("list flashlog"), "a redo grid disk comes with a flash log")
        rounds = {name: Rounds(cell, name) for name in names}
        reader = nbdclient.Client(cell.socket, export="wal")
        try:
            for _ in range(3):
                before = {name: one.flushed for name, one in rounds.items()}
                for name, one in rounds.items():
                    one.until(lambda one=one, name=name: one.flushed > before[name] + 1, "rounds")
                flushed = {name: one.flushed for name, one in rounds.items()}
                said = flashcell("freeze", *names, "--for", "50", "-c", cell.dir).stdout
                equal(said.count("; its writes wait meanwhile"), 3, f"what freeze says: {said}")
                frozen = {name: disk_alone(cell, name) for name in names}
                for name in names:
                    moment = of_one_moment(frozen[name], f"the frozen disk of {name}")
                    check(moment >= flushed[name], f"{name} is of round {moment}, {flushed[name]} were flushed before")
                equal(cell.metric("FC_BY_DIRTY"), 0, "dirty data while frozen")
                time.sleep(1.5)
                equal({name: disk_alone(cell, name) for name in names}, frozen, "the frozen disks, later")
                word = reader.read(PLACES[0], 8)
                equal(int.from_bytes(word, "little"), frozen["wal"][0], "reads go on")
                flashcell("thaw", "--all", "-c", cell.dir)
                check("frozenFor" not in grid_disk(cell, "wal"), "thawed")
            flashcell("freeze", "--all", "--for", "1", "-c", cell.dir)
            before = rounds["data"].flushed
            rounds["data"].until(lambda: rounds["data"].flushed > before + 1, "a forgotten freeze ends by itself")
        finally:
            reader.disconnect()
            for one in rounds.values():
                one.end()
        # A write that waits does not keep the cell from stopping.
        flashcell("freeze", "data", "-c", cell.dir)
        client = nbdclient.Client(cell.socket)
        client.submit(nbdclient.WRITE, 0, BLOCK, bytes(BLOCK))
        time.sleep(0.3)
        began = time.monotonic()
        cell.stop()
        check(time.monotonic() - began < 20, "the cell stops while a write waits")
        client.close()


@test
def without_any_flash_the_disk_is_of_one_moment_and_may_be_accepted():
    with served(griddisks=(ORDERED, "plain:16M:data:write-back")) as cell:
        client = nbdclient.Client(cell.socket, export="plain")
        client.write(0, b"plain" * 4096)
        client.disconnect()
        rounds = Rounds(cell)
        rounds.until(lambda: cell.metric("GD_FC_IO_RQ_BATCH", "data") >= 2, "batches")
        # No batch from here on: what follows is on flash alone.
        flashcell("freeze", "data", "--for", "50", "-c", cell.dir)
        until = rounds.flushed + 5
        rounds.until(lambda: rounds.flushed > until, "more rounds")
        cell.kill()
        rounds.going = False
        rounds.thread.join()
        with flash_away(cell):
            cell.start()
            all_eio(cell)
            contains(cell.log(), "its disk is consistent as of", "the log says of when the disk is")
            check(grid_disk(cell)["staleAsOf"] > 0, "LIST GRIDDISK says of when the disk is")
            found = disk_alone(cell)
            stale = of_one_moment(found, "the disk without its flash")
            check(0 < stale < rounds.flushed, f"round {stale} of {rounds.flushed}: the disk is old")
            refused = cell.cellcli("alter griddisk plain active force", ok=None)
            equal(refused.returncode, 1, "plain write-back is not accepted")
            contains(refused.stderr, "side by side", "why not")
            cell.cellcli("alter griddisk data active force")
            equal(grid_disk(cell)["status"], "active", "status once accepted")
            equal(grid_disk(cell)["cachingMode"], "write-through", "mode once accepted")
            client = nbdclient.Client(cell.socket)
            for place, number in zip(PLACES, found):
                equal(client.read(place, BLOCK), number.to_bytes(8, "little") * (BLOCK // 8), f"content at {place}")
            client.write(PLACES[0], b"newer678" * (BLOCK // 8))
            client.disconnect()
            cell.kill()
            cell.start()
            equal(grid_disk(cell)["status"], "active", "status after a restart")
            equal(grid_disk(cell, "plain")["status"], "offline", "the plain one waits on")
            cell.stop()
        # With the flash back the other one is whole; nothing of what was given up comes back.
        cell.start()
        client = nbdclient.Client(cell.socket)
        equal(client.read(PLACES[0], BLOCK), b"newer678" * (BLOCK // 8), "what was written since")
        for place, number in list(zip(PLACES, found))[1:]:
            equal(client.read(place, BLOCK), number.to_bytes(8, "little") * (BLOCK // 8), f"content at {place}")
        client.disconnect()
        client = nbdclient.Client(cell.socket, export="plain")
        equal(client.read(0, 5 * 4096), b"plain" * 4096, "content of the plain one")
        client.disconnect()
        cell.stop()


@test
def what_is_zeroed_is_told():
    need("nbdinfo")
    with served(griddisks=(ORDERED,)) as cell:
        client = nbdclient.Client(cell.socket)
        client.write(0, b"x" * 8 * MIB)
        client.write(0, b"x" * MIB)
        client.call(nbdclient.ZEROES, offset=2 * MIB, length=4 * MIB)
        client.write(3 * MIB, b"y" * BLOCK)

        def told():
            extents = json.loads(run(["nbdinfo", "--map", "--json", cell.uri()]).stdout)
            return [(e["offset"], e["length"], e["description"]) for e in extents if e["offset"] < 8 * MIB]

        expected = [
            (0, 2 * MIB, "data"),
            (2 * MIB, MIB, "zero"),
            (3 * MIB, BLOCK, "data"),
            (3 * MIB + BLOCK, 3 * MIB - BLOCK, "zero"),
            (6 * MIB, 2 * MIB, "data"),
        ]
        equal(told(), expected, "while flash has it")
        client.flush()
        client.disconnect()
        wait_until(lambda: cell.metric("FC_BY_DIRTY") == 0, 60, "the disk has everything")
        equal(told(), expected, "when the disk has it")
        cell.stop()
