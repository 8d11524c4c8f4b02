"""Who uses a device: block devices are busy for others while a cell serves, and the claim on each device is heeded."""

import concurrent.futures
import os
import shutil
import struct
import time

import nbdclient
from harness import MIB, Failure, Place, Skip, binary, check, contains, equal, measured, need, pattern, run, test, timing_alone, wait_until

CLAIM_OFFSET = MIB - (64 << 10)
WATCH_SECONDS = 20


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def stamp(host, boot, instance, counter=1, released=0, name=b"elsewhere"):
    """A claim as docs/internals/disk-format.md draws it."""
    wide = lambda number: number.to_bytes(16, "little")
    head = b"FCCLAIM\n" + struct.pack("<II", 1, 0) + wide(host) + wide(boot) + wide(instance)
    head += struct.pack("<QQIBB", counter, 70, 7, released, len(name))
    sector = bytearray((head.ljust(128, b"\0") + name).ljust(512, b"\0"))
    sector[12:16] = struct.pack("<I", crc32c(sector))
    return bytes(sector)


def claim_of(path):
    """(instance, counter, released) of the claim on an image."""
    with open(path, "rb") as file:
        file.seek(CLAIM_OFFSET)
        sector = file.read(512)
    equal(sector[:8], b"FCCLAIM\n", "magic of the claim")
    return int.from_bytes(sector[48:64], "little"), *struct.unpack("<Q", sector[64:72]), sector[84]


def export_of_memory(place):
    """The address of an export of 256 MiB that a server outside the project keeps in memory."""
    socket = place.path("export.sock")
    place.spawn(["nbdkit", "-f", "-U", socket, "memory", "256M"])
    wait_until(lambda: os.path.exists(socket), 30, "nbdkit listens")
    return f"nbd+unix:///?socket={socket}"


def put(path, sector):
    with open(path, "r+b") as file:
        file.seek(CLAIM_OFFSET)
        file.write(sector)
        os.fsync(file.fileno())


@test
def a_live_cell_disk_is_busy_for_mkfs_and_mount():
    need("losetup", "mkfs.ext4", "mount")
    if os.geteuid() != 0:
        raise Skip("loop devices need root")
    with Place("busy") as place:
        image = place.path("disk")
        with open(image, "wb") as file:
            file.truncate(128 * MIB)
        device = place.loop_device(image).path
        message = run([binary(), "init", place.path("f"), "--disk", image], ok=False).stderr
        contains(message, device, "a file that is a loop device's content is refused by its name")
        cell = place.cell(disks=(device,), flash=(), griddisks=("data:32M:data:none",)).start()
        client = nbdclient.Client(cell.socket)
        client.write(0, pattern("mine", MIB))
        client.flush()
        message = run(["mkfs.ext4", "-q", "-F", device], ok=False).stderr
        contains(message, "in use", "what mkfs says")
        os.mkdir(place.path("mnt"))
        done = run(["mount", "-t", "ext4", device, place.path("mnt")], ok=False)
        contains(done.stderr, "busy", "what mount says")
        equal(client.read(0, MIB), pattern("mine", MIB), "what was written")
        client.disconnect()
        # A process that was killed leaves nothing behind that keeps its successor out.
        cell.kill()
        cell.start()
        cell.stop()
        run(["mkfs.ext4", "-q", "-F", "-F", device])


@timing_alone
def a_start_after_another_host_watches_its_claim_and_names_both():
    with Place("watch") as place:
        cell = place.cell(griddisks=("data:32M",)).start()
        disk = cell.device("disk")
        first = claim_of(disk)
        wait_until(lambda: claim_of(disk)[1] > first[1], 15, "the claim is renewed")
        cell.stop()
        equal(claim_of(disk)[2], 1, "given back at a clean stop")
        # As this host has left it, as another has given it back, as another has left it.
        for left, waits in ((None, False), (stamp(1, 2, 3, released=1), False), (stamp(1, 2, 3), True)):
            if left:
                put(disk, left)
            began = time.monotonic()
            cell.start()
            took = time.monotonic() - began
            equal(took >= WATCH_SECONDS, waits, f"the start took {took:.1f} s")
            if waits:
                contains(cell.log(), "process 7 on host elsewhere", "the log names the other")
                contains(cell.log(), f"this is process {cell.process.pid}", "and this one")
            # Killed: of this host and boot, and gone. Nobody waits.
            cell.kill()
            began = time.monotonic()
            cell.start()
            measured(time.monotonic() - began < WATCH_SECONDS, "a start after a kill waits for nobody")
            cell.stop()


