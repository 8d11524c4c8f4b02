"""`flashcell lab run`: the report is one page that a browser draws at any width, and the same seed gives the same bytes."""

import json
import os
import struct
import xml.etree.ElementTree as ElementTree

from harness import MIB, Place, binary, check, contains, equal, in_memory, measured, need, run, test, timing

SHORT = ("--syncs", "400", "--sessions", "4")


def report(place, name, *more):
    page, rows = place.path(f"{name}.html"), place.path(f"{name}.json")
    # With so little to do some bounds are missed, which is exit code 1.
    done = run([binary(), "lab", "run", "redo-s3", "s11", *SHORT, *more, "--report", page, "--json", rows], ok=None)
    check(done.returncode in (0, 1), f"exit code {done.returncode}: {done.stderr}")
    equal(done.stderr, "", "what is said where there is no terminal")
    with open(page) as file, open(rows) as other:
        return page, file.read(), other.read()


@test
def the_report_is_whole_and_repeatable():
    with Place("lab") as place:
        _, page, rows = report(place, "a")
        _, again, rows_again = report(place, "b")
        check((page, rows) == (again, rows_again), "the same seed gave other bytes")
        _, other, _ = report(place, "c", "--seed", "2")
        check(page != other, "another seed gave the same bytes")
        # Well-formed as XML is, entities that HTML alone has left out.
        body = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>")).find("body")
        check(len(body.findall(".//figure")) >= 5, "charts are missing")
        equal({row["experiment"] for row in json.loads(rows)}, {"redo-s3", "s11"}, "experiments in one document")
        contains(page, "prefers-color-scheme:dark", "the page")


@test
def as_many_syncs_as_no_experiment_has_are_refused():
    for count in ("0", "100000001", "200000000000000", "-1", "many"):
        done = run([binary(), "lab", "run", "s14", f"--syncs={count}"], ok=None)
        equal(done.returncode, 2, f"{count}: {done.stderr}")
        contains(done.stderr, "--syncs", "what is refused")


@timing
def experiments_run_on_a_served_cell_too():
    """Goal: what is measured is what a cell did: every page is held against what it must be, the cache hits where it is foretold to, and commits are
    counted. Times are a machine's own, and no matter of a test."""
    with Place("lab-real", in_memory(1024 * MIB)) as place:
        rows, page = place.path("rows.json"), place.path("page.html")
        real = ("--devices", "fixed:2ms:8,fixed:200us:16", "--real", "--dir", place.dir)

        def on_cell(name, count):
            outputs = ("--json", rows, "--report", page)
            done = run([binary(), "lab", "run", name, *real, "--syncs", str(count), "--sessions", "2", *outputs], ok=None)
            check(done.returncode in (0, 1), f"exit code {done.returncode}: {done.stderr}")
            with open(page) as file:
                contains(file.read(), "measured", "the page")
            with open(rows) as file:
                return done, json.load(file)

        # More pages than memory holds.
        done, scans = on_cell("s11", 3000)
        contains(done.stderr, "in real time this takes some", "what is said beforehand")
        equal(len(scans), 15, "arms and passes")
        for row in scans:
            real_row, name = row["measured"], f"{row['configuration']}, {row['pass']}"
            equal((real_row["verified_blocks"], row["verified_blocks"]), (3000, 3000), f"{name}: pages that are right")
            check(real_row["waits"]["db file read"] > 0, f"{name}: {real_row}")
            on_flash = row["configuration"] == "table on flash" or (
                row["configuration"] == "flashcell, scans fill" and row["pass"] == "third"
            )
            measured(not on_flash or real_row["disk_reads"] < 20 < real_row["flash_reads"], f"{name}: {real_row}")
        _, commits = on_cell("redo-s1", 600)
        equal([row["count"] for row in commits], [600] * 14, "commits of each arm, foretold and measured")
        for row in commits:
            if row["configuration"] == "flash log, flash":
                check(row["flash_first"] == row["redo_writes"] > 0, f"the log in mode flash: {row}")
        _, sorts = on_cell("s14", 200)
        equal(len(sorts), 16, "four kinds of temporary segment, in memory and with less and less of it")
        for row in sorts:
            # A sort in memory asks the cell nothing.
            real_row, name = row.get("measured"), f"{row['configuration']}, {row['row']}"
            equal(real_row is not None, row["runs"] > 0, f"{name}: it was measured")
            if real_row:
                equal(real_row["verified_blocks"], row["verified_blocks"], f"{name}: pages of runs that were read and are right")
                check(real_row["waits"]["temporary segment I/O"] > 0, f"{name}: {real_row}")
        # A device that carries something is left as it is.
        image = place.path("image")
        with open(image, "wb") as file:
            file.write(b"carried" * 20_000_000)
        done = run([binary(), "lab", "run", "s11", *real, "--real-disk", image, "--syncs", "600"], ok=None)
        check(done.returncode == 1, f"exit code {done.returncode}")
        contains(done.stderr, "hint: ", "the refusal")
        with open(image, "rb") as file:
            equal(file.read(7), b"carried", "what was there")


@test
def a_browser_draws_the_report():
    need("chromium")
    with Place("lab-browser") as place:
        page, _, _ = report(place, "a")
        for width, *more in ((1280,), (500,), (1280, "--blink-settings=preferredColorScheme=0")):
            picture = place.path(f"{width}{len(more)}.png")
            options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={place.path(f'profile{width}{len(more)}')}"]
            run(["chromium", *options, *more, f"--window-size={width},2000", f"--screenshot={picture}", f"file://{page}"])
            with open(picture, "rb") as file:
                head = file.read(24)
            equal(struct.unpack(">I", head[16:20])[0], width, "how wide the picture is")
            # An empty page is a few kilobytes.
            check(os.path.getsize(picture) > 40_000, "there is next to nothing on the page")
