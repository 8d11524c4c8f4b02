"""What a cell remembers: metric history, thresholds, alerts and whom it tells of them. Real processes, a real HTTP listener."""

import http.server
import json
import os
import threading
import time

import nbdclient
from harness import MIB, Place, check, contains, equal, served, test, wait_until


def alerts(cell, where=""):
    return cell.json(f"list alerthistory {where} attributes all")


@test
def metric_history_is_kept_over_crashes():
    with served() as cell:
        # A reading is taken at each start, then once a minute.
        wait_until(lambda: cell.json("list metrichistory CL_MEMUT_CS"), 30, "a first reading")
        client = nbdclient.Client(cell.socket)
        client.write(0, bytes(MIB))
        client.disconnect()
        for starts in range(2, 5):
            cell.kill()
            cell.start()
            # A reading of the run before may be younger than the start took: they are counted.
            wait_until(lambda: len(cell.json("list metrichistory CL_MEMUT_CS")) >= starts, 30, f"a reading of start {starts}")
        rows = cell.json("list metrichistory CL_MEMUT_CS attributes all")
        equal(len(rows), 4, "readings after three times kill -9")
        times = [row["collectionTime"] for row in rows]
        equal(times, sorted(times), "times")
        for key, value in (("metricType", "Instantaneous"), ("objectType", "CELL"), ("unit", "%")):
            equal({row[key] for row in rows}, {value}, key)
        check(all(row["description"] and row["age"] >= 0 for row in rows), "description and age are there without a join")
        text = cell.cellcli("list metrichistory where name = 'CL_MEMUT_CS' and age < 3600 order by collectionTime desc limit 1").stdout
        fields = [field.strip() for field in text.strip().split("\t")]
        equal((fields[0], fields[1], len(fields)), ("CL_MEMUT_CS", "cell", 4), "name, object, value, time")
        # Rates are of two readings of one run: there is none yet.
        equal(cell.json("list metrichistory GD_IO_RQ_W_LG_SEC"), [], "rates")
        equal(len(cell.json("list metrichistory where name in (GD_IO_RQ_W_LG, GD_IO_RQ_W_SM) and metricValue >= 0")), 8, "rows")
        contains(cell.cellcli("list metrichistory NO_SUCH", ok=False).stderr, "CELL-09007", "an unknown metric")
        # One row for all of them, with what the readings say.
        every = cell.json("list metrichistory CL_MEMUT_CS attributes metricValue")
        over = cell.json("list metrichistory CL_MEMUT_CS over 527040")
        equal(len(over), 1, "rows of a year")
        for attribute, of in (("metricValueMax", max), ("metricValueMin", min)):
            equal(over[0][attribute], of((row["metricValue"] for row in every)), attribute)
        check(over[0]["metricValueMin"] <= over[0]["metricValueAvg"] <= over[0]["metricValueMax"], "the mean lies between")
        check("metricValueMin" not in cell.json("list metrichistory CL_MEMUT_CS over 60 max")[0], "only what is asked for")
        cell.cellcli("alter metricdefinition CL_MEMUT_CS, GD_IO_RQ_W_SM_SEC retentionPolicy=Annual")
        cell.kill()
        cell.start()
        named = cell.json("list metricdefinition where retentionPolicy = 'Annual' attributes name")
        equal(sorted(row["name"] for row in named), ["CL_MEMUT_CS", "GD_IO_RQ_W_SM_SEC"], "kept for a year")
        cell.cellcli("alter metricdefinition retentionPolicy=Default where name like 'GD_.*'")
        equal(cell.json("list metricdefinition where retentionPolicy = 'Annual' attributes name"), [{"name": "CL_MEMUT_CS"}], "what is left")
        contains(cell.cellcli("alter metricdefinition CL_MEMUT_CS streaming=Enabled", ok=False).stderr, "CELL-09002", "no stream")
        cell.cellcli("alter cell metricHistoryDays=3")
        equal(cell.json("list cell attributes metricHistoryDays"), [{"metricHistoryDays": 3}], "days")
        contains(cell.cellcli("alter cell metricHistoryDays=0", ok=False).stderr, "CELL-09003", "no days")
        cell.stop()


