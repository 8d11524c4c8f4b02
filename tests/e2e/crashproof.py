"""PostgreSQL on an attached grid disk, killed with all that is below it, and the ledger of what it has acknowledged.

The devices of the cell forget what was not flushed (`forgetful = true`), so a FLUSH that does nothing loses commits. What pgbench was
told is committed stands in its own log, outside: transaction by transaction of each client. In the database each of them has left a
row with its number. After a round every acknowledged one must be there; of each client one more may be, whose answer was under way.
"""

import glob
import os
import pwd
import random
import shutil
import signal
import subprocess
import time

from attached import Host, need_attach
from harness import MIB, QUIET, Failure, Place, Skip, binary, check, equal, run, wait_until

# What a round kills; or what an administrator changes in it under the load, before all of it is killed; or a copy of the devices,
# made while the database writes, on which another database recovers.
KILLS = ("cell", "driver", "database", "all")
CHANGES = ("mode", "grow", "cache")
KINDS = (*KILLS, *CHANGES, "copy")
MODES = ("write-through", "write-back", "write-back-ordered")
# The grid disk grows by so much in a round, up to the room its disk has.
GROWTH_MIB = 32
SIZE_MIB, SIZE_MIB_MAX = 640, 1280
SCRIPT = """\\set n :n + 1
\\set aid random(1, 100000 * :scale)
\\set bid random(1, :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
INSERT INTO ledger (round, client, n) VALUES (:round, :client_id, :n);
COMMIT;
"""
BALANCES = """SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches),
    (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)"""
SCALE = 2
PORT = 5499


def block_bytes(device):
    with open(f"/sys/class/block/{os.path.basename(device)}/size") as file:
        return int(file.read()) * 512


class Lost(Failure):
    """An acknowledged commit is not there, or the database is not whole."""


def programs():
    """The directory of PostgreSQL's server programs."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    path = found[-1] if found else shutil.which("initdb")
    if path is None or shutil.which("pgbench") is None:
        raise Skip("not installed: postgresql (scripts/install-test-clients)")
    return os.path.dirname(path)


def account():
    """Whom the database runs as: it refuses root."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Skip("neither a user postgres nor nobody")


