"""Flash that is missing, blank, swapped, old or lost while serving; disks that are missing or damaged."""

import os
import random
import shutil

import nbdclient
from harness import MIB, Place, binary, check, contains, equal, measured, pattern, read_line, run, served, test, timing, wait_until

SIZE = 24 * MIB


class Data:
    """What the disk must hold, written and read through a client, warm in the cache."""

    def __init__(self, cell, seed="data"):
        self.cell = cell
        self.bytes = bytearray(pattern(seed, SIZE))
        client = nbdclient.Client(cell.socket)
        for at in range(0, SIZE, MIB):
            client.write(at, self.bytes[at : at + MIB])
        client.flush()
        client.disconnect()
        self.read()

    def read(self, rounds=2, unit=16384):
        """Read all of it and compare; twice, so that it is in the cache."""
        client = nbdclient.Client(self.cell.socket)
        for _ in range(rounds):
            for at in range(0, SIZE, unit):
                equal(client.read(at, unit), bytes(self.bytes[at : at + unit]), f"content at {at}")
        client.disconnect()

    def change(self, seed, count=200):
        """Overwrite pieces here and there."""
        rng = random.Random(seed)
        client = nbdclient.Client(self.cell.socket)
        for _ in range(count):
            at, length = rng.randrange(SIZE - 70000), rng.choice([1, 512, 4096, 4097, 65536])
            data = rng.randbytes(length)
            client.write(at, data)
            self.bytes[at : at + length] = data
        client.flush()
        client.disconnect()


def flash_status(cell):
    return cell.json("list flashcache attributes all")[0]["status"]


@test
def flash_missing_at_start():
    with served() as cell:
        data = Data(cell)
        for end in (cell.stop, cell.kill):
            end()
            os.rename(cell.device("flash"), cell.device("flash") + ".away")
            cell.start()
            contains(cell.log(), "flash-0.img", "the log names the device")
            data.read()
            data.change("without flash")
            data.read(1)
            equal(flash_status(cell), "critical", "status of the flash cache")
            cell.stop()
            # It comes back with what it held before the changes: nothing of that may be served.
            os.rename(cell.device("flash") + ".away", cell.device("flash"))
            cell.start()
            data.read()
            data.change("flash is back")
            data.read()
        cell.stop()


@test
def flash_blanked_at_start():
    with served() as cell:
        data = Data(cell)
        cell.stop()
        size = os.path.getsize(cell.device("flash"))
        with open(cell.device("flash"), "wb") as file:
            file.truncate(size)
        cell.start()
        contains(cell.log(), "flash-0.img", "the log names the device")
        data.read()
        data.change("blank")
        data.read()
        cell.stop()


@test
def flash_swapped_at_start():
    """The flash of another cell, and the two flash devices of one cell changed over."""
    with served(flash=("48M", "48M")) as cell:
        data = Data(cell)
        cell.stop()
        # By identity, not by path: changed over is no change at all.
        first, second = cell.device("flash", 0), cell.device("flash", 1)
        os.rename(first, first + ".x")
        os.rename(second, first)
        os.rename(first + ".x", second)
        cell.start()
        data.read()
        equal(flash_status(cell), "normal", "status of the flash cache")
        cell.stop()
        other = cell.place.path("other")
        run([binary(), "init", other, "--disk", "64M", "--flash", "48M"])
        shutil.copy(os.path.join(other, "flash-0.img"), first)
        # A device of another cell: the cell either goes on without it or names it; it never uses it.
        process = cell.spawn_server()
        line = read_line(process, 60)
        process.terminate()
        process.wait(timeout=60)
        check(line.startswith("ready "), f"a cell goes on without foreign flash; log:\n{cell.log()[-1500:]}")
        contains(cell.log(), "flash-0.img", "the log names the foreign device")
        cell.start()
        data.read()
        data.change("foreign")
        data.read()
        cell.stop()


