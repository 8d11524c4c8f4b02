"""Crash loops on devices that forget un-flushed writes, and the ledger that knows what may be read after each crash.

kill -9 alone proves nothing about FLUSH: the host's page cache keeps the bytes. So the devices forget: either by a layer of the
server itself (`forgetful = true` in cell.toml: un-flushed writes live in the process only), or the disk is served by
`nbdkit --filter=cache cache=writeback`, killed along with the cell.

kill -9 alone must lose nothing acknowledged, flushed or not: the same loop proves that on devices that keep every write.

The ledger works in sectors of 512 bytes, the unit that is never torn. Of each it knows the floor (the newest version that a
FLUSH or FUA covers) and every later version that was sent. After a crash a sector must hold one of these; what is read first is
then final, over further crashes too.
"""

import array
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import threading
import time

import nbdclient
from harness import MIB, QUIET, Failure, Place, Skip, check, run, wait_until

SECTOR = 512
DISK_BYTES = 16 * MIB
SECTORS = DISK_BYTES // SECTOR
# A quarter of the data, in segments small enough that they are reclaimed all the time.
FLASH_BYTES = 4 * MIB
# More than the data, in as many segments as it takes for blocks to be kept apart by how long they last: cleaning copies, dirty blocks too.
ROOMY_FLASH_BYTES = 28 * MIB
HEAD = struct.Struct("<8sQQQ")
RUN = struct.pack("<8s", os.urandom(8))
DEPTH = 16
CONNECTIONS = 2
WRITE_THROUGH, WRITE_BACK = "write-through", "write-back"
# Keys of the totals that only some loops have.
DIRTY_KIB, STATEMENTS, CLEANED = "KiB dirty at restarts", "statements", "segments cleaned"


class Lost(Failure):
    """Something a client was promised is not there."""


