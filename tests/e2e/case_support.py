"""`flashcell support`: one archive for whoever is to help, of a cell that runs and of one that does not, without secrets."""

import json
import os
import stat
import tarfile

from harness import Place, binary, check, contains, equal, run, test

WEBHOOK = "https://alerts.example.invalid/T0KEN-of-the-webhook"


def bundle(place, cell, name, ok=True):
    """The archive that `support` makes: what it holds by name, and what the command said."""
    path = place.path(name)
    done = run([binary(), "support", "-c", cell.dir, "-o", path], ok=ok)
    equal(done.stdout.strip(), path, "the name of the archive, alone on stdout")
    equal(stat.S_IMODE(os.stat(path).st_mode), 0o600, "mode of the archive")
    with tarfile.open(path, "r:gz") as archive:
        parts = {member.name.split("/", 1)[1]: archive.extractfile(member).read() for member in archive.getmembers()}
    for part, content in parts.items():
        check(b"T0KEN" not in content, f"a secret of cell.toml is in {part}")
    return parts, done


@test
def support_bundles_a_cell_that_runs_and_one_that_does_not():
    with Place("support") as place:
        cell = place.cell()
        with open(os.path.join(cell.dir, "cell.toml"), "a") as config:
            config.write(f'\n[[alerts.webhook]]\nurl = "{WEBHOOK}"\n')
        cell.start()
        parts, done = bundle(place, cell, "running.tar.gz")
        for name in ("README", "cell.toml", "backup.cli", "cell/griddisk.json", "cell/metriccurrent.json", "cell/alerthistory.json",
                     "process/status", "process/threads", "host/doctor.json", "host/proc/meminfo", "directory.txt"):
            check(name in parts, f"{name} is missing: {sorted(parts)}\n{parts.get('missing.txt', b'').decode()}")
        contains(parts["cell.toml"].decode(), "(removed)", "where alerts go")
        names = [disk["name"] for disk in json.loads(parts["cell/griddisk.json"])]
        check(names, "grid disks are listed")
        contains(parts["backup.cli"].decode(), "CREATE GRIDDISK", "the script that makes the cell again")
        check("key" not in " ".join(parts), f"keys are in it: {sorted(parts)}")
        again = run([binary(), "support", "-c", cell.dir, "-o", place.path("running.tar.gz")], ok=False)
        contains(again.stderr, "must not be there yet", "an archive that is there")
        cell.stop()
        parts, done = bundle(place, cell, "stopped.tar.gz")
        for name in ("cell.toml", "host/doctor.json", "directory.txt"):
            check(name in parts, f"{name} of a cell that is down")
        contains(parts["missing.txt"].decode(), "no process serves the cell", "what could not be had")
        contains(done.stderr, "not in it: cell/cell.json", "what the command says of it")