@test
def flash_put_back_from_an_old_copy():
    """A copy of the flash taken a while ago (a snapshot) comes back after writes: none of its content may be served."""
    with served() as cell:
        data = Data(cell)
        cell.stop()
        old = cell.place.path("old.img")
        shutil.copy(cell.device("flash"), old)
        for clean in (True, False):
            cell.start()
            data.change(f"newer {clean}", 400)
            data.read(1)
            cell.stop() if clean else cell.kill()
            shutil.copy(old, cell.device("flash"))
            cell.start()
            data.read()
            cell.stop()
        # And the disk from an old copy under newer flash.
        old_disk = cell.place.path("old-disk.img")
        shutil.copy(cell.device("disk"), old_disk)
        before = bytes(data.bytes)
        cell.start()
        data.change("newest", 400)
        data.read()
        cell.stop()
        shutil.copy(old_disk, cell.device("disk"))
        data.bytes[:] = before
        cell.start()
        data.read()
        cell.stop()


def lose(cell, data, index=0):
    """Cut a flash file to nothing and read, until the cell has noticed.

    A write that is on its way at the cut makes the file long again, with holes in place of the content. Holes are caught as rot, one
    by one, and are no lost device: the file is cut again.
    """

    def noticed():
        os.truncate(cell.device("flash", index), 0)
        data.read(1)
        return flash_status(cell) != "normal"

    wait_until(noticed, 30, "the loss shows in the flash cache's status")


@test
def flash_lost_while_serving():
    """The flash file is cut to nothing under the running cell: reads and writes go on from the disk."""
    with served() as cell:
        data = Data(cell)
        lose(cell, data)
        data.read()
        data.change("lost")
        data.read()
        check(cell.metric("FC_IO_ERRS") > 0, "the loss is counted")
        cell.kill()
        cell.start()
        data.read()
        data.change("lost and crashed")
        data.read()
        cell.stop()


@timing
def one_of_two_flash_devices_lost_while_serving():
    with served(flash=("48M", "48M")) as cell:
        data = Data(cell)
        lose(cell, data, 1)
        equal(flash_status(cell), "warning", "one of two is lost")
        data.read()
        data.change("one lost")
        data.read()
        hits = cell.metric("FC_IO_RQ_R")
        data.read(1)
        measured(cell.metric("FC_IO_RQ_R") > hits, "the other device goes on serving hits")
        cell.kill()
        cell.start()
        data.read()
        cell.stop()


@test
def rot_on_flash_is_caught_and_repaired():
    with served() as cell:
        data = Data(cell)
        hits = cell.metric("FC_IO_RQ_R")
        check(hits > 0, "the data is in the cache")
        size = os.path.getsize(cell.device("flash"))
        with open(cell.device("flash"), "r+b") as file:
            # Past the label: every page of the cache is turned over.
            for at in range(8 * MIB, size, 4096):
                file.seek(at + 100)
                byte = file.read(1)
                file.seek(at + 100)
                file.write(bytes([byte[0] ^ 0xFF]))
        data.read()
        check(cell.metric("FC_IO_ROT") > 0, "rot is counted")
        data.change("after rot")
        data.read()
        cell.stop()


@test
def a_damaged_disk_label_names_the_device():
    with served() as cell:
        data = Data(cell)
        cell.stop()
        with open(cell.device("disk"), "rb") as file:
            head = file.read(4 * MIB)
        # The label is there four times, a MiB apart: one of them damaged is mended in passing.
        spoil(cell.device("disk"), head, 1)
        cell.start()
        data.read()
        cell.stop()
        with open(cell.device("disk"), "rb") as file:
            head = file.read(4 * MIB)
        spoil(cell.device("disk"), head, 4)
        message = cell.start_fails()
        contains(message, "disk-0.img", "message")
        contains(message, "hint:", "message")
        with open(cell.device("disk"), "r+b") as file:
            file.write(head)
        cell.start()
        data.read()
        cell.stop()


def spoil(path, head, mib):
    with open(path, "r+b") as file:
        for at in range(mib):
            piece = head[at * MIB : (at + 1) * MIB]
            file.seek(at * MIB)
            file.write(piece[:4096] + bytes(byte ^ 0x5A for byte in piece[4096:]))


