"""The flash log: redo is answered by flash while the disk is slow, and is there after a crash on devices that forget the rest."""

import json
import os
import random

import nbdclient
from harness import QUIET, Place, binary, check, contains, equal, measured, need, record, recorded, run, test, timing, wait_until

# A disk that takes its time: flash answers first.
SLOW = "fixed:40ms:8"
PAGE = 8192


def redo_cell(place, **options):
    """A served cell with a redo grid disk, and a flash log beside a small flash cache."""
    cell = place.cell(disks=("160M",), flash=("96M",), griddisks=("data:32M", "redo:32M:redo"), **options)
    cell.set_device("forgetful = true")
    cell.start()
    for statement in ("drop flashcache", "drop flashlog", "create flashlog all size=32M", "create flashcache all size=32M"):
        cell.cellcli(statement)
    return cell


class Redo:
    """A client that writes as a database does: the last page again and again, and a flush after each."""

    def __init__(self, cell, seed):
        self.random = random.Random(seed)
        self.content = {}
        self.pending = {}
        self.connect(cell)

    def connect(self, cell):
        self.client = nbdclient.Client(cell.socket, export="redo")

    def commit(self, page):
        data = self.random.randbytes(PAGE)
        self.pending[page] = data
        self.client.write(page * PAGE, data)
        self.client.flush()
        self.content.update(self.pending)
        self.pending.clear()

    def verify(self, what):
        for page, data in sorted(self.content.items()):
            check(self.client.read(page * PAGE, PAGE) == data, f"page {page} {what} is not what was flushed")


def firsts(cell):
    names = ("FL_FLASH_FIRST", "FL_DISK_FIRST", "FL_RQ_W")
    metrics = {name: value for (name, _), value in cell.metrics().items() if name.startswith("FL_")}
    skips = sum(value for name, value in metrics.items() if name.startswith("FL_IO_W_SKIP") and not name.endswith("_MIN"))
    return [metrics[name] for name in names] + [skips]


@timing
def flash_answers_redo_of_a_slow_disk_and_a_crash_loses_nothing_of_it():
    with Place("flash-log") as place:
        cell = redo_cell(place, model=SLOW)
        redo = Redo(cell, "redo")
        for mode in ("auto", "race", "hedge", "flash"):
            cell.cellcli(f"alter griddisk redo flashLogMode={mode}")
            for cycle in range(3):
                # More than it takes the log to learn, so that auto and hedge know the disk.
                for n in range(40):
                    redo.commit(n // 3 + 13 * cycle)
                flash, disk, all_writes, skips = firsts(cell)
                equal(flash + disk + skips, all_writes, f"firsts and skips in mode {mode}")
                if mode in ("race", "flash"):
                    measured(flash > 0, f"flash has answered nothing in mode {mode}, on a disk of 40 ms")
                cell.kill()
                cell.start()
                redo.connect(cell)
                redo.verify(f"after a crash in mode {mode}")
        contains(cell.log(), "of redo replayed", "what the last start says")
        cell.stop()
        cell.start()
        check("of redo replayed" not in cell.log(), "something was replayed after a clean stop")
        redo.connect(cell)
        redo.verify("after a clean stop")
        cell.stop()


@test
def the_flash_log_is_dropped_made_again_and_switched_off():
    with Place("flash-log") as place:
        cell = redo_cell(place)
        redo = Redo(cell, "admin")
        row = cell.json("list flashlog attributes all")[0]
        equal(row["status"], "normal", "status of the flash log")
        for statement in (
            "alter griddisk redo flashLogMode=off",
            "alter griddisk redo flashLogMode=race",
            "drop flashlog",
            "create flashlog all size=16M",
        ):
            redo.commit(1)
            cell.cellcli(statement)
            redo.commit(2)
            redo.verify(f"after {statement}")
        cell.kill()
        cell.start()
        redo.connect(cell)
        redo.verify("after a crash")
        cell.stop()


class FailingDisk:
    """nbdkit in memory, that fails every change while a file is there."""

    def __init__(self, place):
        self.trigger = place.path("disk-fails")
        self.socket = place.path("disk.sock")
        command = ["nbdkit", "-f", "-U", self.socket, "--filter=error", "memory", "192M"]
        for verb in ("pwrite", "zero", "trim"):
            command += [f"error-{verb}=EIO", f"error-{verb}-rate=100%", f"error-{verb}-file={self.trigger}"]
        place.spawn(command, **QUIET)
        wait_until(lambda: os.path.exists(self.socket), 20, "nbdkit listens")

    @property
    def uri(self):
        return f"nbd+unix:///?socket={self.socket}"

    def fail(self):
        open(self.trigger, "w").close()

    def heal(self):
        os.unlink(self.trigger)


@test
def redo_that_the_disk_refuses_is_saved_on_flash_and_replayed():
    need("nbdkit")
    with Place("flash-log") as place:
        disk = FailingDisk(place)
        cell = place.cell(disks=(disk.uri,), flash=("96M",), griddisks=("redo:32M:redo",))
        cell.set_device("forgetful = true", kind="flash")
        cell.start()
        cell.cellcli("drop flashcache; drop flashlog; create flashlog all size=32M")
        redo = Redo(cell, "saved")
        for page in range(8):
            redo.commit(page)
        equal(cell.metric("FL_BY_KEEP"), 0, "saved redo of a disk that is well")
        disk.fail()
        for page in range(4, 24):
            redo.commit(page)
        redo.verify("while its disk refuses it")
        wait_until(lambda: cell.metric("FL_BY_KEEP") > 0, 20, "what the disk refuses is counted as saved")
        contains(cell.cellcli("drop flashlog", ok=False).stderr, "DROP FLASHLOG FORCE", "dropping the flash log with saved redo")
        # The disk comes back while the cell runs.
        disk.heal()
        wait_until(lambda: cell.metric("FL_BY_KEEP") == 0, 20, "the disk takes what was saved")
        redo.verify("once its disk takes writes again")
        # It fails again, and the cell dies with redo on flash alone.
        disk.fail()
        for page in range(20, 40):
            redo.commit(page)
        cell.kill()
        disk.heal()
        cell.start()
        contains(cell.log(), "of redo replayed", "what the start says")
        redo.connect(cell)
        redo.verify("after a crash with redo on flash alone")
        cell.stop()


@test
def redo_writes_of_a_running_cell_are_recorded_and_summed_up():
    with Place("redo-record") as place:
        cell = redo_cell(place)
        tagged, plain = (nbdclient.Client(cell.socket, export=export) for export in ("redo@SPOT", "redo"))
        data = nbdclient.Client(cell.socket, export="data")
        path = place.path("redo.capture")
        recording = record(place, "redo", cell, path, "--for", "4s")
        commits = 50
        for n in range(commits):
            for client in (tagged, plain, data):
                client.write(n * PAGE, b"\1" * PAGE)
                client.flush()
        equal(recording.wait(timeout=60), 0, "exit code of the recording")
        contains(recording.stderr.read(), f"{2 * commits} redo writes recorded", "what it says in the end")
        equal(sorted({(row[2], row[3]) for row in recorded(path)}), [("redo", ""), ("redo", "SPOT")], "who committed")
        summary = json.loads(run([binary(), "redo", "summary", path, "--json"]).stdout)
        equal(summary["count"], 2 * commits, "redo writes summed up")
        # Made by somebody, and not to be written over.
        contains(run([binary(), "redo", "record", "-c", cell.dir, path], ok=False).stderr, "hint: ", "a file that is there")
        cell.stop()
