"""An attached grid disk while memory is short: what its driver and its cell need must never wait for pages that only they can write out."""

import os
import subprocess
import threading
import time

import pgload
from attached import Host, need_attach
from harness import MIB, Place, Skip, check, equal, measured, run, timing_alone

# Ten minutes under --soak.
SECONDS = 600 if os.environ.get("E2E_SOAK") else 20
# Of the writers and their page cache; with cell, driver and keeper, which have some 350 MiB locked, where the kernel lets those skip their
# own I/O (CAP_SYS_RESOURCE). Without that they hang in such a limit, and attach says so.
WRITERS_BYTES = 64 * MIB
ALL_BYTES = WRITERS_BYTES + 384 * MIB
STALL_SECONDS_MAX = 5
LOOK_EVERY_SECONDS = 0.05


def may_skip_own_io():
    """Whether CAP_SYS_RESOURCE is effective."""
    with open("/proc/self/status") as file:
        (mask,) = (line.split()[1] for line in file if line.startswith("CapEff:"))
    return bool(int(mask, 16) >> 24 & 1)


class Stalls(threading.Thread):
    """The longest time in which a block device had requests outstanding and completed none."""

    def __init__(self, device):
        super().__init__(daemon=True)
        self.path = f"/sys/block/{os.path.basename(device)}/"
        self.longest, self.completed, self.ended = 0.0, 0, threading.Event()

    def look(self):
        """Completed reads, writes, discards and flushes; those in flight."""
        with open(self.path + "stat") as file:
            fields = list(map(int, file.read().split()))
        done = fields[0] + fields[4] + sum(fields[at] for at in (11, 15) if at < len(fields))
        return done, fields[8]

    def run(self):
        first, _ = self.look()
        before, since = first, time.monotonic()
        while not self.ended.wait(LOOK_EVERY_SECONDS):
            done, under_way = self.look()
            now = time.monotonic()
            if done != before or under_way == 0:
                before, since = done, now
            self.longest = max(self.longest, now - since)
            self.completed = done - first

    def end(self):
        self.ended.set()
        self.join()


@timing_alone
def no_request_stands_still_while_memory_is_short():
    need_attach("fio")
    is_together = may_skip_own_io()
    memory = pgload.Memory(ALL_BYTES if is_together else WRITERS_BYTES)
    if memory.dir is None:
        raise Skip("no memory cgroup can be made")
    # What is started so is in it from its first page on.
    inside = ["sh", "-c", f'echo $$ >{memory.dir}/cgroup.procs && exec "$@"', "sh"]
    served = inside if is_together else []
    with Place("memory") as place:
        place.cleanups.append(memory.end)
        cell = place.cell(disks=("1500M",), flash=("512M",), griddisks=("data:1G:data:write-back",), model="fixed:4ms:8", prefix=served)
        cell.start()
        host, mount = Host(place), place.path("mnt")
        os.mkdir(mount)
        place.cleanups.insert(0, host.end)
        run([*served, *host.command("attach", "data", mount, "-c", cell.dir, "--mkfs", "ext4", "-o", "noatime")], env=host.env)
        stalls = Stalls(host.row()["device"])
        stalls.start()
        # More than the memory and the flash, through the page cache, from two writers.
        load = ["fio", "--name=w", f"--directory={mount}", "--rw=randwrite", "--bs=16k", "--size=380m", "--numjobs=2", "--fallocate=none"]
        load += ["--ioengine=psync", "--time_based", f"--runtime={SECONDS}", "--fsync=4096", "--output-format=terse"]
        writers = subprocess.Popen([*inside, *load], cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            said = writers.communicate(timeout=SECONDS + 60)[1]
        except subprocess.TimeoutExpired:
            under_way = stalls.look()[1]
            # They cannot even be killed before there is memory.
            memory.lift()
            writers.kill()
            writers.communicate()
            equal(under_way, 0, "requests outstanding at the device while the writers stand still")
            # Seen with ext4 on Linux 6.18 and cgroup v1: a writer in reclaim waits for pages whose end of I/O waits for that writer.
            raise Skip("the writers wait for one another in the kernel, and nothing is outstanding at the device") from None
        finally:
            stalls.end()
        equal(writers.returncode, 0, f"fio's exit code: {said[-500:]}")
        who = "cell, driver and writers" if is_together else "the writers"
        print(f"# a limit for {who}", flush=True)
        print(f"# {stalls.completed} requests, at most {stalls.longest:.2f} s without one; memory failed to grow {memory.failures()} times", flush=True)
        check(memory.failures() > 0, "the limit of memory was never reached: the test shows nothing")
        measured(stalls.completed > 20 * SECONDS, f"{stalls.completed} requests in {SECONDS} s")
        measured(stalls.longest < STALL_SECONDS_MAX, f"for {stalls.longest:.1f} s requests were outstanding and none was completed")
        cell.check_alive()
        equal(host.row()["drivers_started"], 1, "drivers started")
        host.detach("data", seconds=180)
        cell.stop()
