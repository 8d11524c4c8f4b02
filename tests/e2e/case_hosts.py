"""Three cells on hosts of their own (network namespaces): trust, CellCLI, dcli and metrics by the cells' names; one loses power."""

import json
import threading
import time

from fleet import Fleet
from harness import Place, binary, check, contains, equal, measured, timing_alone


@timing_alone
def three_hosts_and_one_loses_power():
    with Place("hosts") as place:
        fleet = Fleet(place, networked=True, griddisks=("data:32M",))
        names = ",".join(fleet.names)
        flashcell = lambda *words, **options: fleet.client([binary(), *words], **options)
        # Certificates for all of them in one command, over ssh; then TCP, which was closed until now.
        places = [f"{name}:{fleet.cells[name].dir}" for name in fleet.names]
        done = flashcell("trust", *places, "-l", "root", "-s", f"-F {fleet.config}")
        equal(done.stderr.count(": certificate installed"), 3, "cells with a certificate")
        done = flashcell("metrics", "--hosts", names, "--timeout", "2", ok=False)
        contains(done.stderr, "no cell answers", "before anybody listens")
        for cell in fleet.cells.values():
            cell.stop()
            cell.edit(lambda text: text.replace("admin = [", 'admin = ["tcp:0.0.0.0", ', 1))
            cell.start()
        contains(flashcell("cellcli", "-c", "exa1cel02", "-e", "list cell").stdout, "exa1cel02", "CellCLI by name")
        shown = json.loads(flashcell("metrics", "--hosts", names, "--json", "-m", "FC_BY_ALLOCATED").stdout)
        equal([row["cell"] for row in shown], fleet.names, "cells that answer metrics")
        out = fleet.dcli("-g", fleet.group, "-l", "root", "cellcli -e list griddisk").stdout
        equal([line.split(":")[0] for line in out.splitlines()], fleet.names, "cells that answer dcli")
        # The second one loses power in the middle of a command: nobody is told, only silence comes.
        timer = threading.Timer(2, fleet.network.cut, ["exa1cel02"])
        timer.start()
        started = time.monotonic()
        done = fleet.dcli("-g", fleet.group, "-l", "root", "echo begun; sleep 4; cellcli -e list griddisk", ok=False)
        timer.join()
        equal(done.returncode, 1, "exit code of dcli")
        contains(done.stderr, "Unable to connect to cells: ['exa1cel02']", "who is gone")
        measured(time.monotonic() - started < 60, "a silent cell is given up")
        for name in ("exa1cel01", "exa1cel03"):
            lines = [line for line in done.stdout.splitlines() if line.startswith(name)]
            check(len(lines) == 2 and "data" in lines[1], f"{name} has answered: {lines}")
        started = time.monotonic()
        done = flashcell("metrics", "--hosts", names, "-c", "-m", "FC_BY_ALLOCATED", "--timeout", "2", ok=False)
        measured(time.monotonic() - started < 8, "one time-out")
        equal(done.returncode, 1, "exit code of metrics")
        contains(done.stderr, "exa1cel02: ", "who is gone")
        head = done.stdout.splitlines()[0]
        check("exa1cel01" in head and "exa1cel03" in head and "exa1cel02" not in head, f"columns {head}")
        for cell in fleet.cells.values():
            cell.stop()
