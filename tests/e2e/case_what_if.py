"""`flashcell lab what-if`: what it foretells of a recorded workload is what a served cell does with it, as far as that does not depend on time.

Times are compared by `bench/run --rows what-if`, which has the minutes that takes.
"""

import json
import os
import random

import nbdclient
from harness import MIB, Place, binary, check, contains, equal, in_memory, measured, record, recorded, run, test, timing, wait_until

PAGE = 8192
HEAD = "# flashcell trace capture v1\ntime_ns,grid_disk,database,request,offset_bytes,bytes\n"
DEVICES = ("--devices", "fixed:2ms:8,fixed:200us:16")
# Points of the hit ratio, and of bytes written: a served cell fills a little less while others take the processors.
HITS_APART_MAX = 2
BYTES_APART_MAX = 0.10


def hot_and_cold(count, writes, seed=3):
    """Offsets: four of five in the first MiB of 32, the others anywhere."""
    prng = random.Random(seed)
    for _ in range(count):
        blocks = MIB // PAGE * (1 if prng.random() < 0.8 else 32)
        yield ("write" if prng.random() < writes else "read"), prng.randrange(blocks) * PAGE


def trace(place, name, count, writes, device="DATA"):
    lines = (f"{1000 * n},{device},,{verb},{at},{PAGE}\n" for n, (verb, at) in enumerate(hot_and_cold(count, writes)))
    return place.file(name, (HEAD + "".join(lines)).encode())


def what_if(place, path, *more, ok=True):
    rows = place.path("what-if.json")
    done = run([binary(), "lab", "what-if", path, *DEVICES, "--json", rows, *more], ok=ok)
    with open(rows) as file:
        return json.load(file), done


def trace_that_took(place, name, read_ns):
    """A trace of version 2: reads that took so long, and writes of which nothing is known."""
    head = HEAD.replace("v1", "v2").replace("bytes\n", "bytes,latency_ns\n")
    took = {"read": read_ns, "write": ""}
    lines = (f"{10**7 * n},DATA,,{verb},{at},{PAGE},{took[verb]}\n" for n, (verb, at) in enumerate(hot_and_cold(500, 0.3)))
    return place.file(name, (head + "".join(lines)).encode())


def configuration(answer, mode, flash_bytes=None):
    found = [row for row in answer["configurations"] if row["mode"] == mode and flash_bytes in (None, row["flash_bytes"])]
    equal(len(found), 1, f"configurations of {mode}")
    return found[0]


@timing
def a_recording_tells_what_flash_would_give():
    with Place("what-if") as place:
        cell = place.cell(disks=("128M",), flash=("64M",), griddisks=("data:32M:none",)).start()
        client = nbdclient.Client(cell.socket)
        recording = place.path("own.trace")
        recorder = record(place, "trace", cell, recording)
        asked = list(hot_and_cold(3000, 0.3))
        for n, (verb, at) in enumerate(asked):
            if verb == "read":
                client.read(at, PAGE)
            else:
                client.write(at, b"\1" * PAGE)
            if n % 100 == 99:
                client.flush()
        wait_until(lambda: len(recorded(recording)) >= 3030, 20, "everything is recorded")
        recorder.terminate()
        recorder.wait(timeout=20)
        client.disconnect()
        cell.stop()

        answer, done = what_if(place, recording, "--flash", "8M,48M", "--sessions", "4")
        again, _ = what_if(place, recording, "--flash", "8M,48M", "--sessions", "4")
        equal(again, answer, "the same seed gives the same figures")
        contains(done.stderr, "30 flush", "what was understood")
        equal(answer["requests"], len(asked), "reads and writes")
        disk, flash = (configuration(answer, mode) for mode in ("disk", "flash"))
        small, large = (configuration(answer, "write-through", size * MIB) for size in (8, 48))
        back = configuration(answer, "write-back", 48 * MIB)
        order = [row["elapsed_s"] for row in (disk, small, large, back, flash)]
        check(order == sorted(order, reverse=True), f"each is quicker than the one before: {order}")
        check(small["read_hit_ratio"] < large["read_hit_ratio"], "more flash, more hits")
        check(flash["lifetime_years"] > 0 and large["cost"] > disk["cost"], "wear and cost")
        check(disk["flush_p99_ns"] is not None, "flushes are part of it")
        check(all(ns > 0 for ns in answer["recorded"].values()) and len(answer["recorded"]) == 5, f"what was recorded: {answer['recorded']}")
        contains(done.stdout, "| as recorded ", "the report")
        for part in ("Advice", "| data ", "USD"):
            contains(done.stdout, part, "the report")
        ratios = [point["miss_ratio"] for point in answer["curve"]]
        check(len(ratios) >= 5 and ratios[0] > ratios[-1], f"the curve falls: {ratios}")
        half, _ = what_if(place, recording, "--flash", "48M", "--modes", "write-back", "--open", "--speed", "0.5")
        span_s = (int(recorded(recording)[-1][0]) - int(recorded(recording)[0][0])) / 1e9
        elapsed = configuration(half, "flash")["elapsed_s"]
        measured(2 * span_s <= elapsed <= 2 * span_s + 1, f"an open loop takes as long as the trace: {elapsed} of {span_s}")


