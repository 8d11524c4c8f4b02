"""/metrics as Debian's prometheus and promtool read them: names, OpenMetrics, every query of the dashboard and of the alert rules."""

import json
import os
import re
import shutil
import socket
import time
import urllib.error
import urllib.parse
import urllib.request

import nbdclient
from harness import MIB, ROOT, Place, Skip, binary, check, contains, equal, need, run, test, wait_until

PACKAGING = os.path.join(ROOT, "packaging")
# Without these a panel is rightly empty on a healthy cell: nothing is rotten, no drive is rated.
MAY_BE_EMPTY = ("flashcell_cd_fc_lifetime_days",)


def program(name):
    """On the path, or where scripts/install-test-clients unpacks Debian's package."""
    unpacked = os.path.join(ROOT, "target", "prometheus", "usr", "bin", name)
    found = shutil.which(name) or (unpacked if os.access(unpacked, os.X_OK) else None)
    if found is None:
        raise Skip(f"not installed: {name} (scripts/install-test-clients)")
    return found


def page(cell, accept=None):
    headers = ["-H", f"Accept: {accept}"] if accept else []
    return run(["curl", "-sS", "-f", "--unix-socket", cell.admin_socket, *headers, "-D", "-", "http://cell/metrics"]).stdout


def busy_cell(place):
    """A cell of which every part has something to show."""
    cell = place.cell(griddisks=("data:64M", "log:32M:redo")).start()
    return cell


def work(cell):
    client = nbdclient.Client(cell.socket)
    client.write(0, bytes(4 * MIB))
    for _ in range(3):
        for offset in range(0, 2 * MIB, 64 << 10):
            client.read(offset, 4096)
    client.flush()
    client.disconnect()
    redo = nbdclient.Client(cell.socket, export="log")
    for n in range(20):
        redo.write(n * 4096, bytes([n]) * 4096)
        redo.flush()
    redo.disconnect()


@test
def promtool_finds_nothing_about_the_names():
    promtool = program("promtool")
    need("curl")
    with Place("promtool") as place:
        cell = busy_cell(place)
        work(cell)
        head, text = page(cell).split("\n\n", 1) if "\n\n" in page(cell) else page(cell).split("\r\n\r\n", 1)
        contains(head, "text/plain; version=0.0.4", "type")
        done = run([promtool, "check", "metrics"], ok=None, input=text)
        equal((done.returncode, done.stderr, done.stdout), (0, "", ""), "promtool check metrics")
        head, text = re.split(r"\r?\n\r?\n", page(cell, "application/openmetrics-text; version=1.0.0"), maxsplit=1)
        contains(head, "application/openmetrics-text; version=1.0.0", "type")
        check(text.endswith("# EOF\n"), "the end of OpenMetrics")
        contains(text, "# TYPE flashcell_device_latency_seconds histogram\n", "a histogram")
        contains(text, 'flashcell_device_tried_again_total{device="', "what was tried again, by device")
        for family in re.findall(r"# TYPE (\S+) counter", text):
            check(re.search(rf"(?m)^{family}_total[{{ ]", text), f"{family} has a sample of its own")
        run([promtool, "check", "rules", os.path.join(PACKAGING, "prometheus-rules.yml")])
        cell.stop()


# Reads OpenMetrics as the specification has it; what it takes for a family is printed, a line of JSON each.
STRICT = """
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families
for family in families(sys.stdin.read()):
    print(json.dumps([family.name, family.type, [[s.name, s.labels, s.value] for s in family.samples]]))
"""


@test
def a_strict_parser_takes_the_page_for_openmetrics():
    python = os.path.join(ROOT, "target", "prometheus-client", "bin", "python")
    if not os.access(python, os.X_OK):
        raise Skip("not installed: prometheus_client (scripts/install-test-clients)")
    need("curl")
    with Place("openmetrics") as place:
        cell = busy_cell(place)
        work(cell)
        text = re.split(r"\r?\n\r?\n", page(cell, "application/openmetrics-text; version=1.0.0"), maxsplit=1)[1]
        done = run([python, "-c", STRICT], ok=None, input=text)
        equal((done.returncode, done.stderr[-800:]), (0, ""), "the strict parser")
        families = {name: (kind, samples) for name, kind, samples in map(json.loads, done.stdout.splitlines())}
        check(len(families) > 100, f"{len(families)} families")
        kind, ((_, _, started),) = families["process_start_time_seconds"]
        check(kind == "gauge" and 0 <= time.time() - started < 600, f"started at {started}, {kind}")
        kind, ((name, labels, value),) = families["flashcell_build"]
        version = run([binary(), "--version"]).stdout.split()[1]
        equal((kind, name, labels, value), ("info", "flashcell_build_info", {"version": version}, 1), "the build")
        for name, (kind, samples) in families.items():
            if kind in ("counter", "histogram"):
                own = lambda labels: sorted((k, v) for k, v in labels.items() if k != "le")
                of = {str(own(labels)) for _, labels, _ in samples}
                since = {str(own(labels)): value for sample, labels, value in samples if sample == f"{name}_created"}
                equal(sorted(since), sorted(of), f"samples of {name} that say since when they count")
                equal(set(since.values()) - {started}, set(), f"since when {name} counts")
        plain = page(cell)
        check("_created" not in plain and "process_start_time_seconds " in plain, "Prometheus' own text has no _created")
        contains(plain, f'flashcell_build_info{{version="{version}"}} 1', "the build in Prometheus' own text")
        cell.stop()


