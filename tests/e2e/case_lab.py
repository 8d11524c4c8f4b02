"""`flashcell lab run`: the report is one page that a browser draws at any width, and the same seed gives the same bytes."""

import json
import os
import struct
import xml.etree.ElementTree as ElementTree

from harness import Place, binary, check, contains, equal, need, run, test

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
