"""Fill strategies: `feed` writes to flash at its rate what reads have missed, `evict` nothing that nobody offers."""

import random
import time

import nbdclient
from harness import MIB, contains, equal, measured, served, test, timing_alone, wait_until

BLOCK = 16 * 1024


def somewhere(count, size=32 * MIB, seed=3):
    """Blocks all over, no two of them neighbours."""
    every_other = range(0, size // BLOCK, 2)
    return [block * BLOCK for block in random.Random(seed).sample(every_other, count)]


def misses(cell):
    return cell.metric("FC_IO_RQ_R_MISS")


def fed(cell):
    return cell.metric("GD_FC_IO_RQ_FEED", "data")


@test
def feed_writes_what_was_missed_and_not_what_follows_one_another():
    with served() as cell:
        cell.cellcli("alter griddisk data fillStrategy=feed")
        equal(cell.json("list griddisk attributes fillStrategy")[0]["fillStrategy"], "feed", "LIST GRIDDISK")
        client = nbdclient.Client(cell.socket)
        blocks = somewhere(100)
        for offset in blocks:
            client.read(offset, BLOCK)
        wait_until(lambda: fed(cell) == len(blocks), 30, "all of it is fed")
        before = misses(cell)
        for offset in blocks:
            client.read(offset, BLOCK)
        equal(misses(cell), before, "misses of what was fed")
        # Forty megabytes on: a scan.
        for n in range(200):
            client.read(40 * MIB + n * BLOCK, BLOCK)
        wait_until(lambda: cell.metric("GD_FC_IO_RQ_FEED_SKIP_PREFETCH", "data") >= 190, 10, "a scan is left out")
        # What has changed while it waited is not believed.
        client.write(blocks[0], b"x" * BLOCK)
        equal(client.read(blocks[0], BLOCK), b"x" * BLOCK, "a block that was fed and then written")
        client.disconnect()
        # The strategy is there after kill -9, and goes online.
        cell.kill()
        cell.start()
        equal(cell.json("list griddisk attributes fillStrategy")[0]["fillStrategy"], "feed", "after kill -9")
        cell.cellcli("alter griddisk data fillStrategy=read")
        cell.stop()


@timing_alone
def feed_keeps_to_its_rate():
    with served() as cell:
        cell.stop()
        cell.tune(feed_rate="1M", feed_boost=1)
        cell.start()
        cell.cellcli("alter griddisk data fillStrategy=feed")
        client = nbdclient.Client(cell.socket)
        began = time.monotonic()
        for offset in somewhere(512):
            client.read(offset, BLOCK)
        time.sleep(2)
        written = fed(cell) * BLOCK
        # A block may be begun with the last byte of an allowance.
        most = (time.monotonic() - began + 0.2) * (MIB + 10 * BLOCK)
        measured(0 < written <= most, f"{written} bytes fed, {most:.0f} at the most")
        client.disconnect()
        cell.stop()


@test
def evict_fills_nothing_by_itself():
    with served() as cell:
        cell.cellcli("alter griddisk data fillStrategy=evict")
        client = nbdclient.Client(cell.socket)
        blocks = somewhere(100)
        for _ in range(2):
            for offset in blocks:
                client.read(offset, BLOCK)
        client.write(blocks[0], b"y" * BLOCK)
        equal(misses(cell), 2 * len(blocks), "misses")
        equal(cell.metric("FC_IO_RQ_W"), 0, "parts written into the cache")
        client.disconnect()
        refused = cell.cellcli("alter griddisk data fillStrategy=often", ok=False)
        contains(refused.stderr, "fillStrategy", "message")
        cell.stop()
