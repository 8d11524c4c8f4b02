"""The OpenAPI document against a running cell: schemathesis makes requests of it, over TLS with a token, and judges the answers."""

import os
import re
import shutil

from harness import ROOT, Place, Skip, binary, check, contains, equal, run, test_alone


def schemathesis():
    """The program, from PATH or from where scripts/install-test-clients puts it."""
    own = os.path.join(ROOT, "target", "schemathesis", "bin", "st")
    found = shutil.which("st") if shutil.which("schemathesis") else own if os.access(own, os.X_OK) else None
    if found is None:
        raise Skip("not installed: schemathesis (scripts/install-test-clients)")
    return found


@test_alone
def the_document_is_true():
    program = schemathesis()
    with Place("openapi") as place:
        cell = place.cell(griddisks=("a:16M", "b:16M"))
        environment = dict(os.environ, FLASHCELL_TRUST=place.path("own"))
        flashcell = [binary()]
        run(flashcell + ["trust", cell.dir], env=environment)
        token = run(flashcell + ["trust", cell.dir, "--token", "st", "--role", "administrator"], env=environment).stdout.strip()
        cell.edit(lambda text: text.replace("admin = [", 'admin = ["tcp:127.0.0.1:0", ', 1))
        cell.start()
        tcp = [w for w in cell.ready_line.split() if w.startswith("admin=tcp:")][0].removeprefix("admin=tcp:")
        here = os.path.dirname(os.path.abspath(__file__))
        hooks = dict(os.environ, SCHEMATHESIS_HOOKS=os.path.join(here, "schemathesis_hooks.py"))
        done = run(
            [program, "--config-file", os.path.join(here, "schemathesis.toml"), "run", f"https://{tcp}/v1/openapi.json"]
            + ["--tls-verify", place.path("own/ca.pem"), "-H", f"Authorization: Bearer {token}"]
            + ["--max-examples", "50", "--seed", "1", "--no-color"],
            ok=None,
            seconds=500,
            cwd=place.dir,
            env=hooks,
        )
        check(done.returncode == 0, f"schemathesis: exit {done.returncode}\n{done.stdout[-4000:]}")
        counts = re.search(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)", done.stdout)
        check(counts is not None, f"no counts in {done.stdout[-2000:]}")
        check(len(set(counts.groups())) == 1 and int(counts[1]) >= 30, f"every operation was tried: {counts[0]}")
        # Whatever was asked, the cell is there and was told who asked.
        cell.check_alive()
        equal(len(cell.json("list cell")), 1, "cells")
        with open(os.path.join(cell.dir, "audit.log")) as file:
            contains(file.read(), "token st from 127.0.0.1:", "audit log")
        cell.kill()