class Database:
    """One cluster, below a directory that is mounted and unmounted."""

    def __init__(self, place, mount, sock="sock"):
        self.place, self.bin, self.user = place, programs(), account()
        os.chmod(place.dir, 0o755)
        self.data = os.path.join(mount, "pg")
        self.sock, self.port = place.path(sock), PORT
        self.log_path = place.path(f"postgres-{sock}.log")
        os.makedirs(self.sock, exist_ok=True)
        os.chown(self.sock, self.user.pw_uid, self.user.pw_gid)
        self.server = None

    def command(self, program, *arguments):
        path = os.path.join(self.bin, program)
        path = path if os.path.exists(path) else shutil.which(program)
        who = ["setpriv", f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--clear-groups"]
        return [*who, path, *map(str, arguments)]

    def run(self, program, *arguments, **options):
        return run(self.command(program, *arguments), cwd="/", **options)

    def make(self, wal=None, settings=None):
        for path in filter(None, (self.data, wal)):
            os.mkdir(path, 0o700)
            os.chown(path, self.user.pw_uid, self.user.pw_gid)
        more = ("-X", wal) if wal else ()
        self.run("initdb", "-k", "-U", "bench", "-A", "trust", "--no-instructions", "-D", self.data, *more)
        settings = {
            "listen_addresses": "''",
            "port": PORT,
            "unix_socket_directories": f"'{self.sock}'",
            "shared_buffers": "'32MB'",
            "max_wal_size": "'128MB'",
            "checkpoint_timeout": "'30s'",
            "full_page_writes": "on",
            "fsync": "on",
            **(settings or {}),
        }
        with open(os.path.join(self.data, "postgresql.conf"), "a") as file:
            file.writelines(f"{key} = {value}\n" for key, value in settings.items())
        # The devices forget what was not flushed: this is no part of the proof.
        run(["sync", "-f", self.data])

    def start(self, before=None):
        """`before` gets the process's id, before it has started others."""
        # What a killed one has left would hold up the next.
        for name in (os.path.join(self.data, "postmaster.pid"), *glob.glob(os.path.join(self.sock, ".s.PGSQL*"))):
            if os.path.lexists(name):
                os.unlink(name)
        with open(self.log_path, "ab") as log:
            command = self.command("postgres", "-D", self.data, "-c", f"unix_socket_directories={self.sock}")
            self.server = self.place.spawn(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        if before:
            before(self.server.pid)

        def answers():
            check(self.server.poll() is None, f"postgres ended: {self.last_log()}")
            return self.sql("SELECT 1", ok=None).returncode == 0

        wait_until(answers, 120, "the database answers")

    def last_log(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()[-2000:]

    def kill(self):
        """kill -9 of the server and its processes, which are those of its session."""
        session = self.server.pid
        children = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/stat") as file:
                        fields = file.read().rsplit(")", 1)[1].split()
                except OSError:
                    continue
                if int(fields[3]) == session or int(fields[1]) == session:
                    children.append(int(entry))
        for pid in {session, *children}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.server.wait(timeout=60)
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children), 60, "its processes are gone")

    def stop(self):
        self.server.send_signal(signal.SIGINT)
        equal(self.server.wait(timeout=120), 0, "exit code of postgres")

    def sql(self, text, ok=True):
        return self.run("psql", "-h", self.sock, "-p", PORT, "-U", "bench", "-d", "postgres", "-AtX", "-c", text, ok=ok)

    def rows(self, text):
        return [line.split("|") for line in self.sql(text).stdout.splitlines()]

    def ledger(self):
        """{(round, client): (commits there, lowest number, highest number)}"""
        rows = self.rows("SELECT round, client, count(*), min(n), max(n) FROM ledger GROUP BY 1, 2")
        return {(int(row[0]), int(row[1])): tuple(map(int, row[2:])) for row in rows}

    def check_balances(self):
        (balances,) = self.rows(BALANCES)
        if len(set(balances)) != 1:
            raise Lost(f"{self.data}: balances differ: {balances}")


class Proof:
    """The whole of it: cell, attachment, database, ledger."""

    def __init__(self, place, mode, sabotage=None, clients=8, seconds=4):
        need_attach("setpriv", "fio")
        self.place, self.clients, self.seconds = place, clients, seconds
        self.mount = place.path("mnt")
        os.mkdir(self.mount)
        self.database = Database(place, self.mount)
        self.cell = place.cell(disks=("1500M",), flash=("256M",), griddisks=(f"data:{SIZE_MIB}M:data:{mode}",))
        self.mode, self.size_mib = mode, SIZE_MIB
        self.cell.set_device("forgetful = true")
        self.sabotage = sabotage
        self.host = Host(place)
        place.cleanups.append(self.end)
        self.script = place.file("script.sql", SCRIPT.encode())
        os.chmod(self.script, 0o644)
        self.logs = place.path("logs")
        os.mkdir(self.logs)
        os.chown(self.logs, self.database.user.pw_uid, self.database.user.pw_gid)
        self.round = 0
        self.acknowledged = 0
        self.expected = {}

    def attach(self, *more):
        return self.host.attach("data", self.mount, "-c", self.cell.dir, *more)

    def begin(self):
        self.cell.start()
        self.attach("--mkfs", "ext4")
        self.database.make()
        self.database.start()
        bench = ("-h", self.database.sock, "-p", PORT, "-U", "bench")
        self.database.run("pgbench", *bench, "-i", "-q", "-s", SCALE, "postgres")
        self.database.sql("CREATE TABLE ledger (round int, client int, n int, PRIMARY KEY (round, client, n))")
        self.database.sql("CHECKPOINT")
        if self.sabotage:
            # From here on: what makes the cluster is whole.
            self.database.stop()
            self.host.detach("data")
            self.cell.stop()
            self.cell.sabotage(self.sabotage)
            self.cell.start()
            self.attach()
            self.database.start()

    def end(self):
        if self.database.server is not None and self.database.server.poll() is None:
            self.database.kill()
        self.host.end()

    def load(self):
        prefix = os.path.join(self.logs, f"round-{self.round}")
        command = self.database.command(
            "pgbench", "-h", self.database.sock, "-p", PORT, "-U", "bench", "-n", "-f", self.script, "-T", self.seconds,
            "-c", self.clients, "-j", 1, "-D", f"scale={SCALE}", "-D", "n=0", "-D", f"round={self.round}",
            "-l", f"--log-prefix={prefix}", "postgres",
        )  # fmt: skip
        return prefix, self.place.spawn(command, cwd="/", stdin=subprocess.DEVNULL, **QUIET)

    def kill(self, kind):
        driver = self.host.row()
        if kind in ("database", "all"):
            if kind == "all":
                # At one moment, as a power cut: nobody writes again what the cell forgets.
                for name in ("keeper_pid", "driver_pid"):
                    os.kill(driver[name], signal.SIGSTOP)
                self.cell.kill()
                for name in ("keeper_pid", "driver_pid"):
                    os.kill(driver[name], signal.SIGKILL)
            self.database.kill()
        elif kind == "driver":
            os.kill(driver["driver_pid"], signal.SIGKILL)
        else:
            self.cell.kill()
            time.sleep(0.2)
            self.cell.start()

    def change(self, kind, rng):
        """What an administrator does under the load."""
        if kind == "mode":
            self.mode = rng.choice([mode for mode in MODES if mode != self.mode])
            self.cell.cellcli(f"alter griddisk data cachingMode={self.mode}")
        elif kind == "cache":
            self.cell.cellcli("drop flashcache")
            time.sleep(self.seconds * 0.1)
            self.cell.cellcli("create flashcache all")
        elif self.size_mib + GROWTH_MIB <= SIZE_MIB_MAX:
            self.size_mib += GROWTH_MIB
            self.cell.cellcli(f"alter griddisk data size={self.size_mib}M")
            device = self.host.row()["device"]
            wait_until(lambda: block_bytes(device) == self.size_mib * MIB, 30, "the device grows")

    def recover_a_copy(self):
        """Copy the frozen disk while the database writes on, and have another database recover on the copy."""
        if self.mode != "write-back-ordered":
            self.mode = "write-back-ordered"
            self.cell.cellcli(f"alter griddisk data cachingMode={self.mode}")
        (record,) = self.cell.json("list griddisk data attributes name, offset")
        run([binary(), "freeze", "data", "--for", "60", "-c", self.cell.dir])
        image, mount = self.place.path("copy.img"), self.place.path("copy")
        with open(self.cell.device("disk"), "rb") as disk, open(image, "wb") as copy:
            disk.seek(record["offset"])
            for _ in range(self.size_mib):
                copy.write(disk.read(MIB))
        run([binary(), "thaw", "data", "-c", self.cell.dir])
        os.makedirs(mount, exist_ok=True)
        run(["mount", "-o", "loop", image, mount])
        other = Database(self.place, mount, sock="copy-sock")
        try:
            other.start()
            self.verify_copy(other)
            other.stop()
        finally:
            if other.server is not None and other.server.poll() is None:
                other.kill()
            run(["umount", mount])
            os.unlink(image)

    def verify_copy(self, database):
        """The copy is of one moment: what is in it has no gaps, and of rounds that have ended nothing is missing."""
        for (number, client), (count, low, high) in database.ledger().items():
            if (low, high) != (1, count):
                raise Lost(f"copy: round {number}, client {client}: {count} commits there, {low} to {high}")
        database.check_balances()

    def run_round(self, kind, rng):
        """One round; how many commits were acknowledged in it."""
        self.round += 1
        prefix, bench = self.load()
        time.sleep(self.seconds * (0.3 + 0.4 * rng.random()))
        if kind in CHANGES:
            self.change(kind, rng)
            time.sleep(self.seconds * 0.3 * rng.random())
            kind = "all"
        if kind == "copy":
            self.recover_a_copy()
        else:
            self.kill(kind)
        goes_on = kind in ("cell", "driver", "copy")
        try:
            code = bench.wait(timeout=self.seconds + 120)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"pgbench hangs after {kind}") from error
        if goes_on and code != 0 and not self.sabotage:
            raise Failure(f"the database saw an error after {kind}: {self.database.last_log()}")
        if self.sabotage and self.database.server.poll() is not None and goes_on:
            raise Lost(f"the database ended after {kind}: {self.database.last_log()[-300:]}")
        if kind == "all":
            self.host.detach("data", "--force")
            self.cell.start()
            self.attach()
        if not goes_on:
            self.database.start()
        found = self.account(prefix)
        self.verify()
        return found

    def account(self, prefix):
        """Read pgbench's log: the acknowledged transactions of each client of this round."""
        counts = {}
        for path in glob.glob(prefix + ".*"):
            with open(path) as file:
                for line in file:
                    fields = line.split()
                    if len(fields) >= 6:
                        counts[int(fields[0])] = counts.get(int(fields[0]), 0) + 1
        for client in range(self.clients):
            self.expected[self.round, client] = counts.get(client, 0)
        total = sum(counts.values())
        self.acknowledged += total
        return total

    def verify(self):
        try:
            found = self.database.ledger()
            for key, acknowledged in self.expected.items():
                count, low, high = found.pop(key, (0, 1, 0))
                if count < acknowledged or low != 1 or high != count:
                    raise Lost(f"round {key[0]}, client {key[1]}: {acknowledged} commits acknowledged, {count} there, {low} to {high}")
                if count > acknowledged + 1:
                    raise Lost(f"round {key[0]}, client {key[1]}: {acknowledged} commits acknowledged, {count} there")
                # Final from here on.
                self.expected[key] = count
            if found:
                raise Lost(f"rows of nobody: {found}")
            self.database.check_balances()
            if os.path.exists(os.path.join(self.database.bin, "pg_amcheck")):
                bench = ("-h", self.database.sock, "-p", PORT, "-U", "bench", "-d", "postgres")
                self.database.run("pg_amcheck", *bench, "--install-missing", "-j", 1, "-t", "pgbench*", "-t", "ledger")
        except Lost:
            raise
        except Failure as failure:
            raise Lost(f"the database is not whole: {failure}") from failure

    def finish(self):
        """Every checksum, and the file system."""
        self.database.stop()
        self.database.run("pg_checksums", "--check", "-D", self.database.data)
        self.host.detach("data")
        device = self.host.attach("data", "-c", self.cell.dir).stdout.strip()
        run(["e2fsck", "-fn", device])
        self.host.detach("data")
        self.cell.stop()


def proof(rounds, seed, mode="write-back", sabotage=None, kinds=None, seconds=4, say=lambda _: None):
    """Rounds of it; the number of acknowledged commits. `kinds` names what is killed, in turn; else it is drawn."""
    rng = random.Random(seed)
    with Place("proof") as place:
        whole = Proof(place, mode, sabotage, seconds=seconds)
        whole.begin()
        for number in range(rounds):
            kind = kinds[number % len(kinds)] if kinds else rng.choice(KINDS)
            try:
                found = whole.run_round(kind, rng)
            except Lost:
                raise
            except Failure as failure:
                if sabotage:
                    raise Lost(f"round {number + 1}, {kind}: {failure}") from failure
                raise
            say(f"round {number + 1}: {kind} ({whole.mode}): {found} commits acknowledged, all there")
        if not sabotage:
            whole.finish()
        return whole.acknowledged
