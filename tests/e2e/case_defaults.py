"""What a cell does for somebody who states nothing: the flash log, what lies on flash, flash that is replaced, and refusals with a way out."""

import os
import re

from case_members import add_flash, flash_names, members
from harness import MIB, Place, binary, check, contains, equal, run, served, test


@test
def init_with_redo_and_flash_makes_the_flash_log_beside_the_cache():
    with Place("defaults") as place:
        directory = place.path("cell")
        command = [binary(), "init", directory, "--sparse", "--durable", "yes", "--disk", "256M", "--flash", "160M", "--griddisk", "data:64M"]
        refused = run([*command, "--griddisk", "redo:32M:redo:write-back"], ok=False).stderr
        contains(refused, "grid disk redo: redo in write-back would bypass the flash log\nhint: leave the mode away", "init")
        check(not os.path.exists(directory), "what is refused leaves nothing")
        out = run([*command, "--griddisk", "redo:32M:redo"]).stderr
        contains(out, "flash log of 18M on FD_00_cell, since a grid disk carries redo\nflash cache on all flash\n", "what init says")
        cell = place.cell(init=False).start()
        equal(cell.json("list flashlog attributes status")[0]["status"], "normal", "the flash log")
        cache = cell.json("list flashcache attributes size")[0]["size"]
        check(cache > 130 * MIB, f"the flash cache has {cache} bytes beside the flash log")
        equal(cell.json("list celldisk FD_00_cell attributes freeSpace")[0]["freeSpace"] // (4 * MIB), 0, "free flash")
        # Without redo there is nothing to log.
        cell.stop()
        out = run([*command[:2], place.path("other"), *command[3:]]).stderr
        check("flash log" not in out, out)


@test
def redo_in_write_back_is_refused_and_one_statement_changes_both():
    with served(griddisks=("data:64M", "redo:32M:redo")) as cell:
        for statement in (
            "create griddisk more celldisk=CD_00_cell, size=16M, purpose=redo, cachingMode=write-back",
            "alter griddisk redo cachingMode=write-back",
            "alter griddisk redo cachingMode=write-back-ordered",
            "alter griddisk data cachingMode=write-back, purpose=redo",
        ):
            error = cell.cellcli(statement, ok=False).stderr
            contains(error, "is of purpose redo, and write-back bypasses the flash log", statement)
            contains(error, "hint: cachingMode=write-through or none", statement)
        equal(cell.json("list griddisk data attributes purpose")[0]["purpose"], "data", "what is refused changes nothing of it")
        for name, purpose, mode in (("redo", "data", "write-back"), ("redo", "redo", "none"), ("data", "redo", "write-through")):
            cell.cellcli(f"alter griddisk {name} cachingMode={mode}, purpose={purpose}")
            row = cell.json(f"list griddisk {name} attributes purpose, cachingMode")[0]
            equal((row["purpose"], row["cachingMode"]), (purpose, mode), f"{name} after the change")
        # All data goes into write-back, redo stays.
        cell.cellcli("alter cell flashCacheMode=WriteBack")
        cell.cellcli("create griddisk more celldisk=CD_00_cell, size=16M, purpose=redo")
        # A log is not cached unless somebody asks for it.
        modes = {row["name"]: row["cachingMode"] for row in cell.json("list griddisk attributes name, cachingMode")}
        equal(modes, {"redo": "none", "more": "none", "data": "write-through"}, "modes of redo")
        cell.stop()


@test
def a_flash_log_without_room_says_who_has_it_and_the_command_that_makes_room():
    with served(griddisks=("redo:32M:redo:none",), flash=("96M",)) as cell:
        cell.cellcli("drop flashlog; drop flashcache; create flashcache all")
        error = cell.cellcli("create flashlog all", ok=False).stderr
        found = re.search(r"the flash log needs 11M on cell disk FD_00_cell, which has 0M free: the flash cache has \d+M", error)
        check(found, error)
        command = re.search(r"hint: (ALTER FLASHCACHE ALL size=\d+M) \(it begins empty\), then CREATE FLASHLOG again", error)
        check(command, error)
        cell.cellcli(command.group(1))
        cell.cellcli("create flashlog all")
        equal(cell.json("list flashlog attributes status")[0]["status"], "normal", "the flash log")
        cell.stop()


@test
def larger_flash_in_the_place_of_the_old_is_used_whole():
    with served(griddisks=("data:64M:data:write-back", "redo:16M:redo"), flash=("96M",)) as cell:
        (old,) = flash_names(cell)
        size = lambda what: cell.json(f"list {what} attributes size")[0]["size"]
        before = size("flashcache")
        add_flash(cell, "flash-new.img", 320 * MIB)
        cell.cellcli("create celldisk FD_new lun='flash-new.img'")
        cell.cellcli("alter flashcache celldisk=FD_new")
        equal(members(cell), ["FD_new"], "members after the replacement")
        check(size("flashcache") >= 3 * before, f"a cache of {before} became one of {size('flashcache')}")
        # The flash log finds its place there, too.
        cell.cellcli(f"drop flashlog; create flashlog celldisk=FD_new, size={size('flashlog')}; drop celldisk {old}")
        cell.kill()
        cell.start()
        equal(members(cell), ["FD_new"], "members after a crash")
        check(size("flashcache") >= 3 * before, "the size after a crash")
        cell.stop()
