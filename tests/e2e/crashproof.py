"""PostgreSQL on an attached grid disk, killed with all that is below it, and the ledger of what it has acknowledged.

The devices of the cell forget what was not flushed (`forgetful = true`), so a FLUSH that does nothing loses commits. What pgbench was
told is committed stands in its own log, outside: transaction by transaction of each client. In the database each of them has left a
row with its number. After a round every acknowledged one must be there; of each client one more may be, whose answer was under way.

`pg_wal` is on the same grid disk (`with-data`), on one of its own in the same caching mode (`own`), or on a redo grid disk with the flash
log (`redo`).
"""

import contextlib
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

# What a round kills; or what an administrator changes in it under the load, before all of it is killed; or what becomes of flash while all
# is down: none of it is there, all of it is blank or from an old copy (in write-through), or one of the two is blank (in write-back); or a
# copy of the devices, made while the database writes, on which another database recovers.
KILLS = ("cell", "driver", "database", "all")
CHANGES = ("mode", "grow", "cache")
FLASH = ("flash-away", "flash-blank", "flash-old", "mirror")
KINDS = (*KILLS, *CHANGES, *FLASH, "copy")
WALS = ("with-data", "own", "redo")
FLASH_DEVICES = 2
WAL_MIB = 320
STAMPS_SECONDS = 1
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
        # A server that sees the first of its processes die starts others, which nobody here would know of.
        os.kill(session, signal.SIGSTOP)
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

    def sql(self, text, ok=True, user="bench"):
        return self.run("psql", "-h", self.sock, "-p", PORT, "-U", user, "-d", "postgres", "-AtX", "-c", text, ok=ok)

    def rows(self, text, **options):
        return [line.split("|") for line in self.sql(text, **options).stdout.splitlines()]

    def ledger(self):
        """{(round, client): (commits there, lowest number, highest number)}"""
        rows = self.rows("SELECT round, client, count(*), min(n), max(n) FROM ledger GROUP BY 1, 2")
        return {(int(row[0]), int(row[1])): tuple(map(int, row[2:])) for row in rows}

    def check_balances(self):
        (balances,) = self.rows(BALANCES)
        if len(set(balances)) != 1:
            raise Lost(f"{self.data}: balances differ: {balances}")