@test
def what_was_recorded_is_beside_what_is_foretold():
    with Place("what-if-recorded") as place:
        options = ("--flash", "8M", "--modes", "write-through", "--sessions", "4")
        # The disk of these tests takes 2 ms.
        near, told = what_if(place, trace_that_took(place, "near.trace", 2_100_000), *options)
        none = {"write_p50_ns": None, "write_p99_ns": None, "flush_p99_ns": None}
        equal(near["recorded"], {"read_p50_ns": 2_100_000, "read_p99_ns": 2_100_000, **none}, "what was recorded")
        contains(told.stdout, "| as recorded ", "the report")
        check("2.10 " in told.stdout and "were recorded" not in told.stdout, "a model that is near is not called far off")
        _, told = what_if(place, trace_that_took(place, "far.trace", 9_000_000), *options)
        contains(told.stdout, "9.00 ms were recorded", "the report")
        contains(told.stdout, "`--devices fixed:9000us:PARALLEL,FLASH`", "the way out")
        old, told = what_if(place, trace(place, "old.trace", 500, 0.3), *options)
        equal(old["recorded"], None, "what a trace without latencies has recorded")
        check("as recorded" not in told.stdout and "were recorded" not in told.stdout, "and in the report")


@timing
def a_served_cell_does_what_is_foretold():
    with Place("what-if-real", in_memory(512 * MIB)) as place:
        path = trace(place, "half.trace", 2500, 0.5)
        # Off in time on a busy machine is exit code 1, and no failure here.
        answer, done = what_if(place, path, "--flash", "24M", "--real", "--runs", "1", "--sessions", "8", "--dir", place.dir, ok=None)
        check(done.returncode in (0, 1), f"exit code {done.returncode}: {done.stderr}")
        contains(done.stdout, "Against a served cell", "the report")
        for mode in ("write-through", "write-back"):
            row = configuration(answer, mode)
            (written,) = [figure for figure in row["real"] if figure["figure"] == "written to flash, MB"]
            measured(abs(written["deviation"]) <= BYTES_APART_MAX, f"{mode}: bytes written to flash: {written}")
            (hits,) = [figure for figure in row["real"] if figure["figure"] == "reads hit, %"]
            apart = abs(hits["foretold"] - hits["measured"][0])
            measured(apart <= HITS_APART_MAX, f"{mode}: reads that hit: {hits}")


@test
def real_devices_that_carry_anything_are_left_alone():
    with Place("what-if-refuses") as place:
        path = trace(place, "short.trace", 200, 0.5)
        precious = place.file("precious.img", b"\0" * 4096 + b"do not lose this" * 256 + b"\0" * (200 * MIB))
        before = os.stat(precious).st_mtime_ns
        options = ("--flash", "24M", "--modes", "write-back", "--real", "--runs", "1", "--dir", place.dir)
        for device in ("--real-disk", "--real-flash"):
            said = run([binary(), "lab", "what-if", path, *DEVICES, *options, device, precious], ok=False).stderr
            contains(said, "hint: ", f"{device} that carries data")
            equal(os.stat(precious).st_mtime_ns, before, "when it was written last")
        blank = place.file("blank.img", b"")
        os.truncate(blank, 200 * MIB)
        command = [binary(), "lab", "what-if", path, *DEVICES, *options, "--real-flash", blank]
        done = run(command, ok=None)
        check(done.returncode in (0, 1) and "Against a served cell" in done.stdout, f"a blank one is used: {done.stderr}")