@test
def a_cell_whose_disk_another_host_has_taken_writes_no_more_to_it():
    with Place("taken") as place:
        cell = place.cell(flash=(), griddisks=("data:32M:data:none",)).start()
        client = nbdclient.Client(cell.socket)
        client.write(0, pattern("mine", MIB))
        client.flush()
        put(cell.device("disk"), stamp(1, 2, 3))
        wait_until(lambda: "has taken this device" in cell.log(), 30, "the loss of the claim is said")
        contains(cell.log(), "process 7 on host elsewhere", "who it was")
        for what in (lambda: client.write(MIB, bytes(4096)), client.flush):
            try:
                what()
            except OSError:
                continue
            check(False, "a change was taken on a device that another host has")
        client.disconnect()
        # That connection heard of a loss; another one reads.
        client = nbdclient.Client(cell.socket)
        equal(client.read(0, MIB), pattern("mine", MIB), "reads go on")
        client.disconnect()
        cell.kill()


@test
def two_cells_on_one_export():
    need("nbdkit")
    with Place("twice") as place:
        uri = export_of_memory(place)
        cell = place.cell(disks=(uri,), flash=(), griddisks=("data:32M:data:none",)).start()
        shutil.copytree(cell.dir, place.path("other"), ignore=shutil.ignore_patterns("*.sock"))
        other = place.cell(name="other", init=False)
        message = other.start_fails()
        contains(message, f"process {cell.process.pid}", "the message names who has it")
        contains(message, "hint:", "message")
        client = nbdclient.Client(cell.socket)
        client.write(0, pattern("mine", MIB))
        equal(client.read(0, MIB), pattern("mine", MIB), "the first goes on")
        client.disconnect()
        cell.stop()
        other.start()
        client = nbdclient.Client(other.socket)
        equal(client.read(0, MIB), pattern("mine", MIB), "the second has it after the first")
        client.disconnect()
        other.stop()


@timing_alone
def init_by_force_heeds_a_claim_before_it_changes_anything():
    need("nbdkit")
    with Place("force") as place:
        uri = export_of_memory(place)
        cell = place.cell(disks=(uri,), flash=(), griddisks=("data:32M:data:none",)).start()
        client = nbdclient.Client(cell.socket)
        client.write(0, pattern("mine", MIB))
        client.flush()
        # A cell that was there stays: nothing of it is removed before the claims have been looked at.
        other = place.path("other")
        run([binary(), "init", other, "--disk", "64M", "--sparse"])
        before = {name: os.path.getsize(os.path.join(other, name)) for name in ("cell.toml", "disk-0.img")}
        init = [binary(), "init", other, "--disk", "128M", "--disk", uri, "--sparse", "--force"]
        done = run(init, ok=False)
        contains(done.stderr, f"in use by process {cell.process.pid}", "the message names who has it")
        contains(done.stderr, "hint:", "message")
        equal({name: os.path.getsize(os.path.join(other, name)) for name in before}, before, "the other cell")
        equal(client.read(0, MIB), pattern("mine", MIB), "what the first has")
        client.write(MIB, pattern("more", MIB))
        client.flush()
        client.disconnect()
        cell.stop()
        # Given back: nobody waits, neither here nor at the start after it.
        began = time.monotonic()
        run(init)
        new = place.cell(name="other", init=False)
        new.start()
        measured(time.monotonic() - began < WATCH_SECONDS, "nobody waits for a claim that was given back")
        new.kill()
        # Left behind by a process that is gone: of this host and boot, nobody waits.
        began = time.monotonic()
        run(init)
        measured(time.monotonic() - began < WATCH_SECONDS, "nobody waits for a process that is gone")


@test
def of_two_cells_that_start_at_one_moment_on_one_export_one_serves():
    need("nbdkit")
    with Place("moment") as place:
        uri = export_of_memory(place)
        first = place.cell(disks=(uri,), flash=(), griddisks=("data:32M:data:none",))
        shutil.copytree(first.dir, place.path("other"), ignore=shutil.ignore_patterns("*.sock"))
        cells = (first, place.cell(name="other", init=False))

        def start(cell):
            try:
                return cell.start(), None
            except Failure as failure:
                return None, str(failure)

        for _ in range(3):
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                started = list(pool.map(start, cells))
            serving = [cell for cell, _ in started if cell]
            equal(len(serving), 1, f"cells that serve; the others: {[why for _, why in started if why]}")
            for _, why in started:
                if why:
                    contains(why, f"in use by process {serving[0].process.pid}", "the message names who has it")
            client = nbdclient.Client(serving[0].socket)
            client.write(0, pattern("mine", MIB))
            client.flush()
            client.disconnect()
            serving[0].stop()
