"""`flashcell trust` to cells over ssh, CellCLI and dcli's cells over TLS, and an admin service that slow clients cannot take."""

import json
import os
import socket
import stat
import time

from fleet import Fleet
from harness import Place, binary, check, contains, equal, run, served, test


@test
def trust_of_a_group_of_cells_in_one_command():
    with Place("trust") as place:
        fleet = Fleet(place, count=2, griddisks=("data:32M",))
        own = place.path("own")
        environment = fleet.environment(FLASHCELL_TRUST=own)
        flashcell = [binary()]
        names = [word for name in fleet.names for word in (f"root@{name}:{fleet.cells[name].dir}",)]
        options = ["-s", f"-F {fleet.config}", "--name", "127.0.0.1"]
        done = run(flashcell + ["trust", *names, *options], env=environment)
        for name in fleet.names:
            contains(done.stderr, f"root@{name}: certificate installed", "talk")
            trust = os.path.join(fleet.cells[name].dir, "trust")
            equal(sorted(os.listdir(trust)), ["ca.pem", "cell.key", "cell.pem"], "files of a cell")
            equal(stat.S_IMODE(os.stat(trust).st_mode), 0o700, "mode of the directory")
            equal({stat.S_IMODE(os.stat(os.path.join(trust, f)).st_mode) for f in os.listdir(trust)}, {0o600}, "modes of files")
        files = ["ca-cert.pem", "ca.key", "ca.name", "ca.pem", "client-cert.pem", "client-key.pem", "client.key", "client.pem"]
        equal(sorted(os.listdir(own)), files, "files of the operator")
        for cell in fleet.cells.values():
            cell.stop()
            cell.edit(lambda text: text.replace("admin = [", 'admin = ["tcp:127.0.0.1:0", ', 1))
            # The ready line names both sockets; the harness takes the last.
            cell.start()
            tcp = [w for w in cell.ready_line.split() if w.startswith("admin=tcp:")][0].removeprefix("admin=tcp:")
            answer = run(flashcell + ["cellcli", "-c", tcp, "--json", "-e", "list cell"], env=environment).stdout
            equal(json.loads(answer)[0]["status"], "online", "over TLS")
        # A token for all of them, over ssh as well; a host that is not there is named, the others have it.
        gone = f"root@nosuch.invalid:{place.dir}"
        done = run(flashcell + ["trust", *names, gone, *options, "--token", "p", "--role", "monitor"], env=environment, ok=False)
        contains(done.stderr, "Unable to connect to cells: ['root@nosuch.invalid']", "who is not there")
        for name in fleet.names:
            contains(done.stderr, f"root@{name}: token installed", "talk")
            with open(os.path.join(fleet.cells[name].dir, "trust", "tokens")) as file:
                contains(file.read(), "monitor p ", "tokens")
        run(flashcell + ["trust", *names, *options, "--revoke", "p"], env=environment)
        for name in fleet.names:
            trust = os.path.join(fleet.cells[name].dir, "trust")
            with open(os.path.join(trust, "tokens")) as tokens, open(os.path.join(trust, "revoked")) as revoked:
                equal((tokens.read(), revoked.read()), ("", "p\n"), "after --revoke")
        done = run(flashcell + ["trust", f"root@{fleet.names[0]}:{place.dir}", *options], env=environment, ok=False)
        contains(done.stderr, "is not the directory of a cell", "a wrong directory")
        for cell in fleet.cells.values():
            cell.stop()


@test
def slow_clients_do_not_take_the_admin_service():
    """More connections that say nothing than the service takes at a time: they are cut off, and statements get through."""
    with served() as cell:
        silent = []
        for _ in range(100):
            client = socket.socket(socket.AF_UNIX)
            client.connect(cell.admin_socket)
            client.sendall(b"POST /v1/cellcli HTTP/1.1\r\n")
            silent.append(client)
        started = time.monotonic()
        contains(cell.cellcli("list griddisk").stdout, "data", "a statement beside them")
        check(time.monotonic() - started < 25, "within the time a head may take")
        # And one that does not read its answer takes no more than its place.
        deaf = socket.socket(socket.AF_UNIX)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(cell.admin_socket)
        body = json.dumps({"text": "list metriccurrent attributes all;" * 200, "form": "json"}).encode()
        deaf.sendall(b"POST /v1/cellcli HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        contains(cell.cellcli("list cell").stdout, "online", "a statement beside it")
        for client in silent + [deaf]:
            client.close()
        cell.stop()
