"""Power cuts with the real binary: disk and flash are devices with a volatile cache in a process of their own, and lose their power together with the cell.

`cutdevices.c` serves all devices and freezes them at one moment: at a flush, within it, after it, or at a write, the N-th from a drawn
moment on. The cell is killed, each un-flushed page survives or not by a drawn chance, and the cell starts again.

The ledger works in blocks of 4 KiB, and in sectors of 512 bytes where power failed within a block. Of each sector it knows the floor (the
newest version that a FLUSH or FUA covers) and every later version that was sent. After a cut a sector must hold one of these; what is read
first is then final: over a second read, a second cut, and when everything is read from the disk alone. An error is a loss: no device
fails here.
"""

import collections
import os
import random
import select
import shutil
import struct
import subprocess
import time

import nbdclient
from harness import MIB, READY_SECONDS_MAX, Failure, Place, check, in_memory, read_line, run, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
SECTOR, BLOCK = 512, 4096
SECTORS = BLOCK // SECTOR
WHOLE = (1 << SECTORS) - 1
HEAD = struct.Struct("<8sIIQQ")
RUN = os.urandom(8)
# The answer of a device that lives takes milliseconds.
ANSWER_SECONDS_MAX = 60

WRITE_THROUGH, WRITE_BACK, ORDERED = "write-through", "write-back", "write-back-ordered"
WRITE_AROUND, REDO = "write-around", "redo"
MODES = (WRITE_THROUGH, WRITE_BACK, ORDERED, WRITE_AROUND, REDO)
IN_ORDER, CHASED, AT_RANDOM, HOT, LONG, MIXED = "in-order", "chased", "random", "hot", "long", "mixed"
LOADS = (IN_ORDER, CHASED, AT_RANDOM, HOT, LONG, MIXED)
# chased: in order, one at a time, so much that cleaning takes what has just been overwritten.
# (segment in KiB, segments of the cache)
SIZES = ((1024, 16), (256, 48), (512, 128), (64, 200), (128, 300), (64, 600))
EVENTS = ("flush", "flushed", "write", "fua", "any")
# More un-answered requests than anybody has on one disk.
DEPTHS = (1, 8, 32, 32)
CLIENTS = (1, 3)
DISK_BYTES = 96 * MIB


class Lost(Failure):
    """Something a client was promised is not there."""


# --- devices -------------------------------------------------------------------------------------------------------------------


def compile_devices(place):
    compiler = shutil.which("cc") or shutil.which("gcc")
    check(compiler, "no C compiler (scripts/check-rust)")
    program = place.path("cutdevices")
    if not os.path.exists(program):
        run([compiler, "-O2", "-std=gnu11", os.path.join(HERE, "cutdevices.c"), "-o", program])
    return program


class Devices:
    """The process with all devices, and its commands."""

    def __init__(self, place, program, seed, **sizes):
        self.socket = place.path("devices.sock")
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        names = [f"{name}:{size}" for name, size in sizes.items()]
        self.process = place.spawn(
            [program, self.socket, str(seed), *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None
        )
        check(read_line(self.process, ANSWER_SECONDS_MAX) == "ready", "the devices are not served")
        # From here on without a buffer, so that select tells the truth.
        self.out = self.process.stdout.fileno()
        self.buffer = b""

    def uri(self, name):
        return f"nbd+unix:///{name}?socket={self.socket}"

    def line(self, seconds=ANSWER_SECONDS_MAX):
        """The next line the devices say; None when none comes in time."""
        end = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            wait = max(end - time.monotonic(), 0)
            if not select.select([self.out], [], [], wait)[0]:
                return None
            more = os.read(self.out, 4096)
            if not more:
                raise Failure(f"the devices ended with {self.process.wait()}")
            self.buffer += more
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.decode()

    def say(self, command, seconds=ANSWER_SECONDS_MAX):
        os.write(self.process.stdin.fileno(), command.encode() + b"\n")
        line = self.line(seconds)
        check(line is not None, f"{command}: the devices do not answer")
        return line

    def arm(self, event, count):
        answer = self.say(f"cut {event} {count}")
        check(answer == "armed", f"cut {event} {count}: {answer}")

    def cut(self):
        """Now, unless it has happened."""
        os.write(self.process.stdin.fileno(), b"cut now\n")
        check(self.line() == "cut", "no cut")

    def survive(self, seed, percent, torn, unit="page"):
        """What survived, was lost and was torn, in pages. Each page lives or dies alone, or with the others of its write."""
        words = self.say(f"survive {seed} {percent} {torn} {unit}").split()
        check(words[0] == "survived", f"survive: {words}")
        return int(words[1]), int(words[3]), int(words[5])

    def counts(self):
        words = self.say("counts").split()[1:]
        return dict(zip(words[::2], map(int, words[1::2])))

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=ANSWER_SECONDS_MAX)
        self.process.stdout.close()