@test
def a_missing_disk_names_the_device():
    with served(disks=("128M", "128M"), griddisks=("data:48M", "more:48M")) as cell:
        data = Data(cell)
        cell.stop()
        where = {row["name"]: row["cellDisk"] for row in cell_rows_after_restart(cell)}
        check(where["data"] != where["more"], f"grid disks lie on different disks: {where}")
        away = next(i for i in (0, 1) if where["more"].startswith(f"CD_{i:02d}"))
        os.rename(cell.device("disk", away), cell.device("disk", away) + ".away")
        message = cell.start_fails()
        contains(message, f"disk-{away}.img", "message")
        contains(message, "required = false", "message says the way round")
        cell.set_device("required = false", kind="disk")
        cell.start()
        data.read()
        try:
            nbdclient.Client(cell.socket, export="more")
        except (nbdclient.Refused, nbdclient.Gone):
            pass
        else:
            raise AssertionError("a grid disk on a missing disk is served")
        status = {row["name"]: row["status"] for row in cell.json("list griddisk attributes all")}
        equal(status, {"data": "active", "more": "not present"}, "status of the grid disks")
        cell.stop()
        os.rename(cell.device("disk", away) + ".away", cell.device("disk", away))
        cell.start()
        data.read()
        nbdclient.Client(cell.socket, export="more").disconnect()
        cell.stop()


def cell_rows_after_restart(cell):
    cell.start()
    rows = cell.json("list griddisk attributes all")
    cell.stop()
    return rows


@test
def a_disk_that_fails_answers_errors_and_the_cell_lives():
    """The disk file is cut: what it held answers EIO, the other disk's grid disk goes on."""
    with served(disks=("128M", "128M"), griddisks=("data:48M", "more:48M"), flash=()) as cell:
        data = Data(cell)
        where = {row["name"]: row["cellDisk"] for row in cell.json("list griddisk attributes all")}
        lost = 0 if where["more"].startswith("CD_00") else 1
        os.truncate(cell.device("disk", lost), 0)
        client = nbdclient.Client(cell.socket, export="more")
        error, _ = client.call(nbdclient.READ, offset=MIB, length=4096)
        equal(error, 5, "errno of a read from a lost disk (EIO)")
        client.disconnect()
        data.read(1)
        data.change("beside a lost disk")
        data.read(1)
        cell.check_alive()


@test
def new_and_grown_grid_disks_read_as_zeroes():
    with Place("zero") as place:
        # Devices full of old bytes.
        disk = place.file("disk.img", b"\xee" * (96 * MIB))
        flash = place.file("flash.img", b"\xdd" * (48 * MIB))
        cell = place.cell(disks=(disk,), flash=(flash,), griddisks=("data:16M",), force=True).start()
        zeroes(cell, "data", 0, 16 * MIB)
        client = nbdclient.Client(cell.socket)
        for at in range(0, 16 * MIB, MIB):
            client.write(at, b"\xaa" * MIB)
        client.disconnect()
        cell.cellcli("drop griddisk data force")
        cell.cellcli("create griddisk again celldisk=CD_00_cell, size=24M")
        zeroes(cell, "again", 0, 24 * MIB)
        cell.cellcli("alter griddisk again size=40M")
        zeroes(cell, "again", 0, 40 * MIB)
        cell.kill()
        cell.start()
        zeroes(cell, "again", 0, 40 * MIB)
        cell.stop()


def zeroes(cell, export, start, end):
    client = nbdclient.Client(cell.socket, export=export)
    equal(client.size, end, f"size of {export}")
    for at in range(start, end, MIB):
        equal(client.read(at, MIB), bytes(MIB), f"{export} at {at}")
    client.disconnect()


@test
def a_disk_grows_while_it_is_served():
    with served() as cell:
        data = Data(cell)
        free = cell.json("list celldisk CD_00_cell attributes freeSpace")[0]["freeSpace"]
        size = free + 32 * MIB
        grown = os.path.getsize(cell.device("disk")) + 64 * MIB
        statement = f"create griddisk more celldisk=CD_00_cell, size={size}"
        refused = cell.cellcli(statement, ok=False)
        contains(refused.stdout + refused.stderr, "CELL-", "there is no room for it")
        data.change("before")
        os.truncate(cell.device("disk"), grown)

        def made():
            return cell.cellcli(statement, ok=None).returncode == 0

        wait_until(made, 30, "the disk has room for another grid disk")
        contains(cell.log(), "has grown by 67108864 bytes", "the log says by how much")
        client = nbdclient.Client(cell.socket, export="more")
        client.write(size - MIB, b"\x5a" * MIB)
        client.flush()
        client.disconnect()
        data.read(1)
        for end in (cell.kill, cell.stop):
            end()
            cell.start()
            data.read(1)
            client = nbdclient.Client(cell.socket, export="more")
            equal(client.read(size - MIB, MIB), b"\x5a" * MIB, "what was written beyond the former end")
            client.disconnect()
        cell.stop()
