"""Where processor time goes while something is measured: database, its client, cell, attach driver, threads of the kernel, others.

From /proc alone. Seconds that have passed on processors, as the kernel accounts them: a hundredth of a second is the unit, and interrupts
count for whom they interrupt.
"""

import os
import resource

TICKS = os.sysconf("SC_CLK_TCK")
# What a load of a database is split into; `rest` is of nobody known: other programs of this machine.
PARTS = ("postgres user", "postgres kernel", "pgbench", "cell user", "cell kernel", "driver user", "driver kernel", "kernel threads", "idle sides", "rest")
# The parent of all threads of the kernel.
KTHREADD = 2


def stat(pid):
    """(parent, user, system, user of children that have ended, system of those) of a process; None: it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return (int(fields[1]), *(int(fields[at]) / TICKS for at in range(11, 15)))


def processes():
    found = ((int(entry), stat(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return {pid: of for pid, of in found if of is not None}


def busy():
    """Of all processors, since the machine began."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS


class Snapshot:
    """One moment. `server` is the process of PostgreSQL, `cell` and `drivers` those below it, `idle` those of sides that nobody asks now."""

    def __init__(self, server, cell, drivers, idle):
        found = processes()
        parts = dict.fromkeys(PARTS, 0.0)
        # Its processes, and those of them that have ended, which it has waited for.
        own = [of for pid, of in found.items() if pid == server or of[0] == server]
        parts["postgres user"] = sum(of[1] for of in own) + found[server][3]
        parts["postgres kernel"] = sum(of[2] for of in own) + found[server][4]
        for name, pids in (("cell", cell), ("driver", drivers)):
            own = [found[pid] for pid in pids if pid in found]
            parts[name + " user"], parts[name + " kernel"] = sum(of[1] for of in own), sum(of[2] for of in own)
        parts["idle sides"] = sum(sum(found[pid][1:3]) for pid in idle if pid in found)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        parts["pgbench"] = ended.ru_utime + ended.ru_stime
        self.parts, self.busy = parts, busy()
        self.threads = {pid: sum(of[1:3]) for pid, of in found.items() if of[0] == KTHREADD}

    def since(self, before):
        """Seconds of each part between two moments."""
        spent = {name: self.parts[name] - before.parts[name] for name in PARTS}
        spent["kernel threads"] = sum(now - before.threads.get(pid, 0.0) for pid, now in self.threads.items())
        spent["rest"] = max(0.0, self.busy - before.busy - sum(spent[name] for name in PARTS if name != "rest"))
        return spent
