"""The counts of the flash cache add up: hits, misses and skips are disjoint, and their sum is what clients asked of the grid disks."""

import re

from case_clients import nbdsh
from harness import MIB, check, equal, measured_equal, need, run, served, test, timing

KIB = 1 << 10


def exact(cell):
    """{metric: sum over objects} to the byte, as Prometheus sees it; names without unit and suffix."""
    text = run(["curl", "-sS", "-f", "--unix-socket", cell.admin_socket, "http://cell/metrics"]).stdout
    sums = {}
    for name, value in re.findall(r"(?m)^flashcell_((?:fc|gd)_io_(?:rq|by)_\w+?)(?:_bytes)?_total\{[^}]*\} (\S+)$", text):
        sums[name] = sums.get(name, 0) + int(float(value))
    return sums


def check_sums(cell, what):
    now = exact(cell)
    for kind in ("rq", "by"):
        of = lambda name: now[f"fc_io_{kind}_{name}"]
        asked = {way: sum(now[f"gd_io_{kind}_{way}_{size}"] for size in ("sm", "lg")) for way in "rw"}
        told = f"{kind} {what}: {({k: v for k, v in now.items() if f'_{kind}_' in k})}"
        check(of("r") + of("r_miss") + of("r_skip") == asked["r"], f"reads, {told}")
        check(of("w") - of("w_populate") + of("w_skip") == asked["w"], f"writes, {told}")
    return now


def grown(cell, before, *names):
    now = exact(cell)
    return [now[name] - before[name] for name in names]


@timing
def counts_of_libnbd_reads_over_partly_cached_ranges_add_up():
    """64 KiB of every 128 are cached; the same stretch is read by 1 MiB, by 256 KiB and by 512 bytes."""
    need("curl")
    with served(griddisks=("data:64M",), flash=("128M",)) as cell:
        cell.stop()
        cell.tune(sequential_cutoff="0")
        cell.start()
        reads = lambda length, step: nbdsh(cell, f"for at in range(0, {16 * MIB}, {step}): h.pread({length}, at)")
        reads(64 * KIB, 128 * KIB)
        check_sums(cell, "after every other 64 KiB")
        for length in (MIB, 256 * KIB):
            before = exact(cell)
            reads(length, length)
            check_sums(cell, f"after reads of {length}")
            asked = ("fc_io_by_r", "fc_io_by_r_miss", "fc_io_by_r_skip")
            equal(sum(grown(cell, before, *asked)), 16 * MIB, f"hit, missed and skipped by reads of {length}")
        before = exact(cell)
        nbdsh(cell, "for n in range(100): h.pread(512, n * 512)")
        measured_equal(grown(cell, before, "fc_io_rq_r", "fc_io_by_r"), [100, 100 * 512], "hits of 512 bytes")
        check_sums(cell, "after reads of 512 bytes")
        cell.stop()


@test
def counts_of_requests_count_requests():
    need("curl")
    with served(griddisks=("data:64M",), flash=("128M",)) as cell:
        before = exact(cell)
        nbdsh(cell, f"h.pread({64 * KIB}, {MIB})")
        equal(grown(cell, before, "fc_io_rq_w_populate", "fc_io_by_w_populate"), [1, 64 * KIB], "a miss of 64 KiB")
        before = exact(cell)
        nbdsh(cell, f"h.pwrite(bytes({64 * KIB}), {2 * MIB})")
        equal(grown(cell, before, "fc_io_rq_w", "fc_io_by_w"), [1, 64 * KIB], "a write of 64 KiB")
        check_sums(cell, "in the end")
        cell.stop()


@test
def counts_add_up_under_fio():
    """Reads and writes of all sizes, many at once, in write-through and in write-back."""
    need("fio", "curl")
    with served(griddisks=("data:64M", "other:64M"), flash=("96M",)) as cell:
        cell.cellcli("alter griddisk other cachingMode=write-back")
        for export in ("data", "other"):
            job = ["fio", "--name=mixed", "--ioengine=nbd", f"--uri={cell.uri(export)}", "--rw=randrw", "--rwmixread=70"]
            job += ["--bsrange=512-1m", "--bs_unaligned", "--iodepth=8", "--size=64m", "--io_size=192m", "--random_distribution=zipf:1.1"]
            run(job)
            check_sums(cell, f"after fio on {export}")
        cell.stop()