@contextlib.contextmanager
def frozen_copy(place, cell, names):
    """Freeze grid disks, copy what their disks hold, thaw them: where the copies are mounted, by name."""
    run([binary(), "freeze", *names, "--for", "60", "-c", cell.dir])
    images, mounts = {}, {}
    for name in names:
        (record,) = cell.json(f"list griddisk {name} attributes name, offset, size")
        images[name], mounts[name] = place.path(f"copy-{name}.img"), place.path(f"copy-{name}")
        with open(cell.device("disk"), "rb") as disk, open(images[name], "wb") as copy:
            disk.seek(record["offset"])
            for _ in range(record["size"] // MIB):
                copy.write(disk.read(MIB))
    check(all("frozenFor" in record for record in cell.json("list griddisk attributes all") if record["name"] in names), "frozen until it is copied")
    run([binary(), "thaw", *names, "-c", cell.dir])
    mounted = []
    try:
        for name in names:
            os.makedirs(mounts[name], exist_ok=True)
            run(["mount", "-o", "loop", images[name], mounts[name]])
            mounted.append(name)
        yield mounts
    finally:
        for name in mounted:
            run(["umount", mounts[name]])
        for image in images.values():
            os.unlink(image)


def database_on(place, mounts):
    """The database on copies of the grid disks of another."""
    other = Database(place, mounts["data"], sock="copy-sock")
    if "wal" in mounts:
        os.unlink(os.path.join(other.data, "pg_wal"))
        os.symlink(os.path.join(mounts["wal"], "wal"), os.path.join(other.data, "pg_wal"))
    return other


class Proof:
    """The whole of it: cell, attachment, database, ledger."""

    def __init__(self, place, mode, sabotage=None, clients=8, seconds=4, wal="with-data"):
        need_attach("setpriv", "fio")
        self.place, self.clients, self.seconds = place, clients, seconds
        self.wal = wal
        self.mounts = {"data": place.path("mnt")}
        griddisks = [f"data:{SIZE_MIB}M:data:{mode}"]
        if wal != "with-data":
            self.mounts["wal"] = place.path("mnt-wal")
            griddisks.append(f"wal:{WAL_MIB}M:redo" if wal == "redo" else f"wal:{WAL_MIB}M:data:{mode}")
        for mount in self.mounts.values():
            os.mkdir(mount)
        self.database = Database(place, self.mounts["data"])
        self.cell = place.cell(disks=("2G",), flash=("320M",) * FLASH_DEVICES, griddisks=griddisks)
        self.mode, self.size_mib = mode, SIZE_MIB
        self.cell.set_device("forgetful = true")
        self.cell.tune(stamps_every=f"{STAMPS_SECONDS}s")
        self.sabotage = sabotage
        self.host = Host(place)
        place.cleanups.append(self.end)
        self.script = place.file("script.sql", SCRIPT.encode())
        os.chmod(self.script, 0o644)
        self.logs = place.path("logs")
        os.mkdir(self.logs)
        os.chown(self.logs, self.database.user.pw_uid, self.database.user.pw_gid)
        self.round = self.replaced = 0
        self.acknowledged = 0
        self.expected = {}

    @property
    def cached(self):
        """The grid disks whose caching mode is that of the round."""
        return ["data", "wal"] if self.wal == "own" else ["data"]

    def attach(self, *more):
        for name, mount in self.mounts.items():
            self.host.attach(name, mount, "-c", self.cell.dir, *more)

    def detach(self, *more):
        for name in self.mounts:
            self.host.detach(name, *more)

    def set_mode(self, mode):
        self.mode = mode
        for name in self.cached:
            self.cell.cellcli(f"alter griddisk {name} cachingMode={mode}")

    def begin(self):
        self.cell.start()
        self.attach("--mkfs", "ext4")
        self.database.make(wal=os.path.join(self.mounts["wal"], "wal") if "wal" in self.mounts else None)
        self.database.start()
        bench = ("-h", self.database.sock, "-p", PORT, "-U", "bench")
        self.database.run("pgbench", *bench, "-i", "-q", "-s", SCALE, "postgres")
        self.database.sql("CREATE TABLE ledger (round int, client int, n int, PRIMARY KEY (round, client, n))")
        self.database.sql("CHECKPOINT")
        if self.sabotage:
            # From here on: what makes the cluster is whole.
            self.database.stop()
            self.detach()
            self.cell.stop()
            self.cell.sabotage(self.sabotage)
            self.cell.start()
            self.attach()
            self.database.start()

    def end(self):
        if self.database.server is not None and self.database.server.poll() is None:
            self.database.kill()
        self.host.end()

    def load(self, seconds):
        """Start pgbench; its log begins with `prefix`."""
        self.prefix = os.path.join(self.logs, f"round-{self.round}")
        command = self.database.command(
            "pgbench", "-h", self.database.sock, "-p", PORT, "-U", "bench", "-n", "-f", self.script, "-T", seconds,
            "-c", self.clients, "-j", 1, "-D", f"scale={SCALE}", "-D", "n=0", "-D", f"round={self.round}",
            "-l", f"--log-prefix={self.prefix}", "postgres",
        )  # fmt: skip
        return self.place.spawn(command, cwd="/", stdin=subprocess.DEVNULL, **QUIET)

    def kill(self, kind):
        drivers = self.host.rows()
        if kind in ("database", "all"):
            if kind == "all":
                # At one moment, as a power cut: nobody writes again what the cell forgets.
                pids = [driver[name] for driver in drivers for name in ("keeper_pid", "driver_pid")]
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                self.cell.kill()
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
            self.database.kill()
        elif kind == "driver":
            for driver in drivers:
                os.kill(driver["driver_pid"], signal.SIGKILL)
        else:
            self.cell.kill()
            time.sleep(0.2)
            self.cell.start()

    def change(self, kind, rng):
        """What an administrator does under the load."""
        if kind == "mode":
            self.set_mode(rng.choice([mode for mode in MODES if mode != self.mode]))
        elif kind == "cache":
            self.cell.cellcli("drop flashcache")
            time.sleep(self.seconds * 0.1)
            self.cell.cellcli("create flashcache all")
        elif self.size_mib + GROWTH_MIB <= SIZE_MIB_MAX:
            self.size_mib += GROWTH_MIB
            self.cell.cellcli(f"alter griddisk data size={self.size_mib}M")
            (device,) = (row["device"] for row in self.host.rows() if row["griddisk"] == "data")
            wait_until(lambda: block_bytes(device) == self.size_mib * MIB, 30, "the device grows")

    def recover_a_copy(self):
        """Copy the frozen disks while the database writes on, and have another database recover on the copy."""
        acknowledged = self.acknowledged_so_far()
        with frozen_copy(self.place, self.cell, list(self.mounts)) as mounts:
            other = database_on(self.place, mounts)
            try:
                other.start()
                self.verify_copy(other, acknowledged)
                other.stop()
            finally:
                if other.server is not None and other.server.poll() is None:
                    other.kill()

    def verify_copy(self, database, acknowledged):
        """The copy is of one moment, no earlier than the freeze: no gaps, and nothing that was acknowledged before is missing."""
        found = database.ledger()
        for (number, client), (count, low, high) in found.items():
            if (low, high) != (1, count):
                raise Lost(f"copy: round {number}, client {client}: {count} commits there, {low} to {high}")
        for key, before in {**self.expected, **acknowledged}.items():
            count = found.get(key, (0, 0, 0))[0]
            if count < before:
                raise Lost(f"copy: round {key[0]}, client {key[1]}: {before} commits acknowledged before the freeze, {count} there")
        database.check_balances()

    def lose_flash(self, kind, rng):
        """What becomes of flash while nothing runs; afterwards all of it is served and attached again, and the database answers."""
        paths = [self.cell.device("flash", index) for index in range(FLASH_DEVICES)]
        if kind == "flash-old":
            for path, old in zip(paths, self.old_flash):
                shutil.move(old, path)
        elif kind == "flash-away":
            for path in paths:
                os.rename(path, path + ".away")
        else:
            paths = [rng.choice(paths)] if kind == "mirror" else paths
            for path in paths:
                size = os.path.getsize(path)
                os.truncate(path, 0)
                os.truncate(path, size)
        self.restart()
        if kind == "flash-away":
            # What comes back is older than the disk.
            self.verify()
            self.kill("all")
            for path in paths:
                os.rename(path + ".away", path)
            self.restart()
        elif kind != "flash-old":
            self.replace_flash(paths)

    def replace_flash(self, paths):
        """Make cell disks of blank flash, in the place of those that were on it."""
        gone = [row["name"] for row in self.cell.json("list celldisk attributes name, status") if row["status"] != "normal"]
        equal(len(gone), len(paths), f"cell disks that are not there, of {gone}")
        for path in paths:
            self.replaced += 1
            self.cell.cellcli(f"create celldisk FR_{self.replaced} lun='{path}'")
        self.cell.cellcli("alter flashcache all")
        for name in gone:
            self.cell.cellcli(f"drop celldisk {name} force")

    def restart(self):
        """After all was killed."""
        self.detach("--force")
        self.cell.start()
        self.attach()
        self.database.start()

    def run_round(self, kind, rng):
        """One round; how many commits were acknowledged in it."""
        self.round += 1
        if kind in FLASH:
            # With one copy of what is dirty, or none, the flash is as precious as a disk.
            self.set_mode("write-back" if kind == "mirror" else "write-through")
        if kind == "flash-old":
            self.old_flash = [shutil.copy(self.cell.device("flash", n), self.place.path(f"old-{n}.img")) for n in range(FLASH_DEVICES)]
        # Flash of a moment before the last renewal of its stamps is found out.
        found_out = 2 * STAMPS_SECONDS if kind == "flash-old" else 0
        bench = self.load(self.seconds + found_out)
        time.sleep(self.seconds * (0.3 + 0.4 * rng.random()) + found_out)
        if kind in CHANGES:
            self.change(kind, rng)
            time.sleep(self.seconds * 0.3 * rng.random())
        if kind == "copy":
            self.set_mode(rng.choice(MODES))
            self.recover_a_copy()
        else:
            self.kill("all" if kind in (*CHANGES, *FLASH) else kind)
        goes_on = kind in ("cell", "driver", "copy")
        try:
            code = bench.wait(timeout=self.seconds + 120)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"pgbench hangs after {kind}") from error
        if goes_on and code != 0 and not self.sabotage:
            raise Failure(f"the database saw an error after {kind}: {self.database.last_log()}")
        if self.sabotage and self.database.server.poll() is not None and goes_on:
            raise Lost(f"the database ended after {kind}: {self.database.last_log()[-300:]}")
        found = self.account()
        if kind in FLASH:
            self.lose_flash(kind, rng)
        elif kind == "database":
            self.database.start()
        elif not goes_on:
            self.restart()
        self.verify()
        return found

    def acknowledged_so_far(self):
        """What pgbench's log says of this round: {(round, client): transactions}."""
        counts = {}
        for path in glob.glob(self.prefix + ".*"):
            with open(path) as file:
                for line in file:
                    fields = line.split()
                    # The last line may be there in part.
                    if len(fields) >= 6 and line.endswith("\n"):
                        key = self.round, int(fields[0])
                        counts[key] = counts.get(key, 0) + 1
        return counts

    def account(self):
        """The acknowledged transactions of this round."""
        counts = self.acknowledged_so_far()
        for client in range(self.clients):
            self.expected[self.round, client] = counts.get((self.round, client), 0)
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
        self.detach()
        for name in self.mounts:
            device = self.host.attach(name, "-c", self.cell.dir).stdout.strip()
            run(["e2fsck", "-fn", device])
            self.host.detach(name)
        self.cell.stop()


def kinds_with(wal):
    """What may be done where `pg_wal` lies so: what only the flash log has is lost with it."""
    return [kind for kind in KINDS if wal != "redo" or kind not in FLASH]


def proof(rounds, seed, mode="write-back", sabotage=None, kinds=None, seconds=4, wal=None, say=lambda _: None):
    """Rounds of it; the number of acknowledged commits. `kinds` names what is done, in turn; else it is drawn, as is where `pg_wal` lies."""
    rng = random.Random(seed)
    wal = wal or rng.choice(WALS)
    with Place("proof") as place:
        whole = Proof(place, mode, sabotage, seconds=seconds, wal=wal)
        say(f"pg_wal: {wal}")
        whole.begin()
        for number in range(rounds):
            kind = kinds[number % len(kinds)] if kinds else rng.choice(kinds_with(wal))
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
