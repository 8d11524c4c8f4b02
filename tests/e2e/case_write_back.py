"""Write-back: modes switched under load, flash that is missing while it holds the only copy, FLUSH and its cancel."""

import contextlib
import os
import pty
import random
import re
import shutil
import signal
import threading
import time

import nbdclient
from case_devices import SIZE, Data
from harness import MIB, Failure, binary, check, contains, equal, measured, measured_equal, served, test, timing, wait_until

WRITE_BACK = "data:64M:data:write-back"
EIO = 5
# What a thread of clients writes and reads; the rest of the disk belongs to `Data`.
LOAD_BYTES = 8 * MIB
THREADS = 2


class Load:
    """Clients that write and compare what they read until `end`, each on a stretch of the disk of its own."""

    def __init__(self, cell, models=None):
        self.cell = cell
        self.going = True
        self.failed = None
        self.writes = 0
        self.models = models or [bytearray(LOAD_BYTES) for _ in range(THREADS)]
        self.threads = [threading.Thread(target=self.guarded, args=(i,)) for i in range(THREADS)]
        for thread in self.threads:
            thread.start()

    def guarded(self, index):
        try:
            self.work(index)
        except Exception as error:  # told in the main thread
            self.failed = error

    @staticmethod
    def base(index):
        return 32 * MIB + index * LOAD_BYTES

    def work(self, index):
        rng, model, base = random.Random(index), self.models[index], self.base(index)
        client = nbdclient.Client(self.cell.socket)
        while self.going:
            at, length = rng.randrange(LOAD_BYTES - 70000), rng.choice([1, 512, 4096, 4096, 16384, 65536])
            if rng.random() < 0.7:
                at -= at % 4096
            kind = rng.random()
            if kind < 0.5:
                data = rng.randbytes(length)
                client.write(base + at, data, fua=rng.random() < 0.05)
                model[at : at + length] = data
                self.writes += 1
            elif kind < 0.97:
                equal(client.read(base + at, length), bytes(model[at : at + length]), f"content at {base + at} under load")
            else:
                client.flush()
        client.disconnect()

    def more(self, count=100):
        """Wait until so many further writes were acknowledged."""
        wanted = self.writes + count
        wait_until(lambda: self.failed or self.writes >= wanted, 60, "clients write on")
        self.check()

    def check(self):
        if self.failed:
            raise Failure(f"a client under load: {self.failed!r}") from self.failed

    def end(self):
        self.going = False
        for thread in self.threads:
            thread.join()
        self.check()

    def read(self):
        """Read all of it and compare."""
        client = nbdclient.Client(self.cell.socket)
        for index, model in enumerate(self.models):
            for at in range(0, LOAD_BYTES, MIB):
                where = self.base(index) + at
                equal(client.read(where, MIB), bytes(model[at : at + MIB]), f"content at {where}")
        client.disconnect()


@contextlib.contextmanager
def loaded(cell, models=None):
    """Clients at work; `models`: what they find on the disk, of clients before."""
    load = Load(cell, models)
    try:
        yield load
    finally:
        load.going = False
        for thread in load.threads:
            thread.join()


def dirty(cell):
    return cell.metric("FC_BY_DIRTY")


def grid_disk(cell, name="data"):
    return cell.json(f"list griddisk {name} attributes all")[0]


def set_mode(cell, mode):
    cell.cellcli(f'alter griddisk data cachingMode="{mode}"')
    equal(grid_disk(cell)["cachingMode"], mode, "caching mode")


def change_and_leave_dirty(data, seed, count=300):
    """Overwrite pieces; some of them are on flash alone afterwards. On a busy machine all may be on the disk before anybody has looked."""
    for attempt in range(10):
        data.change(f"{seed}, {attempt}", count)
        if dirty(data.cell) > 0:
            return
    raise Failure("the flash holds nothing that the disk does not have")


@contextlib.contextmanager
def flash_away(cell, index=0):
    """The image of a flash device is not where it was."""
    path = cell.device("flash", index)
    os.rename(path, path + ".away")
    try:
        yield
    finally:
        if os.path.exists(path):
            os.unlink(path)
        os.rename(path + ".away", path)