def queries():
    """(where, query) of the dashboard, for all cells, and of the rules."""
    with open(os.path.join(PACKAGING, "grafana-dashboard.json")) as file:
        dashboard = json.load(file)
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$cell", ".*")
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    metric = re.fullmatch(r"label_values\((\w+), instance\)", variables["cell"]["query"]).group(1)
    yield "the variable", metric


@test
def prometheus_answers_every_query_of_the_dashboard():
    prometheus = program("prometheus")
    with Place("prometheus") as place:
        cell = busy_cell(place)
        cell.stop()
        environment = {**os.environ, "FLASHCELL_TRUST": place.path("own")}
        run([binary(), "trust", cell.dir], env=environment)
        token = run([binary(), "trust", cell.dir, "--token", "prometheus", "--role", "monitor"], env=environment).stdout.strip()
        cell.edit(lambda text: text.replace("admin = [", 'admin = ["tcp:127.0.0.1:0", ', 1))
        cell.start()
        target = [w for w in cell.ready_line.split() if w.startswith("admin=tcp:")][0].removeprefix("admin=tcp:")
        place.file("token", token.split()[-1].encode())
        config = f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{PACKAGING}/prometheus-rules.yml]
scrape_configs:
  - job_name: flashcell
    scheme: https
    tls_config: {{ca_file: {place.path("own")}/ca.pem, server_name: localhost}}
    authorization: {{credentials_file: {place.path("token")}}}
    static_configs: [{{targets: ["{target}"]}}]
"""
        path = place.file("prometheus.yml", config.encode())
        log = open(place.path("prometheus.log"), "wb")
        server = [prometheus, f"--config.file={path}", f"--storage.tsdb.path={place.path('tsdb')}", "--web.listen-address=127.0.0.1:0"]
        # Which port it took is in its log only, so one is chosen that is free now.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server[-1] = f"--web.listen-address=127.0.0.1:{port}"
        place.spawn(server, stdout=log, stderr=log)
        log.close()

        def ask(what, **parameters):
            url = f"http://127.0.0.1:{port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    return json.load(answer)["data"]
            except urllib.error.HTTPError as error:
                return {"error": error.read().decode()}
            except OSError:
                return None

        def scraped():
            # While it starts it answers with an error.
            targets = (ask("targets") or {}).get("activeTargets", [])
            return [t for t in targets if t["lastScrape"][:4] > "0001"]

        active = wait_until(scraped, 60, "a scrape")
        equal([(t["health"], t["lastError"]) for t in active], [("up", "")], "the cell as a target")
        for _ in range(5):
            work(cell)
            time.sleep(1)
        for where, query in queries():
            answer = wait_until(lambda: ask("query", query=query), 10, "an answer")
            check("result" in answer, f"{where}: {query}: {answer}")
            check(answer["result"], f"{where}: nothing for {query}")
            for one in answer["result"]:
                check(float(one["value"][1]) >= 0 or one["value"][1] == "NaN", f"{where}: {one}")
        ratio = ask("query", query="flashcell_fc_io_rq_r_total")["result"][0]["value"][1]
        equal(float(ratio) > 0, True, "hits are counted")
        rules = wait_until(
            lambda: (lambda all: all if all and all[0]["health"] == "ok" else None)(ask("rules")["groups"][0]["rules"]),
            30,
            "the rules are evaluated",
        )
        equal({rule["health"] for rule in rules}, {"ok"}, "rules")
        # What a rule speaks of is there, or is rightly not.
        names = {name for name in ask("label/__name__/values")}
        for rule in rules:
            for name in re.findall(r"flashcell_\w+", rule["query"]):
                check(name in names or name in MAY_BE_EMPTY, f"{rule['name']}: no metric {name}")
        down = [rule for rule in rules if rule["name"] == "FlashcellDown"][0]
        equal(down["state"], "inactive", "while the cell answers")
        cell.stop()
        wait_until(
            lambda: [r for r in ask("rules")["groups"][0]["rules"] if r["name"] == "FlashcellDown" and r["state"] == "pending"],
            60,
            "the rule of a cell that is gone",
        )