@test
def a_damaged_history_stops_nobody():
    with served() as cell:
        wait_until(lambda: cell.json("list metrichistory CL_MEMUT_CS"), 30, "a first reading")
        cell.stop()
        path = os.path.join(cell.dir, "history.redb")
        with open(path, "r+b") as file:
            file.write(os.urandom(64 << 10))
        cell.start()
        wait_until(lambda: cell.json("list metrichistory CL_MEMUT_CS where age < 5"), 30, "a reading in a new file")
        check(os.path.exists(path + ".damaged"), "the old file is set aside")
        found = wait_until(lambda: alerts(cell, "where definition = Cell_Event"), 10, "an alert")
        contains(found[0]["alertMessage"], "set aside", "its message")
        client = nbdclient.Client(cell.socket)
        client.write(0, b"x" * 4096)
        client.disconnect()
        cell.stop()


@test
def thresholds_raise_and_clear():
    with served(griddisks=("data:64M",)) as cell:
        out = cell.cellcli("create threshold CL_VIRTMEM_CS comparison='>', critical=1").stdout
        contains(out, "Threshold CL_VIRTMEM_CS successfully created", "answer")
        cell.cellcli("create threshold GD_IO_ERRS_MIN.data comparison='>=', warning=1, critical=10, occurrences=2, observation=3")
        contains(cell.cellcli("create threshold CL_VIRTMEM_CS comparison='<' warning=1", ok=False).stderr, "CELL-09008", "twice")
        contains(cell.cellcli("create threshold NOSUCH comparison='<' warning=1", ok=False).stderr, "CELL-09007", "no metric")
        contains(cell.cellcli("create threshold CL_RUNQ comparison='<'", ok=False).stderr, "CELL-09005", "no limit")
        # Thresholds are in the catalog: they are there after a crash. Values are looked at with the reading at the start.
        cell.kill()
        cell.start()
        lines = cell.cellcli("list threshold GD_IO_ERRS_MIN.data detail").stdout.split()
        equal(lines[:4], ["name:", "GD_IO_ERRS_MIN.data", "comparison:", ">="], "DETAIL")
        row = cell.json("list threshold GD_IO_ERRS_MIN.data attributes all")[0]
        equal((row["warning"], row["critical"], row["occurrences"], row["observation"]), (1, 10, 2, 3), "threshold")
        found = wait_until(lambda: alerts(cell, "where severity = critical"), 30, "an alert")[0]
        equal((found["name"], found["definition"], found["unit"]), ("1_1", "StatefulAlert_CL_VIRTMEM_CS", "MB"), "the alert")
        check(found["metricValue"] > 1 and found["endTime"] is None, "its value, and that it lasts")
        state = cell.json("list metriccurrent CL_VIRTMEM_CS attributes alertState")
        equal(state, [{"alertState": "critical"}], "alertState")
        contains(cell.cellcli("drop alerthistory 1_1", ok=False).stderr, "CELL-09009", "it lasts")
        cell.cellcli("alter alerthistory 1_1 examinedBy='ann'")
        # The same alert after a crash, not another one; cleared when the threshold has gone.
        cell.cellcli("alter threshold CL_VIRTMEM_CS critical=2")
        cell.kill()
        cell.start()
        wait_until(lambda: cell.json("list metrichistory CL_MEMUT_CS where age < 5"), 30, "a reading")
        rows = alerts(cell, "where definition like 'Stateful.*'")
        equal([(row["name"], row["examinedBy"]) for row in rows], [("1_1", "ann")], "alerts")
        cell.cellcli("drop threshold all")
        equal(cell.json("list threshold"), [], "thresholds")
        cell.stop()
        cell.start()
        wait_until(lambda: cell.json("list metrichistory CL_MEMUT_CS where age < 5"), 30, "a reading")
        # The first reading has no rates yet, so only a minute later it is known that it is over.
        wait_until(lambda: alerts(cell, "where name = '1_2' and severity = clear"), 90, "it is cleared")
        cell.cellcli("drop alerthistory all")
        equal(alerts(cell, "where definition like 'Stateful.*'"), [], "alerts")
        cell.stop()


