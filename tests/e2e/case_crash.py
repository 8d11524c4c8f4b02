"""Crashes: what FLUSH promised is there on devices that forget the rest, and the cache is warm afterwards."""

import contextlib
import os
import random

import crashloop
import nbdclient
from harness import MIB, Failure, Place, Skip, equal, measured, run, test, timing, wait_until

CYCLES = 12
# A few of each of the forms of write-back; `run --soak` has the long ones.
SHORT = 4
# Where a loss must be reported: it ends with the first, nearly always after a few.
CYCLES_TO_LOSE = 40
WRITE_BACK = {"mode": crashloop.WRITE_BACK}
SEED = int.from_bytes(os.urandom(4), "big")


def loop(cycles, devices=crashloop.ForgetfulDevices, **options):
    print(f"# seed {SEED}", flush=True)
    totals = crashloop.crash_loop(cycles, SEED, devices, **options)
    print(f"# {crashloop.told(totals)}", flush=True)


@test
def crash_loop_on_devices_that_forget():
    loop(CYCLES)


@test
def crash_loop_on_a_disk_behind_nbdkit_s_write_back_cache():
    loop(CYCLES // 2, crashloop.NbdkitCache)


@test
def crash_loop_on_an_nbd_disk_with_a_write_back_cache():
    loop(CYCLES // 2, crashloop.RemoteDisk)


@test
def crash_loop_in_write_back_on_devices_that_forget():
    loop(CYCLES, **WRITE_BACK)


@test
def crash_loop_in_write_back_on_devices_that_keep_every_write():
    """Nothing acknowledged may be lost, flushed or not."""
    loop(SHORT, crashloop.LastingDevices, **WRITE_BACK)


@test
def crash_loop_in_write_back_on_a_cache_that_cleans_its_garbage():
    """Everything fits, so that what is dirty is overwritten on flash, and copied by cleaning, for long."""
    loop(CYCLES, crashloop.LastingDevices, roomy=True, **WRITE_BACK)


@test
def crash_loop_in_write_back_on_an_nbd_disk_with_a_write_back_cache():
    loop(SHORT, crashloop.RemoteDisk, **WRITE_BACK)


@test
def crash_loop_while_modes_are_switched_and_the_cache_is_flushed():
    for devices in (crashloop.ForgetfulDevices, crashloop.LastingDevices):
        loop(SHORT, devices, operated=True, **WRITE_BACK)


def must_lose(devices, sabotage="flush-not-waiting", **options):
    """The same loop on a cell whose FLUSH asks no device, or that is broken otherwise: it must report a loss."""
    try:
        crashloop.crash_loop(CYCLES_TO_LOSE, SEED, devices, sabotage, **options)
    except crashloop.Lost as lost:
        print(f"# reported, as it must be: {str(lost)[:110]}…", flush=True)
        return
    raise Failure(f"{sabotage}, and no loss was reported: the loop is blind")


@test
def crash_loop_reports_a_flush_that_does_nothing():
    must_lose(crashloop.ForgetfulDevices)


@test
def crash_loop_reports_a_flush_that_does_nothing_on_an_nbd_disk():
    must_lose(crashloop.RemoteDisk)


@test
def crash_loop_in_write_back_reports_a_flush_that_does_nothing():
    must_lose(crashloop.ForgetfulDevices, **WRITE_BACK)


@test
def crash_loop_in_write_back_reports_destaged_data_the_disk_was_not_made_to_keep():
    must_lose(crashloop.ForgetfulDevices, "destage-not-flushed", **WRITE_BACK)


# --- warm after a crash ---------------------------------------------------------------------------------------------------

BLOCK = 4096
DATA = 64 * MIB
READS = 2000
ROUNDS = 3
RATIO_MAX = 1.05


class DiskReads:
    """Reads that reached the disk, counted outside the cell: by the kernel for a loop device, else by nbdkit."""

    def __init__(self, place):
        self.place = place
        self.backing = place.path("backing.img")
        with open(self.backing, "wb") as file:
            file.truncate(192 * MIB)
        self.device = None
        if os.geteuid() == 0:
            with contextlib.suppress(Skip):
                self.device = place.loop_device(self.backing, "--direct-io=on", "--sector-size", "4096").path
        self.disk = self.device or self.backing

    def count(self, cell):
        if self.device:
            with open(f"/sys/block/{os.path.basename(self.device)}/stat") as file:
                return int(file.read().split()[0])
        return int(cell.metric("CD_IO_RQ_R_SM", "CD_00_cell"))

    def how(self):
        return f"by the kernel for {self.device}" if self.device else "by the cell itself: no loop device is to be had"


class Zipf:
    """Block numbers by popularity 1/rank^0.9, ranks scattered over the disk. Stratified: every window of draws has the same
    share of each popularity, so that two windows differ by what the cache does and not by luck."""

    def __init__(self, rng):
        self.rng = rng
        count = DATA // BLOCK
        self.places = list(range(count))
        rng.shuffle(self.places)
        self.sums, total = [], 0.0
        for rank in range(count):
            total += 1 / (rank + 1) ** 0.9
            self.sums.append(total)

    def window(self):
        import bisect

        draws = [(i + self.rng.random()) / READS * self.sums[-1] for i in range(READS)]
        self.rng.shuffle(draws)
        return [self.places[min(bisect.bisect(self.sums, draw), len(self.places) - 1)] for draw in draws]


@timing
def warm_after_kill_9():
    """A cache of a quarter of the data, zipf reads: after kill -9 the disk is read no more than before it."""
    with Place("warm") as place:
        counter = DiskReads(place)
        # 16 MiB of cache, 64 MiB of data.
        cell = place.cell(disks=(counter.disk,), flash=("64M",), griddisks=("data:64M",), force=True).start()
        # Segments of a 64th of the cache, as on flash of a common size.
        cell.edit(lambda text: text.replace('segment = "2M"', 'segment = "256K"'))
        cell.stop()
        cell.start()
        cell.cellcli(f"drop flashcache; create flashcache all size={DATA // 4 >> 20}M")
        client = nbdclient.Client(cell.socket)
        for at in range(0, DATA, MIB):
            client.write(at, b"".join(at.to_bytes(8, "big") * (BLOCK // 8) for at in range(at, at + MIB, BLOCK)))
        client.flush()
        zipf = Zipf(random.Random(7))

        def disk_reads():
            """Those of misses: what late flash leaves to the disk is cached all the same."""
            return counter.count(cell) - cell.late_reads()

        def window(depth=1):
            before = disk_reads()
            under_way = {}
            for block in [*zipf.window(), None]:
                if block is not None:
                    under_way[client.submit(nbdclient.READ, offset=block * BLOCK, length=BLOCK)] = block
                while len(under_way) >= depth or (block is None and under_way):
                    cookie, error, data = client.reply()
                    place_of = under_way.pop(cookie) * BLOCK
                    if error or data != place_of.to_bytes(8, "big") * (BLOCK // 8):
                        raise Failure(f"the block at {place_of}: errno {error}, or wrong content")
            return disk_reads() - before

        warmup = [window(16) for _ in range(25)]
        before = after = 0
        for _ in range(ROUNDS):
            last = window()
            client.close()
            cell.kill()
            cell.start()
            # Comparing suspect blocks with the disk reads it: that is none of what is counted.
            suspect = cell.metric("FC_BY_SUSPECT")
            wait_until(lambda: cell.metric("FC_BY_SUSPECT") == 0, 60, "all that is suspect after the crash has been compared")
            client = nbdclient.Client(cell.socket)
            first = window()
            before, after = before + last, after + first
            print(f"# disk reads in 2,000: {last} before kill -9, {first} after (first ever: {warmup[0]}); {suspect} MB suspect", flush=True)
            for _ in range(10):
                window(16)
        print(f"# counted {counter.how()}; ratio {after / before:.3f}", flush=True)
        measured(before < warmup[0] * ROUNDS * 0.8, f"the cache was never warm: {warmup}, then {before} in {ROUNDS} windows")
        measured(after <= RATIO_MAX * before, f"{after} disk reads after the restarts, {before} before: more than {RATIO_MAX}")
        equal(cell.metric("FC_IO_ERRS"), 0, "errors of flash")
        client.disconnect()
        cell.stop()
