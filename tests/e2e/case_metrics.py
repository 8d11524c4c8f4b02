"""`flashcell metrics` over real cells (S8): the field's call and its lines, what changed in between (S1), cells that are gone."""

import json
import os
import re
import signal
import time

import nbdclient
from harness import Place, binary, check, contains, equal, measured, run, test, timing


def three(place, **options):
    return [place.cell(name=f"exa1cel{i + 1:02}", griddisks=(f"data{i + 1}:32M",), **options).start() for i in range(3)]


def metrics(cells, *words, ok=True, **options):
    hosts = ",".join(cell.dir for cell in cells)
    return run([binary(), "metrics", "--hosts", hosts, *words], ok=ok, **options)


def rows(text):
    """The lines of a table as {name: [words]}, head and rule left out."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines()[2:] if line.strip()}


@test
def s8_the_call_of_the_field():
    with Place("metrics") as place:
        cells = three(place)
        data = os.urandom(65536)
        for i, cell in enumerate(cells):
            client = nbdclient.Client(cell.socket, export=f"data{i + 1}")
            client.write(0, data)
            for _ in range(5 * (i + 1)):
                client.read(0, 4096)
            client.disconnect()
        # Its cells had six metrics of that name; ours have more, so the mask is closed here.
        done = metrics(cells, "--mask", "FC_IO_RQ_R(_MISS|_SKIP)?(_SEC)?$", "--sci")
        lines = done.stdout.splitlines()
        equal(lines[:2], ["Name                    Sum", "----------------------- ------------"], "head")
        # The field's lines, values aside: the names in its order, the numbers where its own stood.
        names = ["FC_IO_RQ_R", "FC_IO_RQ_R_MISS", "FC_IO_RQ_R_MISS_SEC", "FC_IO_RQ_R_SEC", "FC_IO_RQ_R_SKIP", "FC_IO_RQ_R_SKIP_SEC"]
        equal([line.split()[0] for line in lines[2:]], names, "names")
        check(all(re.fullmatch(r"\S+ +[0-9.e+]+", line) and len(line) == 36 for line in lines[2:]), f"lines {lines}")
        # As the sum of what each cell says; also when the list follows -h, as the field's own usage has it.
        each = [sum(v for (n, _), v in cell.metrics().items() if n == "FC_IO_RQ_R") for cell in cells]
        equal(rows(done.stdout)["FC_IO_RQ_R"], [str(sum(each))], "the sum")
        hosts = ",".join(cell.dir for cell in cells)
        again = run([binary(), "metrics", "-h", hosts, "-m", "FC_IO_RQ_R$"]).stdout
        equal(rows(again), {"FC_IO_RQ_R": [str(sum(each))]}, "-h LIST")
        contains(run([binary(), "metrics", "-h"]).stdout, "--mask", "-h alone is help")
        # A column for each cell, objects apart, statistics, descriptions.
        table = metrics(cells, "-c", "-m", "FC_IO_RQ_R$").stdout
        contains(table.splitlines()[0], "exa1cel02", "head")
        equal(rows(table)["FC_IO_RQ_R"], [str(sum(each)), *map(str, each)], "columns of cells")
        table = metrics(cells, "-o", "-m", "GD_IO_RQ_R_SM$").stdout
        equal([line.split()[1] for line in table.splitlines()[2:]], ["data1", "data2", "data3"], "objects apart")
        table = metrics(cells, "-a", "-m", "FC_IO_RQ_R$").stdout
        mean = round(sum(each) / 3 + 1e-9, 3)
        got = rows(table)["FC_IO_RQ_R"]
        equal(got[:3], [str(sum(each)), str(min(each)), str(max(each))], "statistics")
        check(abs(float(got[3]) - mean) <= 0.001, f"average {got[3]}, expected {mean}")
        contains(metrics(cells, "-d", "-m", "FC_IO_RQ_R$").stdout, "reads served whole from the cache [IO requests]", "description")
        # For programs.
        shown = json.loads(metrics(cells, "--json", "-m", "GD_IO_RQ_R_SM$").stdout)
        equal(
            [(row["name"], row["object_type"], row["object"], row["cell"], row["unit"]) for row in shown],
            [("GD_IO_RQ_R_SM", "GRIDDISK", f"data{i}", f"exa1cel{i:02}", "IO requests") for i in (1, 2, 3)],
            "JSON",
        )
        equal([row["value"] for row in shown], [5, 10, 15], "reads")
        # From a list of cells, which is also looked for.
        group = place.file("cells", "".join(f"{cell.dir}  # rack 1\n" for cell in cells).encode())
        environment = dict(os.environ, FLASHCELL_GROUP=group)
        listed = run([binary(), "metrics", "-m", "FC_IO_RQ_R$"], env=environment).stdout
        equal(rows(listed), {"FC_IO_RQ_R": [str(sum(each))]}, "a list of cells")
        for words, code, part in (
            (("--mask", "*"), 1, "regular expression"),
            (("--diff", place.path("none")), 1, "none"),
            (("--nosuch",), 2, "nosuch"),
        ):
            done = metrics(cells, *words, ok=False)
            equal(done.returncode, code, f"exit code of {words}")
            contains(done.stderr, part, "message")
        for cell in cells:
            cell.stop()


@timing
def s1_what_changed_between_two_readings():
    with Place("metrics") as place:
        cells = three(place)
        before = place.path("before.json")
        metrics(cells, "--before", before)
        for cell, count in zip(cells, (10, 20, 30)):
            client = nbdclient.Client(cell.socket, export="data" + cell.dir[-1])
            for i in range(count):
                client.read(i * 4096, 4096)
            client.disconnect()
        time.sleep(1)
        table = metrics(cells, "--diff", before, "-c", "-m", "GD_IO_RQ_R_SM").stdout
        got = rows(table)
        equal(got["GD_IO_RQ_R_SM"], ["60", "10", "20", "30"], "what was read in between")
        # Rates are of the time between, not of the last minute.
        rate = float(got["GD_IO_RQ_R_SM_SEC"][0])
        measured(0 < rate <= 60, f"reads a second: {rate}")
        # A cell that was restarted in between is named, and the others are shown.
        cells[1].kill()
        cells[1].start()
        metrics(cells, "--before", place.path("unused"))
        done = metrics(cells, "--diff", before, "-m", "GD_IO_RQ_R_SM$", ok=None)
        shown = rows(done.stdout)["GD_IO_RQ_R_SM"]
        if done.returncode == 1:
            contains(done.stderr, "exa1cel02: its counters began anew in between", "who")
            equal(shown, ["40"], "the others")
        # Twice, a second apart.
        twice = metrics(cells, "--watch", "1", "--count", "2", "-m", "FC_IO_RQ_R$").stdout
        equal(twice.count("FC_IO_RQ_R "), 2, "--watch")
        for cell in cells:
            cell.stop()


@timing
def cells_that_do_not_answer_are_named():
    """One is stopped in its tracks (SIGSTOP), one is dead, one is not there: the fourth is shown, in a time-out."""
    with Place("metrics") as place:
        cells = three(place)
        cells[1].process.send_signal(signal.SIGSTOP)
        cells[2].kill()
        gone = place.path("exa1cel09")
        hosts = ",".join([*(cell.dir for cell in cells), gone, "127.0.0.1:1"])
        started = time.monotonic()
        environment = dict(os.environ, FLASHCELL_TRUST=place.path("own"))
        done = run(
            [binary(), "metrics", "--hosts", hosts, "-m", "FC_BY_ALLOCATED", "--timeout", "2"], ok=False, env=environment
        )
        measured(time.monotonic() - started < 8, "one time-out")
        equal(done.returncode, 1, "exit code")
        for host in (cells[1].dir, cells[2].dir, gone, "127.0.0.1:1"):
            contains(done.stderr, f"{host}: ", "who does not answer")
        check(f"{cells[0].dir}: " not in done.stderr, "the first one has answered")
        check(float(rows(done.stdout)["FC_BY_ALLOCATED"][0]) > 0, "the others are shown")
        cells[1].process.send_signal(signal.SIGCONT)
        done = run([binary(), "metrics", "--hosts", gone], ok=False)
        contains(done.stderr, "no cell answers", "when nobody does")
        cells[0].stop()
        cells[1].stop()