@test
def what_cannot_be_is_said():
    with Place("what-if-errors") as place:
        path = trace(place, "t.trace", 50, 0.5)
        untimed = place.file("t.lis", b"".join(b"%d 1 0 %d\n" % (n % 99, n) for n in range(200)))
        small = place.file("small.toml", run([binary(), "lab", "devices", "x25-e"]).stdout.replace("channels", "chanels").encode())
        tiny = place.file("tiny.toml", run([binary(), "lab", "devices", "seagate-7200.7"]).stdout.replace("110_000", "16").encode())
        prices = place.file("p.toml", run([binary(), "lab", "prices"]).stdout.replace("per_gb = 0.12", "per_gb = 0.0").encode())
        for options, part in (
            ((path, "--flash", "2M"), "segments"),
            ((path, "--flash", "9"), "no size"),
            ((path, "--devices", "sata-7200"), "the disk first"),
            ((path, "--devices", "sata-7200,tape"), "tape"),
            ((path, "--devices", f"sata-7200,{small}"), "has no chanels"),
            ((path, "--devices", f"{tiny},x25-e", "--flash", "8M"), "are wanted"),
            ((path, "--devices", "seagate-7200.7,x25-e", "--flash", "8M", "--real"), "in virtual time only"),
            ((path, "--modes", "writeback"), "no mode"),
            ((untimed, "--flash", "8M", "--format", "lis", "--speed", "1"), "it tells no times"),
            ((path, "--flash", "8M", "--prices", prices), "not above 0"),
            ((path, "--flash", "8M", "--prices", "1999"), "hint: 2011, 2026"),
        ):
            contains(run([binary(), "lab", "what-if", *options], ok=False).stderr, part, f"{options[1:]}")
        mine = place.file("mine.toml", run([binary(), "lab", "prices", "2011"]).stdout.encode())
        text = run([binary(), "lab", "what-if", path, "--flash", "8M", "--prices", mine]).stdout
        contains(text, "Prices 2011", "a table of one's own")


@test
def devices_are_listed_changed_and_named():
    with Place("lab-devices") as place:
        listed = json.loads(run([binary(), "lab", "devices", "--json"]).stdout)
        names = [device["name"] for device in listed]
        check({"seagate-7200.7", "x25-e", "exadata-v2-cell", "nvme-2026", "network-volume-2026"} <= set(names), f"{names}")
        figures = [figure for device in listed for figure in device["figures"].values()]
        check(all(figure["source"] for figure in figures), "every figure has a source")
        text = run([binary(), "lab", "devices", "x25-e"]).stdout
        mine = place.file("mine.toml", text.replace('name = "x25-e"', 'name = "mine"').replace("value = 46_400", "value = 4_640_000").encode())
        off = run([binary(), "lab", "devices", mine, "--check"], ok=False)
        contains(off.stdout, "**off**", "a read that takes a hundred times as long")
        path = trace(place, "t.trace", 300, 0.3)
        rows = place.path("rows.json")
        elapsed = {}
        for flash in ("x25-e", mine):
            command = [binary(), "lab", "what-if", path, "--flash", "16M", "--devices", f"sas-15k-x4,{flash}", "--json", rows]
            contains(run(command).stdout, "worn after 100000 erases", "what its cells are")
            with open(rows) as file:
                answer = json.load(file)
            elapsed[flash] = answer["configurations"][-1]["elapsed_s"]
            equal(answer["flash"], "mine" if flash == mine else flash, "the flash")
        check(elapsed[mine] > 3 * elapsed["x25-e"], f"{elapsed}")