# --- what may be read ------------------------------------------------------------------------------------------------------------


def sector_bytes(block, index, version):
    """Version 0 is zeroes, as on a fresh device."""
    if version <= 0:
        return bytes(SECTOR)
    return HEAD.pack(RUN, block, index, version, ~version & (1 << 64) - 1) * (SECTOR // HEAD.size)


def block_bytes(block, version):
    if version <= 0:
        return bytes(BLOCK)
    return b"".join(sector_bytes(block, index, version) for index in range(SECTORS))


class Ledger:
    """What each block may hold. Versions of zeroes are negative: they read as zeroes, and their size tells their age."""

    def __init__(self, blocks):
        self.blocks = blocks
        self.seq = 0
        # A version, or the versions that are as good as each other of each sector: a TRIM may have left either.
        self.floor = [0] * blocks
        # (version, sectors written, whether the former content is as good) sent after the floor, oldest first.
        self.later = collections.defaultdict(list)
        # (block, version) acknowledged, oldest first; so many of them are flushed.
        self.log = []
        self.flushed_to = 0
        self.checked = 0

    def sent(self, block, is_zero=False, mask=WHOLE, is_trim=False):
        self.seq += 1
        version = -self.seq if is_zero or is_trim else self.seq
        self.later[block].append((version, mask, is_trim))
        return version

    def done(self, block, version, fua=False):
        if fua:
            self.raise_floor(block, version)
        else:
            self.log.append((block, version))

    def flushed(self, upto):
        """A FLUSH was answered that was sent when so many had been acknowledged."""
        while self.flushed_to < upto:
            self.raise_floor(*self.log[self.flushed_to])
            self.flushed_to += 1

    def raise_floor(self, block, version):
        """The request that sent `version` is durable. Requests for one block are never under way together."""
        entry = next((e for e in self.later.get(block, ()) if e[0] == version), None)
        if entry is None:
            # Later durable writes to all its sectors have been answered.
            return
        _, mask, is_trim = entry
        floor = self.floor[block]
        if mask == WHOLE and not is_trim:
            self.floor[block] = version
        else:
            floor = list(floor) if isinstance(floor, list) else [(floor,)] * SECTORS
            for index in range(SECTORS):
                if mask >> index & 1:
                    floor[index] = (*floor[index], version) if is_trim else (version,)
            self.floor[block] = floor
        rest = []
        for sent, sectors, trims in self.later[block]:
            if sent != version:
                # A durable write supersedes what is older, a trim does not.
                sectors &= WHOLE if is_trim or abs(sent) > abs(version) else ~mask
                if sectors:
                    rest.append((sent, sectors, trims))
        if rest:
            self.later[block] = rest
        else:
            del self.later[block]

    def candidates(self, block, index, live):
        """Versions sector `index` may hold after a cut; of a cell that lives, what was acknowledged last (and what a TRIM leaves)."""
        floor = self.floor[block]
        found = list(floor[index]) if isinstance(floor, list) else [floor]
        for version, mask, is_trim in self.later.get(block, ()):
            if mask >> index & 1:
                if live and not is_trim:
                    found = [version]
                else:
                    found.append(version)
        return found

    def found(self, block, data, when, live=False):
        """Check what was read of a block; after a cut it is final."""
        self.checked += 1
        later, floor = self.later.get(block), self.floor[block]
        newest = later[-1] if later else (floor, 0 if isinstance(floor, list) else WHOLE, False)
        if newest[1] == WHOLE and data == block_bytes(block, newest[0]):
            self.collapse(block, newest[0], live)
            return
        versions = []
        for index in range(SECTORS):
            piece = data[index * SECTOR : (index + 1) * SECTOR]
            candidates = self.candidates(block, index, live)
            for version in reversed(candidates):
                if piece == sector_bytes(block, index, version):
                    versions.append((version,))
                    break
            else:
                raise Lost(
                    f"{when}: lost: block {block} sector {index} holds {name_of(piece)}; permitted are versions {candidates[:8]} "
                    f"(floor {floor}, sent later {later and later[:8]}, last sent {self.seq})"
                )
        self.collapse(block, versions[0][0] if len(set(versions)) == 1 else versions, live)

    def collapse(self, block, version, live):
        if not live:
            self.later.pop(block, None)
            self.floor[block] = version

    def crashed(self):
        """What was acknowledged and not flushed may be gone."""
        self.log.clear()
        self.flushed_to = 0


def name_of(piece):
    if piece == bytes(SECTOR):
        return "zeroes"
    run_id, block, index, version, check_version = HEAD.unpack_from(piece)
    if piece != piece[: HEAD.size] * (SECTOR // HEAD.size) or version ^ check_version != (1 << 64) - 1:
        return f"a torn sector: {piece[:64].hex()}"
    if run_id != RUN:
        return "data nobody wrote in this run"
    return f"version {version} of block {block} sector {index}"


# --- load ----------------------------------------------------------------------------------------------------------------------


class Connection(nbdclient.Client):
    """A client that takes replies as they come, and sends many requests at once."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.unsent = []

    def add(self, command, offset=0, length=0, data=b"", flags=0):
        cookie = self.next_cookie
        self.next_cookie += 1
        self.pending[cookie] = length if command == nbdclient.READ else 0
        self.unsent.append(
            struct.pack(">IHHQQI", nbdclient.REQUEST_MAGIC, flags, command, cookie, offset, length or len(data)) + data
        )
        return cookie

    def push(self):
        if self.unsent:
            data, self.unsent = b"".join(self.unsent), []
            self.send(data)

    def ready(self):
        """Replies that are there."""
        while select.select([self.sock], [], [], 0)[0]:
            try:
                more = self.sock.recv(1 << 18)
            except OSError as error:
                raise nbdclient.Gone(str(error)) from error
            if not more:
                raise nbdclient.Gone("end of stream")
            self.buffer += more
        replies = []
        while len(self.buffer) >= 16:
            error, cookie = struct.unpack_from(">IQ", self.buffer, 4)
            if len(self.buffer) < 16 + (0 if error else self.pending[cookie]):
                break
            replies.append(self.reply())
        return replies


class Load:
    """Requests on some connections until power fails."""

    def __init__(self, plan, ledger, rng, connections, begin):
        self.kind, self.ledger, self.rng, self.connections = plan.load, ledger, rng, connections
        self.flush_every, self.depth = rng.choice((2000, 2000, 300, 40)), rng.choice(DEPTHS)
        self.under_way = [{} for _ in connections]
        self.busy = set()
        self.at = begin
        # In order: some thousand blocks, over and over.
        self.span = min(3000, ledger.blocks)
        if self.kind == CHASED:
            self.span = min(int(plan.chased_blocks() * rng.uniform(0.97, 1.1)), ledger.blocks)
            self.flush_every, self.depth = max(self.span * 2 // 3, 1), 1
        self.since_flush = 0
        self.writes = self.flushes = self.reads = self.trims = 0

    def draw(self):
        """(first block, blocks)"""
        rng, blocks = self.rng, self.ledger.blocks
        if self.kind in (IN_ORDER, CHASED):
            first, self.at = self.at % self.span, self.at + 1
            return first, 1
        if self.kind == LONG:
            count = rng.choice((16, 32, 64, 128))
            return rng.randrange(blocks - count), count
        if self.kind == HOT:
            return rng.randrange(64 if rng.random() < 0.5 else 1000), 1
        if self.kind == MIXED:
            count = rng.choice((1, 1, 1, 2, 4, 4, 8, 32))
            return rng.randrange((blocks if rng.random() < 0.5 else blocks // 8) - count), count
        return rng.randrange(blocks), 1

    def step(self, index):
        rng, ledger = self.rng, self.ledger
        connection, under_way = self.connections[index], self.under_way[index]
        if self.since_flush >= self.flush_every:
            self.since_flush = 0
            under_way[connection.add(nbdclient.FLUSH)] = ("flush", len(ledger.log))
            return
        first, count = self.draw()
        blocks = range(first, first + count)
        if not self.busy.isdisjoint(blocks):
            return
        kind = rng.random()
        self.busy.update(blocks)
        if self.kind not in (IN_ORDER, CHASED) and kind < 0.15:
            cookie = connection.add(nbdclient.READ, offset=first * BLOCK, length=count * BLOCK)
            under_way[cookie] = ("read", first, count)
            return
        self.since_flush += 1
        # Of what a TRIM leaves nothing is promised, durable or not.
        fua = self.kind == MIXED and rng.random() < 0.05 and not 0.15 < kind < 0.25
        flags = nbdclient.FUA if fua else 0
        if self.kind == MIXED and kind < 0.35:
            is_trim = kind < 0.25
            versions = [ledger.sent(block, is_zero=not is_trim, is_trim=is_trim) for block in blocks]
            command = nbdclient.TRIM if is_trim else nbdclient.ZEROES
            flags |= 0 if is_trim else rng.choice((0, 2))
            cookie = connection.add(command, offset=first * BLOCK, length=count * BLOCK, flags=flags)
        elif self.kind == MIXED and count == 1 and kind < 0.5:
            # Some sectors of a block.
            begin = rng.randrange(SECTORS)
            sectors = range(begin, rng.randrange(begin, SECTORS) + 1)
            versions = [ledger.sent(first, mask=sum(1 << i for i in sectors))]
            data = b"".join(sector_bytes(first, i, versions[0]) for i in sectors)
            cookie = connection.add(nbdclient.WRITE, offset=first * BLOCK + begin * SECTOR, data=data, flags=flags)
        else:
            versions = [ledger.sent(block) for block in blocks]
            data = b"".join(block_bytes(block, version) for block, version in zip(blocks, versions))
            cookie = connection.add(nbdclient.WRITE, offset=first * BLOCK, data=data, flags=flags)
        under_way[cookie] = ("write", first, versions, fua)

    def take(self, index):
        for cookie, error, data in self.connections[index].ready():
            what = self.under_way[index].pop(cookie)
            if error:
                raise Lost(f"{what[0]} of block {what[1]} answered with errno {error}")
            if what[0] == "flush":
                self.flushes += 1
                self.ledger.flushed(what[1])
                continue
            first = what[1]
            if what[0] == "read":
                self.reads += 1
                count = what[2]
                for i in range(count):
                    self.ledger.found(first + i, data[i * BLOCK : (i + 1) * BLOCK], "while serving", live=True)
            else:
                self.writes += 1
                count = len(what[2])
                for i, version in enumerate(what[2]):
                    self.ledger.done(first + i, version, what[3])
            self.busy.difference_update(range(first, first + count))

    def run(self, devices, cell, seconds):
        """Until power fails, at the latest after so long. The cell is dead afterwards."""
        end = time.monotonic() + seconds
        socks = {c.sock: i for i, c in enumerate(self.connections)}
        try:
            while True:
                for index, connection in enumerate(self.connections):
                    for _ in range(self.depth):
                        if len(self.under_way[index]) >= self.depth:
                            break
                        self.step(index)
                    connection.push()
                readable, _, _ = select.select([*socks, devices.out], [], [], 0.2)
                if devices.out in readable:
                    check(devices.line() == "cut", "no cut")
                    break
                for sock in readable:
                    self.take(socks[sock])
                if time.monotonic() > end:
                    devices.cut()
                    break
        except nbdclient.Gone:
            # Not before its devices.
            cell.check_alive()
            raise
        cell.kill()
        for index, connection in enumerate(self.connections):
            try:
                while True:
                    self.take(index)
                    select.select([connection.sock], [], [])
            except nbdclient.Gone:
                pass
            connection.close()


# --- a cell whose power fails -----------------------------------------------------------------------------------------------------


class Plan:
    """What is drawn for one cell."""

    def __init__(self, seed, number, mode=None, load=None, size=None, clients=None, brief=False):
        rng = self.rng = random.Random(f"{seed}:{number}")
        # Every mode with every load, then the next segment size.
        drawn = (MODES[number % len(MODES)], LOADS[number // len(MODES) % len(LOADS)], rng.choice(SIZES), rng.choice(CLIENTS))
        self.mode, self.load, self.size, self.clients = (
            wanted or found for wanted, found in zip((mode, load, size, clients), drawn)
        )
        self.segment_kib, self.segments = self.size
        self.block_kib = rng.choice((4, 16, 16, 64))
        self.disk_us = rng.choice(((0, 0), (0, 500), (300, 2000), (2000, 8000)))
        self.flash_us = rng.choice(((0, 0), (0, 300), (200, 1000)))
        self.griddisk_mib = rng.choice((16, 32))
        if self.load == CHASED:
            self.clients = clients or 1
            self.disk_us = (20000, 60000)
        # The short form spends its time on cuts, not on new cells.
        self.cuts = 6 if brief else 4
        self.seconds = (0.3, 0.6) if brief else (4,) if self.load == CHASED else (0.3, 0.8, 1.5)
        self.again = 0.15 if brief else 0.3

    def chased_blocks(self):
        """Of blocks written one at a time, each with a header, as many as lie in dirty segments when cleaning begins: it takes segments right
        after their last block was overwritten then. Half of the segments may be dirty, cleaning begins at three quarters of that."""
        return (self.segments // 2 - 2) * 3 // 4 * ((self.segment_kib // 4 - 1) // 2)

    def __str__(self):
        return (
            f"{self.mode}, {self.load}, {self.segments} segments of {self.segment_kib} KiB, blocks of {self.block_kib} KiB, "
            f"{self.clients} clients, disk {self.disk_us}, flash {self.flash_us} us"
        )


class Cut:
    """One cell through some cuts."""

    def __init__(self, place, program, plan, totals, sabotage):
        self.place, self.plan, self.totals = place, plan, totals
        self.rng = plan.rng
        cache_bytes = plan.segments * plan.segment_kib << 10
        self.cache_mib = cache_bytes >> 20
        # Labels, catalog and checkpoint beside the cache.
        flash_bytes = cache_bytes + 48 * MIB
        self.devices = Devices(place, program, self.rng.getrandbits(63), disk=DISK_BYTES, flash=flash_bytes)
        kind = ":redo" if plan.mode == REDO else f":data:{plan.mode}"
        shutil.rmtree(place.path("cell"), ignore_errors=True)
        self.cell = place.cell(
            disks=(self.devices.uri("disk"),), flash=(self.devices.uri("flash"),), griddisks=(f"data:{plan.griddisk_mib}M{kind}",)
        )
        self.cell.tune(segment=f"{plan.segment_kib}K", block=f"{plan.block_kib}K", hard_limit_ms=60000)
        if sabotage:
            self.cell.sabotage(sabotage)
        self.ledger = Ledger(plan.griddisk_mib * MIB // BLOCK)
        self.cell.start()
        statement = "drop flashcache; "
        if plan.mode == REDO:
            statement += "drop flashlog; create flashlog all size=16M; "
        self.cell.cellcli(f"{statement}create flashcache all size={self.cache_mib}M")
        if plan.mode == REDO:
            self.cell.cellcli(f"alter griddisk data flashLogMode={self.rng.choice(('auto', 'race', 'hedge', 'flash'))}")
        self.delays()

    def delays(self):
        for name, (write_us, flush_us) in (("disk", self.plan.disk_us), ("flash", self.plan.flash_us)):
            self.devices.say(f"delay {name} {write_us} {flush_us}")

    def run(self):
        try:
            begin = 0
            for number in range(self.plan.cuts):
                begin = self.cycle(f"cut {number + 1}", begin)
            self.from_disk_alone()
            self.cell.stop()
        except Failure as failure:
            raise type(failure)(f"{failure}\n{self.kept()}plan: {self.plan}; log of the cell:\n{self.cell.log()[-3000:]}") from failure
        finally:
            if self.cell.alive():
                self.cell.kill()
            counts = self.devices.counts()
            for key in ("overwritten", "fua", "trim", "flush"):
                self.totals[f"devices: {key}"] += counts[key]
            self.devices.end()

    def kept(self):
        """With $E2E_KEEP, the devices as the cell found them at its last start, and what it has written since."""
        if not os.environ.get("E2E_KEEP"):
            return ""
        answers = [name + ": " + self.devices.say(f"save {name} {self.place.path(name)}.img") for name in ("disk", "flash")]
        return f"devices saved in {self.place.dir} ({', '.join(answers)})\n"

    def cycle(self, name, begin):
        rng, plan = self.rng, self.plan
        connections = [Connection(self.cell.socket) for _ in range(plan.clients)]
        load = Load(plan, self.ledger, rng, connections, begin)
        event = "flush" if plan.load == CHASED else rng.choice(EVENTS)
        most = {"flush": 200, "flushed": 60, "write": 6000, "fua": 40, "any": 4000}[event]
        self.devices.arm(event, max(1, int(most ** rng.uniform(0.2, 1))))
        try:
            load.run(self.devices, self.cell, rng.choice(plan.seconds))
        finally:
            for key in ("writes", "flushes", "reads"):
                self.totals[key] += getattr(load, key)
        self.totals[f"cut at {event}"] += 1
        self.count()
        self.draw_survivors()
        # Some cuts hit the recovery itself.
        while rng.random() < plan.again:
            self.cut_recovery()
        self.cell.start()
        self.ledger.crashed()
        self.verify(f"{name} at {event}")
        if rng.random() < 0.5:
            self.verify(f"{name}, read again")
            self.totals["read again"] += 1
        if rng.random() < plan.again:
            self.devices.cut()
            self.cell.kill()
            self.draw_survivors()
            self.cell.start()
            self.verify(f"{name}, after a second cut")
            self.totals["second cuts"] += 1
        return load.at

    def count(self):
        self.totals["cuts"] += 1
        for key in (("mode", self.plan.mode), ("load", self.plan.load), ("size", self.plan.segments), ("clients", self.plan.clients)):
            self.totals[key] += 1
        self.totals["both", self.plan.mode, self.plan.load] += 1

    def draw_survivors(self):
        rng = self.rng
        percent, torn = rng.choice((50, 50, 50, 50, 10, 90, 0, 100)), rng.choice((0, 0, 30))
        # The cell writes many pages at a time: where each dies alone, hardly a write is whole.
        unit = rng.choice(("page", "write", "write"))
        kept, lost, torn = self.devices.survive(rng.getrandbits(63), percent, torn if unit == "page" else 0, unit)
        self.totals[f"survival by {unit}"] += 1
        self.totals["pages kept"] += kept
        self.totals["pages lost"] += lost
        self.totals["pages torn"] += torn
        self.delays()

    def cut_recovery(self):
        rng, cell = self.rng, self.cell
        self.devices.arm("any", int(60 ** rng.uniform(0, 1)))
        process = cell.process = cell.spawn_server()
        ready, _, _ = select.select([process.stdout, self.devices.out], [], [], READY_SECONDS_MAX)
        check(ready, f"no ready line; log:\n{cell.log()[-2000:]}")
        if self.devices.out in ready:
            check(self.devices.line() == "cut", "no cut")
            self.totals["cuts within recovery"] += 1
        else:
            self.devices.cut()
        check(process.poll() is None, f"the server ended with {process.poll()}; log:\n{cell.log()[-2000:]}")
        cell.kill()
        self.draw_survivors()

    def verify(self, when):
        """Read everything, in pieces of random size and order; what is found is final."""
        client = Connection(self.cell.socket)
        pieces, at = [], 0
        while at < self.ledger.blocks:
            count = min(self.rng.choice((1, 4, 16, 64, 256)), self.ledger.blocks - at)
            pieces.append((at, count))
            at += count
        self.rng.shuffle(pieces)
        under_way = {}
        lost = []
        while pieces or under_way:
            while pieces and len(under_way) < 8:
                first, count = pieces.pop()
                under_way[client.add(nbdclient.READ, offset=first * BLOCK, length=count * BLOCK)] = first
            client.push()
            cookie, error, data = client.reply()
            first = under_way.pop(cookie)
            if error:
                raise Lost(f"{when}: a read at block {first} answered with errno {error}")
            for i in range(len(data) // BLOCK):
                try:
                    self.ledger.found(first + i, data[i * BLOCK : (i + 1) * BLOCK], when)
                except Lost as error:
                    lost.append(error)
        client.disconnect()
        if lost:
            raise Lost(f"{lost[0]}\n{len(lost)} blocks in all, others: " + "; ".join(str(e)[:160] for e in lost[1:4]))

    def from_disk_alone(self):
        """Without the cache everything reads the same."""
        cell = self.cell
        if self.plan.mode in (WRITE_BACK, ORDERED):
            cell.cellcli("alter flashcache all flush")
            wait_until(lambda: cell.metric("FC_BY_DIRTY") == 0, 60, "everything dirty is on the disk")
        cell.cellcli("drop flashcache")
        self.verify("from the disk alone")
        self.totals["from the disk alone"] += 1


def power_cuts(cuts, seed, sabotage=None, say=lambda text: None, first=None, alone=False, **wanted):
    """So many cuts at least; the totals. `Lost` when a promise was broken.

    `first`: the number of the plan to begin with; `alone`: it is the only one. `wanted`: mode, load, size and clients instead of drawn ones,
    `brief`: the form of CI.
    """
    totals = collections.Counter()
    number = first or 0
    memory = 2 * (DISK_BYTES + max(kib * segments for kib, segments in SIZES) * 1024)
    with Place("cuts", base=in_memory(memory)) as place:
        program = compile_devices(place)
        while totals["cuts"] < cuts:
            try:
                Cut(place, program, Plan(seed, number, **wanted), totals, sabotage).run()
            except Failure as failure:
                failure.number, failure.totals = number, totals
                raise
            number += 1
            if alone:
                break
            if number % 10 == 0:
                say(f"# {totals['cuts']} cuts, {totals['writes']} writes, {totals['flushes']} flushes")
    return totals


# Situations that a long run must have reached.
SITUATIONS = (
    *(f"cut at {event}" for event in EVENTS),
    *("cuts within recovery", "second cuts", "read again", "from the disk alone"),
    *("survival by page", "survival by write", "pages kept", "pages lost", "pages torn", "writes", "flushes", "reads"),
    *(f"devices: {key}" for key in ("overwritten", "fua", "trim", "flush")),
)


def never_reached(totals):
    """Situations, and pairs of mode and load, sizes and numbers of clients, that no cut had."""
    keys = [*SITUATIONS, *(("both", mode, load) for mode in MODES for load in LOADS)]
    keys += [*(("size", segments) for _, segments in SIZES), *(("clients", n) for n in CLIENTS)]
    return [str(key) for key in keys if not totals[key]]


def told(totals):
    """A table of cuts by mode and load, then what else was counted."""
    lines = [f"{'':20}" + "".join(f"{load:>10}" for load in LOADS)]
    lines += [f"{mode:20}" + "".join(f"{totals['both', mode, load]:10}" for load in LOADS) for mode in MODES]
    rows = [f"{'segments':20}" + ", ".join(f"{segments}: {totals['size', segments]}" for _, segments in SIZES)]
    rows += [f"{'clients':20}" + ", ".join(f"{n}: {totals['clients', n]}" for n in CLIENTS)]
    lines += rows + [f"{key:30}{value:>10}" for key, value in sorted((k, v) for k, v in totals.items() if isinstance(k, str))]
    return "\n".join(lines)
