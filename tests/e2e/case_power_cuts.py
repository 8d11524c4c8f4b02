"""Power cuts of the cell and all its devices at one moment (the short form of tests/e2e/power_cut), and that the rig is not blind."""

import os

import nbdclient
import powercut
from harness import Failure, Place, equal, test

# Every mode with every load takes 30 plans: a run has ten of them, `run --soak` all, many times.
CUTS = 60
# Where a loss must be reported: it ends with the first, nearly always after a few.
CUTS_TO_LOSE = 40
SEED = int.from_bytes(os.urandom(4), "big")
BLOCK = powercut.BLOCK


def cuts(first):
    print(f"# seed {SEED}", flush=True)
    try:
        totals = powercut.power_cuts(CUTS // 2, SEED, first=first, brief=True)
    except Failure as failure:
        flags = f"--seed {SEED} --only {failure.number} --brief"
        raise Failure(f"{failure}\nreproduce: tests/e2e/power_cut {flags}") from failure
    print("# " + powercut.told(totals).replace("\n", "\n# "), flush=True)


@test
def power_cuts_lose_nothing():
    """Five plans, of every mode one, with the same load."""
    cuts(SEED % 3 * 10)


@test
def power_cuts_lose_nothing_under_another_load():
    cuts(SEED % 3 * 10 + 5)


def must_lose(sabotage, **wanted):
    print(f"# seed {SEED}", flush=True)
    try:
        powercut.power_cuts(CUTS_TO_LOSE, SEED, sabotage, **wanted)
    except powercut.Lost as lost:
        print(f"# reported, as it must be: {str(lost)[:110]}…", flush=True)
        return
    raise Failure(f"{sabotage}, and no loss was reported: the rig is blind")


@test
def power_cuts_report_a_flush_that_does_nothing():
    must_lose("flush-not-waiting", mode=powercut.WRITE_BACK)


@test
def power_cuts_report_destaged_data_the_disk_was_not_made_to_keep():
    must_lose("destage-not-flushed", mode=powercut.WRITE_BACK, load=powercut.AT_RANDOM, size=(1024, 16))


@test
def the_devices_of_power_cuts_keep_what_was_flushed_and_nothing_else():
    """The devices' own promises: flushed and FUA writes stay, the rest is kept by pages as drawn."""
    with Place("devices") as place:
        program = powercut.compile_devices(place)
        devices = powercut.Devices(place, program, 1, disk=1 << 20, flash=1 << 20)

        def client(name="disk"):
            return nbdclient.Client(devices.socket, export=name)

        def page(byte):
            return bytes([byte]) * BLOCK

        disk, flash = client(), client("flash")
        for at in range(256):
            disk.write(at * BLOCK, page(1))
        disk.flush()
        for at in range(256):
            disk.write(at * BLOCK, page(2), fua=at < 64)
            flash.write(at * BLOCK, page(3))
        equal(disk.read(200 * BLOCK, BLOCK), page(2), "what is read before the cut")
        # The flush of one device is none of the other.
        flash.flush()
        devices.cut()
        devices.survive(1, 0, 0)
        disk, flash = client(), client("flash")
        for at in range(256):
            equal(disk.read(at * BLOCK, BLOCK), page(2 if at < 64 else 1), f"page {at} of the disk")
            equal(flash.read(at * BLOCK, BLOCK), page(3), f"page {at} of flash")
        # Half of the pages, the same for the same seed.
        kept = []
        for _ in range(2):
            for at in range(256):
                disk.write(at * BLOCK, page(4))
            disk.flush()
            for at in range(256):
                disk.write(at * BLOCK, page(5))
            devices.cut()
            devices.survive(7, 50, 0)
            disk = client()
            kept.append([disk.read(at * BLOCK, BLOCK) == page(5) for at in range(256)])
        equal(kept[0], kept[1], "pages that survive with the same seed")
        equal(80 < sum(kept[0]) < 176, True, f"{sum(kept[0])} of 256 pages survived")
        # The pages of one write together.
        disk.flush()
        for at in range(0, 256, 8):
            disk.write(at * BLOCK, page(11) * 8)
        devices.cut()
        devices.survive(7, 50, 0, "write")
        disk = client()
        kept = [disk.read(at * BLOCK, 8 * BLOCK) == page(11) * 8 for at in range(0, 256, 8)]
        lost = [page(11) not in disk.read(at * BLOCK, 8 * BLOCK) for at in range(0, 256, 8)]
        equal([a != b for a, b in zip(kept, lost)], [True] * 32, "writes that are whole or not there")
        equal(6 < sum(kept) < 26, True, f"{sum(kept)} of 32 writes survived")
        for at in range(256):
            disk.write(at * BLOCK, page(5))
        disk.flush()
        # In part, by sectors.
        for at in range(256):
            disk.write(at * BLOCK, page(6))
        devices.cut()
        devices.survive(8, 100, 100)
        disk = client()
        pieces = [disk.read(at * powercut.SECTOR, powercut.SECTOR) for at in range(2048)]
        equal(len({bytes(piece[:1]) for piece in pieces if len(set(piece)) == 1} - {b"\4", b"\5", b"\6"}), 0, "sectors of no version")
        equal(sum(len(set(piece)) == 1 for piece in pieces), 2048, "sectors that are not torn")
        equal(len({piece[0] for piece in pieces}) > 1, True, "torn pages")
        # A cut at a flush: none of it is promised.
        disk.flush()
        for at in range(256):
            disk.write(at * BLOCK, page(9))
        devices.arm("flush", 1)
        disk.submit(nbdclient.FLUSH)
        equal(devices.line(), "cut", "what the devices say at the flush")
        devices.survive(9, 0, 0)
        disk = client()
        equal(any(disk.read(at * BLOCK, BLOCK) == page(9) for at in range(256)), False, "pages of a flush that was not answered")
        # After its work, before its answer: all of it is there.
        for at in range(256):
            disk.write(at * BLOCK, page(10))
        devices.arm("flushed", 1)
        disk.submit(nbdclient.FLUSH)
        equal(devices.line(), "cut", "what the devices say after the flush")
        devices.survive(9, 0, 0)
        disk = client()
        equal(all(disk.read(at * BLOCK, BLOCK) == page(10) for at in range(256)), True, "pages of a flush that was done")
        disk.close()
        devices.end()