def sector_bytes(sector, seq):
    if seq == 0:
        return bytes(SECTOR)
    return HEAD.pack(RUN, sector, seq, ~seq & (1 << 64) - 1) * (SECTOR // HEAD.size)


class Ledger:
    """What each sector may hold. Version 0 and every zeroing read as zeroes."""

    def __init__(self):
        self.seq = 0
        self.zero = {0}
        self.acked = array.array("Q", bytes(8 * SECTORS))
        self.floor = array.array("Q", bytes(8 * SECTORS))
        # Versions sent after the floor, oldest first.
        self.later = [[] for _ in range(SECTORS)]
        self.checked = 0

    def sent(self, first, count, is_zero):
        self.seq += 1
        if is_zero:
            self.zero.add(self.seq)
        for sector in range(first, first + count):
            self.later[sector].append(self.seq)
        return self.seq

    def content(self, first, count, seq):
        return b"".join(sector_bytes(sector, seq) for sector in range(first, first + count))

    def done(self, first, count, seq, fua):
        for sector in range(first, first + count):
            self.acked[sector] = max(self.acked[sector], seq)
            if fua:
                self.raise_floor(sector, seq)

    def raise_floor(self, sector, seq):
        if seq > self.floor[sector]:
            self.floor[sector] = seq
            self.later[sector] = [version for version in self.later[sector] if version > seq]

    def flushed(self, snapshot):
        for sector in range(SECTORS):
            if snapshot[sector] > self.floor[sector]:
                self.raise_floor(sector, snapshot[sector])

    def permitted(self, sector):
        """What a read sent now may return: the acknowledged version, and those under way."""
        acked = self.acked[sector]
        return [acked, *(version for version in self.later[sector] if version > acked)]

    def found(self, sector, data, permitted, when):
        """The version in `data`; it must be one of those."""
        self.checked += 1
        if data == bytes(SECTOR):
            for version in permitted:
                if version in self.zero:
                    return version
            what = "zeroes"
        else:
            run_id, at, seq, check_seq = HEAD.unpack_from(data)
            if data != data[: HEAD.size] * (SECTOR // HEAD.size) or seq ^ check_seq != (1 << 64) - 1:
                what = f"a torn sector: {data[:64].hex()}"
            elif run_id != RUN:
                what = "data nobody wrote in this run"
            elif at != sector:
                what = f"foreign data: sector {at}, version {seq}"
            elif seq in permitted and seq not in self.zero:
                return seq
            else:
                what = f"version {seq}"
        raise Lost(
            f"{when}: lost: sector {sector} holds {what}; permitted are versions {permitted[:8]} "
            f"(flushed {self.floor[sector]}, acknowledged {self.acked[sector]}, last sent {self.seq})"
        )

    def collapse(self, sector, version):
        """What was read after a crash is final."""
        self.floor[sector] = self.acked[sector] = version
        self.later[sector] = []


class Connection(nbdclient.Client):
    """A client that takes replies as they come."""

    def ready(self):
        while select.select([self.sock], [], [], 0)[0]:
            more = self.sock.recv(1 << 18)
            if not more:
                raise nbdclient.Gone("end of stream")
            self.buffer += more
        replies = []
        while len(self.buffer) >= 16:
            cookie = struct.unpack_from(">Q", self.buffer, 8)[0]
            error = struct.unpack_from(">I", self.buffer, 4)[0]
            if len(self.buffer) < 16 + (0 if error else self.pending[cookie]):
                break
            replies.append(self.reply())
        return replies


class Workload:
    """Random requests on several connections until the server is killed."""

    def __init__(self, ledger, rng, connections, zeroes):
        self.ledger, self.rng, self.connections, self.zeroes = ledger, rng, connections, zeroes
        self.under_way = [{} for _ in connections]
        self.busy = set()
        self.counts = {"writes": 0, "flushes": 0, "reads": 0}

    def step(self):
        rng, ledger = self.rng, self.ledger
        index = rng.randrange(len(self.connections))
        connection, under_way = self.connections[index], self.under_way[index]
        if len(under_way) >= DEPTH:
            return False
        kind = rng.random()
        if kind < 0.04:
            cookie = connection.submit(nbdclient.FLUSH)
            under_way[cookie] = ("flush", array.array("Q", ledger.acked))
            return True
        # Half of it in a hot quarter, so that writes hit what is cached and not yet settled.
        count = rng.choice([1, 1, 3, 8, 8, 8, 8, 8, 16, 64, 128])
        space = SECTORS // 4 if rng.random() < 0.5 else SECTORS
        first = rng.randrange(space - count)
        if count >= 8 and rng.random() < 0.8:
            first -= first % 8
        if kind < 0.5:
            cookie = connection.submit(nbdclient.READ, offset=first * SECTOR, length=count * SECTOR)
            permitted = [ledger.permitted(sector) for sector in range(first, first + count)]
            under_way[cookie] = ("read", first, permitted)
            return True
        sectors = range(first, first + count)
        if not self.busy.isdisjoint(sectors):
            return True
        self.busy.update(sectors)
        fua = rng.random() < 0.05
        is_zero = rng.random() < 0.08 and self.zeroes
        seq = ledger.sent(first, count, is_zero)
        self.tell_reads(first, count, seq)
        flags = nbdclient.FUA if fua else 0
        if is_zero:
            flags |= rng.choice([0, 2])
            cookie = connection.submit(nbdclient.ZEROES, offset=first * SECTOR, length=count * SECTOR, flags=flags)
        else:
            data = ledger.content(first, count, seq)
            cookie = connection.submit(nbdclient.WRITE, offset=first * SECTOR, data=data, flags=flags)
        under_way[cookie] = ("write", first, count, seq, fua)
        return True

    def tell_reads(self, first, count, seq):
        """Reads under way may return what is sent now."""
        for under_way in self.under_way:
            for what in under_way.values():
                if what[0] == "read":
                    low, high = max(first, what[1]), min(first + count, what[1] + len(what[2]))
                    for sector in range(low, high):
                        what[2][sector - what[1]].append(seq)

    def take(self):
        for connection, under_way in zip(self.connections, self.under_way):
            for cookie, error, data in connection.ready():
                what = under_way.pop(cookie)
                if error:
                    raise Lost(f"{what[0]} answered with errno {error}")
                if what[0] == "flush":
                    self.counts["flushes"] += 1
                    self.ledger.flushed(what[1])
                elif what[0] == "write":
                    _, first, count, seq, fua = what
                    self.counts["writes"] += 1
                    self.busy.difference_update(range(first, first + count))
                    self.ledger.done(first, count, seq, fua)
                else:
                    _, first, permitted = what
                    self.counts["reads"] += 1
                    for i, versions in enumerate(permitted):
                        self.ledger.found(first + i, data[i * SECTOR : (i + 1) * SECTOR], versions, "while serving")

    def run(self):
        """Until the server is gone."""
        try:
            while True:
                room = any([self.step() for _ in range(4)])
                self.take()
                if not room:
                    select.select([c.sock for c in self.connections], [], [], 0.2)
        except (nbdclient.Gone, ConnectionError):
            pass
        for connection in self.connections:
            connection.close()


def verify(cell, ledger, rng, when):
    """Read everything, in pieces of random size and order; what is found is final."""
    client = nbdclient.Client(cell.socket)
    at, pieces = 0, []
    while at < SECTORS:
        count = min(rng.choice([1, 8, 8, 32, 128, 256]), SECTORS - at)
        pieces.append((at, count))
        at += count
    rng.shuffle(pieces)
    for first, count in pieces:
        data = client.read(first * SECTOR, count * SECTOR)
        for i in range(count):
            sector = first + i
            permitted = [ledger.floor[sector], *ledger.later[sector]]
            version = ledger.found(sector, data[i * SECTOR : (i + 1) * SECTOR], permitted, when)
            ledger.collapse(sector, version)
    client.disconnect()


class LocalDevices:
    """Disk and flash are files of the cell's own directory."""

    zeroes = True
    forgets = False

    def __init__(self, place, mode):
        self.cell = place.cell(disks=("48M",), flash=("40M",), griddisks=(f"data:16M:data:{mode}",))

    def start(self):
        self.cell.start()

    def kill(self):
        self.cell.kill()


class LastingDevices(LocalDevices):
    """What was written stays written: kill -9 of the process alone, which may lose nothing acknowledged, flushed or not."""

    name = "devices that keep every write"


class ForgetfulDevices(LocalDevices):
    """Both devices forget by a layer of the server."""

    name = "forgetful devices"
    forgets = True

    def __init__(self, place, mode):
        super().__init__(place, mode)
        self.cell.set_device("forgetful = true")


class CachedFile:
    """The disk is a file behind nbdkit's write-back cache, killed along with the cell; flash forgets by a layer of the server."""

    forgets = True
    programs = ("nbdkit",)

    def __init__(self, place, mode):
        for program in self.programs:
            if shutil.which(program) is None:
                raise Skip(f"not installed: {program}")
        self.place = place
        self.file = place.path("behind.img")
        with open(self.file, "wb") as file:
            file.truncate(48 * MIB)
        self.socket = place.path("nbdkit.sock")
        self.nbdkit = None
        disk = self.prepare()
        self.attach()
        self.cell = place.cell(disks=(disk,), flash=("24M",), griddisks=(f"data:16M:data:{mode}",))
        self.cell.set_device("forgetful = true", kind="flash")

    def attach(self):
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        command = ["nbdkit", "-f", "-U", self.socket, "--filter=cache", "file", self.file, "cache=writeback"]
        self.nbdkit = self.place.spawn(command, **QUIET)
        wait_until(lambda: os.path.exists(self.socket), 20, "nbdkit listens")

    def detach(self):
        if self.nbdkit is not None and self.nbdkit.poll() is None:
            self.nbdkit.send_signal(signal.SIGKILL)
            self.nbdkit.wait()

    def start(self):
        if self.nbdkit.poll() is not None:
            self.attach()
        self.cell.start()

    def kill(self):
        # The cell first: what it had not flushed is in nbdkit's memory and files without a name.
        self.cell.kill()
        self.detach()


class NbdkitCache(CachedFile):
    """Brought here by nbdfuse, which is killed too."""

    name = "disk behind nbdkit cache=writeback"
    programs = ("nbdkit", "nbdfuse")
    # The two have a fault of their own, found with this workload run on them alone: nbdfuse turns a punched hole, which
    # must read as zeroes, into TRIM, and the cache filter passes that by.
    zeroes = False

    def prepare(self):
        if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
            raise Skip("the disk is brought here by nbdfuse, which needs /dev/fuse and root")
        self.mount = self.place.path("mnt")
        os.mkdir(self.mount)
        self.disk = os.path.join(self.mount, "disk")
        self.nbdfuse = None
        self.place.cleanups.append(self.detach)
        return self.disk

    def attach(self):
        super().attach()
        self.nbdfuse = self.place.spawn(["nbdfuse", self.disk, "--unix", self.socket], **QUIET)
        wait_until(self.is_mounted, 20, "nbdfuse has mounted")
        wait_until(lambda: os.path.exists(self.disk), 20, "the disk is there")

    def is_mounted(self):
        # Never a stat: a mount whose server has died answers nothing.
        with open("/proc/mounts") as mounts:
            return any(line.split()[1] == self.mount for line in mounts)

    def detach(self):
        super().detach()
        if self.nbdfuse is not None and self.nbdfuse.poll() is None:
            self.nbdfuse.send_signal(signal.SIGKILL)
            self.nbdfuse.wait()
        if self.is_mounted():
            run(["umount", "-l", self.mount], ok=None)


class RemoteDisk(CachedFile):
    """An NBD export, attached by the cell itself."""

    name = "NBD disk behind nbdkit cache=writeback"
    zeroes = True

    def prepare(self):
        return f"nbd+unix:///?socket={self.socket}"


class Operator:
    """Changes how the grid disk is cached, and flushes the cache, until the server is killed."""

    STATEMENTS = (
        *(f'alter griddisk data cachingMode="{mode}"' for mode in (WRITE_THROUGH, WRITE_BACK, WRITE_BACK, "none")),
        "alter flashcache all flush",
        "alter griddisk data cancel flush",
    )

    def __init__(self, cell, rng):
        self.cell, self.rng = cell, random.Random(rng.random())
        self.done = 0
        self.refused = None
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        process = self.cell.process
        while process.poll() is None:
            statement = self.rng.choice(self.STATEMENTS)
            answer = self.cell.cellcli(statement, ok=None)
            if answer.returncode == 0:
                self.done += 1
                continue
            # It was killed meanwhile, or something is wrong.
            time.sleep(0.2)
            if process.poll() is None:
                self.refused = f"{statement}: {answer.stderr.strip()}"
                return

    def end(self):
        """Statements carried out. The server has been killed by now."""
        self.thread.join()
        if self.refused:
            raise Failure(self.refused)
        return self.done


def crash_loop(
    cycles,
    seed,
    devices=ForgetfulDevices,
    sabotage=None,
    say=lambda text: None,
    mode=WRITE_THROUGH,
    operated=False,
    roomy=False,
):
    """Run so many cycles; the totals. `Lost` when a promise was broken.

    `operated`: the mode changes meanwhile. `roomy`: everything fits in the cache, which cleans its garbage.
    """
    rng = random.Random(seed)
    ledger = Ledger()
    totals = dict.fromkeys(("writes", "flushes", "reads", "crashes", "hits"), 0)
    if mode == WRITE_BACK:
        totals |= {DIRTY_KIB: 0}
    if operated:
        totals |= {STATEMENTS: 0}
    if roomy:
        totals |= {CLEANED: 0}
    with Place("crash") as place:
        under_test = devices(place, mode)
        cell = under_test.cell
        if sabotage:
            cell.sabotage(sabotage)
        under_test.start()
        small_segments(cell, *(("128K", ROOMY_FLASH_BYTES) if roomy else ("256K", FLASH_BYTES)))
        for cycle in range(cycles):
            try:
                run_cycle(under_test, ledger, rng, totals, f"cycle {cycle + 1}")
            except Failure as failure:
                # What the cell said of it: such a failure comes once in many runs.
                raise type(failure)(f"{failure}; log of the cell:\n{cell.log()[-4000:]}") from failure
            if (cycle + 1) % 10 == 0:
                say(f"# {cycle + 1} cycles, {totals['writes']} writes, {totals['flushes']} flushes")
        verify(cell, ledger, rng, "after the last cycle")
        cell.stop()
        totals["sectors checked"] = ledger.checked
        check(totals["hits"] > 0, "no read was served from flash: the loop tests nothing of the cache")
        check(totals["flushes"] > cycles, "hardly a flush was acknowledged: the loop tests nothing")
        check(operated or totals.get(DIRTY_KIB) != 0, "no crash left dirty data on flash: the loop tests nothing of write-back")
        check(totals.get(STATEMENTS) != 0, "no statement was carried out")
        check(totals.get(CLEANED) != 0, "no segment was cleaned")
    return totals


def small_segments(cell, segment, flash_bytes):
    """Make the cache again with small segments, which are reclaimed all the time."""
    cell.edit(lambda text: text.replace('segment = "2M"', f'segment = "{segment}"'))
    cell.stop()
    cell.start()
    cell.cellcli(f"drop flashcache; create flashcache all size={flash_bytes >> 20}M")


def crash(under_test, ledger, totals):
    """Kill it; what the ledger may hold it to afterwards."""
    under_test.kill()
    totals["crashes"] += 1
    if not under_test.forgets:
        ledger.flushed(ledger.acked)


def restart(under_test, totals):
    under_test.start()
    if DIRTY_KIB in totals:
        totals[DIRTY_KIB] += int(under_test.cell.metric("FC_BY_DIRTY") * 1024)


def run_cycle(under_test, ledger, rng, totals, name):
    cell = under_test.cell
    workload = Workload(ledger, rng, [Connection(cell.socket) for _ in range(CONNECTIONS)], under_test.zeroes)
    process = cell.process

    def kill():
        try:
            if CLEANED in totals:
                totals[CLEANED] += int(cell.metric("FC_IO_RQ_CLEAN"))
        finally:
            process.send_signal(signal.SIGKILL)

    killer = threading.Timer(rng.uniform(0.05, 1.2), kill)
    killer.start()
    operator = Operator(cell, rng) if STATEMENTS in totals else None
    try:
        workload.run()
    finally:
        killer.cancel()
        killer.join()
        for key, value in workload.counts.items():
            totals[key] += value
    crash(under_test, ledger, totals)
    if operator:
        totals[STATEMENTS] += operator.end()
    # Some crashes hit the recovery itself.
    while rng.random() < 0.3 and isinstance(under_test, LocalDevices):
        process = cell.spawn_server()
        time.sleep(rng.uniform(0.005, 0.15))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        totals["crashes"] += 1
    restart(under_test, totals)
    verify(cell, ledger, rng, name)
    if rng.random() < 0.4:
        # What was read is final: over a second read, now partly from the cache, and over a second crash.
        verify(cell, ledger, rng, f"{name}, read again")
        totals["hits"] += int(cell.metric("FC_IO_RQ_R"))
        crash(under_test, ledger, totals)
        restart(under_test, totals)
        verify(cell, ledger, rng, f"{name}, after a second crash")
    totals["hits"] += int(cell.metric("FC_IO_RQ_R"))


def told(totals):
    return ", ".join(f"{value} {key}" for key, value in totals.items())