class Listener:
    """An HTTP server that keeps what it is sent; it fails the first request."""

    def __init__(self):
        self.told = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.told.append((self.path, json.loads(body)))
                self.send_response(503 if len(outer.told) == 1 else 200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}/cell"


@test
def a_lost_flash_device_is_told_to_a_program_and_to_an_address():
    with Place("hooks") as place:
        cell = place.cell()
        listener = Listener()
        script = place.file("hook", b'#!/bin/sh\ncat > "$1/$FLASHCELL_ALERT_DEFINITION.$FLASHCELL_ALERT_SEVERITY"\n')
        os.chmod(script, 0o755)
        tables = (
            f'[[alerts.command]]\nargv = ["{script}", "{place.dir}"]\n\n'
            f'[[alerts.webhook]]\nurl = "{listener.url}"\n\n[[device]]\n'
        )
        cell.edit(lambda text: text.replace("[[device]]\n", tables, 1))
        cell.start()
        cell.stop()
        equal(listener.told, [], "nothing is wrong")
        flash = cell.device("flash")
        os.rename(flash, flash + ".away")
        cell.start()
        path = place.path("CellDisk_NotPresent.warning")
        wait_until(lambda: os.path.exists(path) and os.path.getsize(path), 30, "the program is run")
        with open(path) as file:
            told = json.load(file)
        equal((told["cell"], told["severity"]), ("cell", "warning"), "what it is told")
        contains(told["message"], "is not present", "message")
        wait_until(lambda: len({json.dumps(body) for _, body in listener.told}) >= 2, 30, "the address is told of both")
        names = {body["definition"] for _, body in listener.told}
        equal(names, {"CellDisk_NotPresent", "FlashCache_MemberFailed"}, "alerts")
        # What failed is sent again.
        wait_until(lambda: len(listener.told) >= 3, 30, "a retry")
        cell.kill()
        cell.start()
        equal(len(alerts(cell, "where definition = CellDisk_NotPresent")), 1, "the same alert after a crash")
        os.rename(flash + ".away", flash)
        cell.kill()
        cell.start()
        wait_until(lambda: os.path.exists(place.path("CellDisk_NotPresent.clear")), 30, "it is over")
        rows = alerts(cell, "where definition = CellDisk_NotPresent")
        equal([row["severity"] for row in rows], ["warning", "clear"], "changes")
        check(all(row["endTime"] for row in rows), "it has an end")
        cell.stop()


@test
def building_and_resizing_flash_cache_and_log_raises_no_alert():
    """On flash that takes 60 ms for everything, so that each change takes longer than the second between two looks."""
    with Place("building") as place:
        cell = place.cell(flash=("192M",), griddisks=("data:64M", "redo:32M:redo"))
        cell.set_device('model = "fixed:60ms:1"', kind="flash")
        cell.start()
        for statement in (
            "alter flashcache all size=64M",
            "drop flashlog",
            "create flashlog all size=64M",
        ):
            started = time.monotonic()
            cell.cellcli(statement)
            print(f"# {time.monotonic() - started:.1f} s: {statement}", flush=True)
        time.sleep(1.5)
        told = [row["alertMessage"] for row in alerts(cell) if "goes on without" in row["alertMessage"]]
        equal(told, [], "alerts")
        # What has really failed is told all the same.
        flash = cell.device("flash")
        cell.stop()
        os.rename(flash, flash + ".away")
        cell.start()
        gone = lambda: [row["alertMessage"] for row in alerts(cell) if "goes on without" in row["alertMessage"]]
        wait_until(lambda: len(gone()) >= 2, 20, "cache and log go on without their flash")
        cell.stop()