@test
def write_back_is_switched_on_and_off_under_load():
    with served(griddisks=(WRITE_BACK,)) as cell:
        data = Data(cell)
        with loaded(cell) as load:
            for mode in ("write-through", "write-back", "write-through", "none", "write-back"):
                load.more()
                set_mode(cell, mode)
                if mode != "write-back":
                    equal(dirty(cell), 0, f"dirty data in mode {mode}")
            data.change("switched")
            load.more()
            check(dirty(cell) > 0, "the flash holds data that the disk does not have")
            set_mode(cell, "write-through")
            load.more()
            load.end()
        for end in (cell.kill, cell.stop):
            end()
            with flash_away(cell):
                cell.start()
                equal(grid_disk(cell)["status"], "active", "status in write-through without flash")
                data.read(1)
                load.read()
                data.change("without flash", 50)
                cell.stop()
            cell.start()
            data.read()
            load.read()
        # The flash that came back may be written back to again.
        cell.cellcli("drop flashcache; create flashcache all")
        set_mode(cell, "write-back")
        change_and_leave_dirty(data, "again")
        cell.kill()
        cell.start()
        data.read()
        cell.stop()


@test
def write_back_verified_by_fio_while_modes_are_switched():
    from case_clients import fio, need

    need("fio")
    with served(griddisks=(WRITE_BACK,), flash=("48M",)) as cell:
        failed = []

        def verify():
            try:
                common = ("--size=24m", "--bsrange=4k-64k", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--thread=1")
                backlog = ("--rw=randrw", "--verify_backlog=64", "--do_verify=1", "--io_size=384m", "--randseed=4")
                fio(cell, "w", "--uri=" + cell.uri(), *common, *backlog)
            except Exception as error:  # told in the main thread
                failed.append(error)

        thread = threading.Thread(target=verify)
        thread.start()
        switches = 0
        modes = ("write-through", "write-back", "none", "write-back")
        while thread.is_alive():
            set_mode(cell, modes[switches % len(modes)])
            switches += 1
            thread.join(0.1)
        if failed:
            raise failed[0]
        print(f"# {switches} switches", flush=True)
        check(switches > len(modes), "too few switches: the run tested nothing")
        cell.stop()


def all_eio(cell, name="data"):
    """The grid disk is offline: every request answers EIO."""
    equal(grid_disk(cell, name)["status"], "offline", f"status of {name}")
    client = nbdclient.Client(cell.socket, export=name)
    for at in range(0, SIZE, MIB):
        equal(client.call(nbdclient.READ, offset=at, length=4096)[0], EIO, f"errno of a read at {at}")
    equal(client.call(nbdclient.WRITE, offset=0, data=bytes(4096))[0], EIO, "errno of a write")
    equal(client.call(nbdclient.ZEROES, offset=0, length=4096)[0], EIO, "errno of a zeroing")
    client.disconnect()


@test
def write_back_without_its_flash_answers_errors_and_never_old_data():
    with served(griddisks=(WRITE_BACK, "other:16M")) as cell:
        data = Data(cell)
        other = nbdclient.Client(cell.socket, export="other")
        other.write(0, b"other" * 4000)
        other.read(0, 20000)
        other.disconnect()
        for end in (cell.kill, cell.stop):
            change_and_leave_dirty(data, end.__name__)
            end()
            with flash_away(cell):
                cell.start()
                contains(cell.log(), "grid disk data is offline", "the log names the grid disk")
                all_eio(cell)
                # What would take the old data for the whole is refused.
                for statement in (
                    'alter griddisk data cachingMode="write-through"',
                    'alter griddisk data cachingMode="none"',
                    "alter griddisk data cachingPolicy=none",
                    "alter griddisk data size=8M force",
                    "alter flashcache all flush",
                    "drop flashcache",
                ):
                    done = cell.cellcli(statement, ok=None)
                    check(done.returncode == 1, f"{statement} is refused: {done.stdout}{done.stderr}")
                    contains(done.stderr, "hint:", f"message of {statement}")
                all_eio(cell)
                # The other grid disk of the same disk goes on; in it nothing old may come back with the flash.
                equal(grid_disk(cell, "other")["status"], "active", "status of the other grid disk")
                client = nbdclient.Client(cell.socket, export="other")
                equal(client.read(0, 20000), b"other" * 4000, "content of the other grid disk")
                client.write(0, b"newer" * 4000)
                client.disconnect()
                cell.kill()
                cell.start()
                all_eio(cell)
                cell.stop()
            cell.start()
            equal(grid_disk(cell)["status"], "active", "status with the flash back")
            data.read()
            client = nbdclient.Client(cell.socket, export="other")
            equal(client.read(0, 20000), b"newer" * 4000, "the newer content of the other grid disk")
            client.write(0, b"other" * 4000)
            client.disconnect()
        cell.stop()


@test
def write_back_takes_no_old_copy_of_flash_or_disk_for_the_whole():
    """A snapshot of one of the two comes back after writes: offline, until the right one is there again."""
    with served(griddisks=(WRITE_BACK,)) as cell:
        data = Data(cell)
        for kind in ("flash", "disk"):
            for end in (cell.stop, cell.kill):
                change_and_leave_dirty(data, f"old {kind}")
                cell.stop()
                path, old = cell.device(kind), cell.place.path("old.img")
                shutil.copy(path, old)
                cell.start()
                change_and_leave_dirty(data, f"newer than {kind}")
                end()
                os.rename(path, path + ".right")
                shutil.copy(old, path)
                cell.start()
                all_eio(cell)
                cell.stop()
                os.rename(path + ".right", path)
                cell.start()
                data.read(1)
        cell.stop()


@test
def write_back_on_flash_lost_while_serving():
    """The flash is cut to nothing under dirty data: a read is right or fails, then and after a restart."""
    with served(griddisks=(WRITE_BACK,)) as cell:
        data = Data(cell)
        change_and_leave_dirty(data, "before the loss")
        os.truncate(cell.device("flash"), 0)
        client = nbdclient.Client(cell.socket)
        errors = 0
        for at in range(0, SIZE, 16384):
            error, got = client.call(nbdclient.READ, offset=at, length=16384)
            if error:
                equal(error, EIO, "errno of a read")
                errors += 1
            else:
                equal(got, bytes(data.bytes[at : at + 16384]), f"content at {at}")
        check(errors > 0, "dirty data is gone, and no read said so")
        client.disconnect()
        cell.check_alive()
        cell.kill()
        cell.start()
        all_eio(cell)
        cell.cellcli("drop griddisk data force")
        cell.stop()


@test
def write_back_over_two_flash_devices_loses_one_while_serving():
    """What is dirty is on both: one is cut to nothing, and nobody notices but the operator."""
    with served(griddisks=(WRITE_BACK,), flash=("48M", "48M")) as cell:
        data = Data(cell)
        change_and_leave_dirty(data, "before the loss")
        os.truncate(cell.device("flash", 1), 0)
        data.read()
        data.change("after the loss")
        data.read()
        equal(grid_disk(cell)["status"], "active", "status with one flash device lost")
        cell.kill()
        cell.start()
        data.read()
        wait_until(lambda: dirty(cell) == 0, 60, "what is dirty goes to the disk")
        # Write-back with one copy is not what was asked for.
        data.change("with one left")
        equal(dirty(cell), 0, "bytes dirty with one flash device left")
        cell.stop()
        cell.start()
        data.read()
        cell.stop()


@test
def write_back_over_two_flash_devices_starts_without_either():
    """Each in turn is not there at a start after kill -9, and back at a later one."""
    with served(griddisks=(WRITE_BACK,), flash=("48M", "48M")) as cell:
        data = Data(cell)
        for index in (0, 1):
            change_and_leave_dirty(data, f"dirty on both, {index}")
            cell.kill()
            with flash_away(cell, index):
                cell.start()
                equal(grid_disk(cell)["status"], "active", f"status without flash {index}")
                data.read()
                data.change(f"without flash {index}")
                cell.kill()
            # It would be asked first for what the other has: it waits until the disk is whole.
            cell.start()
            contains(cell.log(), "is left out", "the log tells of the flash device that waits")
            data.read()
            data.change(f"flash {index} waits")
            wait_until(lambda: dirty(cell) == 0, 60, "what is dirty goes to the disk")
            cell.stop()
            cell.start()
            data.read()
            change_and_leave_dirty(data, f"flash {index} is back")
            data.read()
        cell.stop()


@test
def flush_of_the_cache_leaves_nothing_dirty_and_lets_writes_go_on():
    with served(griddisks=(WRITE_BACK,)) as cell:
        data = Data(cell)
        with loaded(cell) as load:
            load.more()
            for statement in ("alter flashcache all flush", "alter griddisk data flush"):
                change_and_leave_dirty(data, statement)
                contains(cell.cellcli(statement).stdout, "successfully altered", "answer")
                equal(dirty(cell), 0, "dirty data after FLUSH, under load")
                load.more()
                equal(dirty(cell), 0, "dirty data until FLUSH is cancelled")
                cell.cellcli(statement.replace("flush", "cancel flush"))
                load.more()
                check(dirty(cell) > 0, "writes are dirty again after CANCEL FLUSH")
            cell.cellcli("alter flashcache all flush")
            load.end()
        data.change("after the flush")
        equal(dirty(cell), 0, "dirty data")
        # A clean stop after FLUSH: the disk is whole without the flash.
        cell.stop()
        with flash_away(cell):
            cell.start()
            equal(grid_disk(cell)["status"], "active", "status without flash, after FLUSH")
            data.read(1)
            load.read()
            cell.stop()
        cell.start()
        data.read()
        load.read()
        cell.stop()


@test
def flush_of_the_cache_is_cancelled():
    # A slow disk, and dirty data scattered over it: a flush of some seconds.
    with served(griddisks=(WRITE_BACK,), model="fixed:20ms:1") as cell:
        client = nbdclient.Client(cell.socket)
        blocks = [index * 48 << 10 for index in range(350)]
        for at in blocks:
            client.write(at, at.to_bytes(8, "big") * 512)
        client.flush()
        left = dirty(cell)
        check(left > 0, "the flash holds data that the disk does not have")
        for what in ("flashcache all", "griddisk data"):
            answers = []
            flush = threading.Thread(target=lambda what=what: answers.append(cell.cellcli(f"alter {what} flush", ok=None)))
            flush.start()
            time.sleep(0.5)
            check(flush.is_alive(), f"the flush is under way: {answers}")
            started = time.monotonic()
            client.write(blocks[0], bytes(4096))
            client.write(blocks[0], blocks[0].to_bytes(8, "big") * 512)
            cell.cellcli(f"alter {what} cancel flush")
            flush.join(20)
            check(answers, "the flush ends when it is cancelled")
            print(f"# ended {time.monotonic() - started:.1f} s later", flush=True)
            equal(answers[0].returncode, 1, "exit code of a flush that was cancelled")
            contains(answers[0].stderr, "cancelled", "message")
            contains(answers[0].stderr, "hint:", "message")
            check(dirty(cell) > 0, "some of it is dirty still")
        # With none under way it is no error.
        for what in ("flashcache all", "griddisk data"):
            contains(cell.cellcli(f"alter {what} cancel flush").stdout, "successfully altered", "answer")
        for at in blocks:
            equal(client.read(at, 4096), at.to_bytes(8, "big") * 512, f"content at {at}")
        client.disconnect()
        cell.kill()
        cell.start()
        client = nbdclient.Client(cell.socket)
        for at in blocks:
            equal(client.read(at, 4096), at.to_bytes(8, "big") * 512, f"content at {at} after kill -9")
        cell.cellcli("alter flashcache all flush")
        equal(dirty(cell), 0, "dirty data after FLUSH")
        client.disconnect()
        cell.stop()


class Terminal:
    """A CellCLI with one statement, at a terminal of its own."""

    def __init__(self, cell, statement):
        self.ours, theirs = pty.openpty()
        command = [binary(), "cellcli", "-c", cell.dir, "-e", statement]
        self.process = cell.place.spawn(command, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.text = ""
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        with contextlib.suppress(OSError):
            while piece := os.read(self.ours, 4096):
                self.text += piece.decode()

    def end(self):
        code = self.process.wait(timeout=60)
        self.thread.join(20)
        os.close(self.ours)
        return code


@timing
def flush_of_the_cache_says_how_it_goes():
    """flushStatus and flushError; at a terminal what is left; ^C leaves the flush to the cell."""
    with served(griddisks=(WRITE_BACK,), model="fixed:3ms:1") as cell:
        told = lambda: {
            row["diskType"]: (row.get("flushStatus"), row.get("flushError"))
            for row in cell.json("list celldisk attributes name, diskType, flushStatus, flushError")
        }
        flash = lambda: told()["FlashDisk"]
        check(not flash()[0], "nothing is told before the first flush")

        def write(count):
            client = nbdclient.Client(cell.socket)
            for index in range(count):
                client.write(index * 16 << 10, index.to_bytes(8, "big") * 512)
            client.flush()
            client.disconnect()

        # Four rounds of destaging: what is left goes down with each.
        write(4000)
        terminal = Terminal(cell, "alter flashcache all flush")
        wait_until(lambda: "MB/s, about" in terminal.text, 20, "progress with rate and time")
        check(re.search(r"\r\d+\.\d MB left, \d+\.\d MB/s, about \d+ s to go", terminal.text), f"progress: {terminal.text!r}")
        equal(flash()[0], "working", "flushStatus of a flush under way")
        check(not told()["HardDisk"][0], "a hard disk is not flushed")
        os.killpg(terminal.process.pid, signal.SIGINT)
        started = time.monotonic()
        equal(terminal.end(), 1, "exit code after ^C")
        measured(time.monotonic() - started < 5, "^C ends the waiting at once")
        contains(terminal.text, "the flush goes on in the cell", "what ^C says")
        contains(terminal.text, "hint: ALTER FLASHCACHE ALL CANCEL FLUSH cancels it", "what ^C says")
        wait_until(lambda: flash()[0] == "completed", 60, "it goes on to its end")
        equal(dirty(cell), 0, "dirty bytes")
        cell.cellcli("alter flashcache all cancel flush")
        equal(flash()[0], "cancelled", "flushStatus after CANCEL FLUSH")
        # Another one to its end, of a grid disk; and one that is cancelled.
        write(100)
        terminal = Terminal(cell, "alter griddisk data flush")
        equal(terminal.end(), 0, "exit code")
        contains(terminal.text.splitlines()[-1], "successfully altered", "the answer comes after the progress")
        equal(flash()[0], "completed", "flushStatus")
        cell.cellcli("alter griddisk data cancel flush")
        write(2000)
        terminal = Terminal(cell, "alter griddisk data flush")
        wait_until(lambda: flash()[0] == "working", 10, "under way")
        cell.cellcli("alter griddisk data cancel flush")
        measured_equal(terminal.end(), 1, "exit code of a flush that was cancelled")
        equal(flash()[0], "cancelled", "flushStatus of one that was cancelled")
        # Nobody waits for one with NOWAIT, and it goes to its end.
        started = time.monotonic()
        cell.cellcli("alter flashcache all flush nowait")
        measured(time.monotonic() - started < 3, "NOWAIT returns at once")
        wait_until(lambda: flash()[0] in ("working", "completed"), 5, "flushStatus after NOWAIT")
        wait_until(lambda: flash()[0] == "completed", 60, "it ends all the same")
        # Nothing but the answer where nobody looks.
        done = cell.cellcli("alter flashcache all flush")
        equal(done.stderr, "", "stderr that is no terminal")
        cell.stop()
