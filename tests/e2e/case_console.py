"""How `flashcell cellcli` is started, as the vendor's is: -xml, -v, the port; and METRICHISTORY ... MEMORY."""

import json
import os
import re
import xml.etree.ElementTree

import nbdclient
from harness import binary, check, contains, equal, run, served, test, wait_until


def asked(cell, *options, ok=True):
    return run([binary(), "cellcli", "-c", cell.dir, *options], ok=ok)


@test
def answers_in_xml_by_either_spelling():
    with served(griddisks=("a:16M", "b:16M")) as cell:
        for spelling in ("--xml", "-xml"):
            done = asked(cell, spelling, "-e", "list griddisk attributes name, size, comment")
            root = xml.etree.ElementTree.fromstring(done.stdout)
            equal(root.tag, "cli-output", "root")
            equal(root.find("context").get("cell"), cell.json("list cell")[0]["name"], "cell")
            rows = [(row.find("name").text, row.find("size").text) for row in root.iter("griddisk")]
            equal(rows, [("a", str(16 << 20)), ("b", str(16 << 20))], "rows")
        # The program by its vendor's name takes it as well; a statement is a statement.
        link = cell.place.path("cellcli")
        os.symlink(binary(), link)
        done = run([link, "-c", cell.dir, "-xml", "-e", "list griddisk a"])
        contains(done.stdout, "<griddisk>", "answer")
        contains(asked(cell, "-e", "list", "-xml", ok=False).stderr, "CELL-01504", "message")
        check(asked(cell, "--xml", "--json", "-e", "list cell", ok=False).returncode == 2, "one form at a time")
        cell.stop()


@test
def verbose_tells_which_cell_and_what_it_took():
    with served() as cell:
        equal(asked(cell, "-e", "list cell").stderr, "", "without -v")
        contains(asked(cell, "-v", "-e", "list cell").stderr, "cell: unix:", "with -v")
        done = asked(cell, "-vvv", "-e", "list  cell; list griddisk")
        contains(done.stderr, " ms: list cell\n", "with -vvv")
        contains(done.stderr, " ms: list griddisk\n", "with -vvv")
        cell.stop()


@test
def a_port_is_that_of_a_host():
    with served() as cell:
        contains(asked(cell, "8888", "-e", "list cell", ok=False).stderr, "hint: PORT goes with -c HOST", "a directory has none")
        done = run([binary(), "cellcli", "-v", "9", "-e", "list cell"], ok=False, env={**os.environ, "HOME": cell.place.dir})
        contains(done.stderr, "cell: tcp:localhost:9", "the port of this host")
        done = run([binary(), "cellcli", "-c", "localhost:8", "9", "-e", "list cell"], ok=False)
        contains(done.stderr, "hint: PORT goes with -c HOST", "two ports")
        cell.stop()


@test
def metrichistory_memory_needs_no_store():
    with served() as cell:
        wanted = "list metrichistory GD_IO_RQ_R_SM memory"
        wait_until(lambda: cell.json(wanted), 90, "the first reading")
        kept = cell.json("list metrichistory GD_IO_RQ_R_SM")
        shown = cell.json(wanted)
        key = lambda row: (row["metricObjectName"], row["metricValue"])
        check(set(map(key, shown)) <= set(map(key, kept)), "memory has what the store has")
        check(re.match(r"(?s).*GD_IO_RQ_R_SM", cell.cellcli(wanted).stdout), "text form")
        contains(cell.cellcli("list griddisk memory", ok=False).stderr, "CELL-", "of METRICHISTORY alone")
        ask = ["curl", "-sS", "-w", "%{stderr}%{http_code}", "--unix-socket", cell.admin_socket]
        done = run([*ask, "http://cell/v1/metrichistory?names=GD_IO_RQ_R_SM&memory=true"])
        equal((set(map(key, json.loads(done.stdout))), done.stderr), (set(map(key, shown)), "200"), "the same over HTTP")
        for query, status in (("metrichistory?memory=yes", "400"), ("griddisk?memory=true", "400"), ("metrichistory?memory=false&limit=1", "200")):
            equal(run([*ask, f"http://cell/v1/{query}"]).stderr, status, query)
        document = json.loads(run([*ask, "http://cell/v1/openapi.json"]).stdout)
        parameters = {p["name"]: p["schema"] for p in document["paths"]["/v1/metrichistory"]["get"]["parameters"]}
        equal(parameters["memory"], {"type": "boolean"}, "what the document says")
        cell.stop()


@test
def cell_toml_is_for_owner_and_group():
    with served() as cell:
        equal(os.stat(cell.toml_path).st_mode & 0o777 & ~0o640, 0, "bits of cell.toml beyond 0640")
        cell.stop()


@test
def flash_cache_content_has_the_vendor_s_columns():
    with served() as cell:
        client = nbdclient.Client(cell.socket)
        client.write(0, b"x" * 65536)
        wait_until(lambda: client.read(0, 65536) and cell.json("list flashcachecontent"), 20, "something is cached")
        client.disconnect()
        row = cell.json("list flashcachecontent attributes dbID, tableSpaceNumber, objectNumber, cachedSize")[0]
        equal([row[name] for name in ("dbID", "tableSpaceNumber", "objectNumber")], [None] * 3, "what nobody knows")
        check(row["cachedSize"] > 0, "cached bytes")
        cell.stop()
