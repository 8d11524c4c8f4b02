"""docs/cellcli.md promises nothing that a cell refuses: its statements are made from the page, one for each option, operation and flag, and
given to a running cell. Some fail, as there is no such object or state; none for want of being built, and none by the grammar."""

import http.client
import json
import os
import re
import socket

from harness import ROOT, check, equal, served, test

PAGE = os.path.join(ROOT, "docs", "cellcli.md")
# What is built leaves the list: what stands here must be refused.
NOT_YET = set()
NOT_BUILT = "CELL-09010"
OF_GRAMMAR = ("CELL-01504", "CELL-09001", "CELL-09002")
# What ends the cell, or takes minutes: tests of their own.
ELSEWHERE = re.compile(r"SHUTDOWN|RESTART|CALIBRATE")
VALUES = {"name": "X", "text": "x", "number": "1", "size": "16M", "list": "x", "directives": "((name=X,share=1))"}


class Page:
    """Statements of the page by object type: lines of syntax, and values that options take."""

    def __init__(self):
        self.syntax, self.values = [], {}
        with open(PAGE) as file:
            text = file.read()
        for part in re.split(r"(?m)^### ", text)[1:]:
            self.syntax += re.findall(r"(?m)^    ((?:LIST|DESCRIBE|CREATE|ALTER|DROP) .*)$", part)
            head = ""
            for line in part.splitlines():
                if found := re.match(r"`((?:CREATE|ALTER|DROP) [^`]*)`", line):
                    head = found.group(1)
                    self.values[head] = []
                elif found := re.match(r"- `(\w+)` \((.*?)\): ", line):
                    self.values[head].append((found.group(1), found.group(2)))

    def options(self, syntax):
        heads = [head for head in self.values if syntax.startswith(head + " ") or syntax == head]
        return self.values[max(heads, key=len)] if heads else []


def values(kind):
    """Each value an option of this kind takes, as the page has it."""
    kind = kind.removesuffix(", required").split(", with ")[0]
    if kind in VALUES:
        return [VALUES[kind]]
    words = [word.strip() for word in re.split(r" ?\\\| ?", kind)]
    return [word if re.fullmatch(r"[\w-]+", word) else f"'{word}'" for word in words]


def alternatives(text):
    """Everything that a syntax of brackets and braces stands for, each bracket with and without what is in it."""
    found = re.search(r"[\[{]([^\[\]{}]*)[\]}]", text)
    if not found:
        return [text]
    choices = found.group(1).split(" | ")
    if found.group(0)[0] == "[":
        choices.append("")
    out = []
    for choice in choices:
        out += alternatives(text[: found.start()] + choice + text[found.end() :])
    return out


def plain(syntax):
    """A line of syntax without what is repeated."""
    syntax = syntax.replace(" [, name]...", "").replace(" [, attribute]...", "").replace(" [, ...]", "")
    for clause, example in (
        ("[option=value [, option=value]...]", ""),
        ("[, option=value]...", ""),
        ("WHERE condition", "WHERE name!='none'"),
        ("LIMIT number", "LIMIT 1"),
        ("OVER minutes", "OVER 5"),
        ("ORDER BY attribute", "ORDER BY name"),
        ("ATTRIBUTES {ALL | attribute}", "ATTRIBUTES ALL"),
        ("[name]", ""),
    ):
        syntax = syntax.replace(clause, example)
    return syntax


# What a statement is about: objects that there are.
OBJECTS = {"CELLDISK": "CD_00_cell", "GRIDDISK": "data", "DATABASE": "SALES", "METRICDEFINITION": "FC_BY_USED", "PIN": "data", "THRESHOLD": "FC_BY_USED"}
CLAUSE = re.compile(r" \[[A-Z]+(?: [^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)?\]")


def listings(syntax):
    """LIST with each of its clauses alone."""
    head = " ".join(syntax.split()[:2])
    yield head
    for clause in CLAUSE.findall(plain(syntax).removeprefix(head)):
        yield from (f"{head} {text.strip()}" for text in alternatives(clause.strip()[1:-1]))


def statements():
    """Each with the option it is about, if it is."""
    page = Page()
    for syntax in page.syntax:
        verb, object_type = syntax.split()[:2]
        if verb == "LIST":
            yield from ((text, None) for text in listings(syntax))
            continue
        options = page.options(syntax)
        required = {name: kind for name, kind in options if "required" in kind}
        base = plain(syntax)
        # Behind operations: flags of the options, which an operation does not take.
        base = re.sub(r"(?<=\])( \[(FORCE|NOWAIT)\])+$", "", base) if verb == "ALTER" else base
        for name, kind in required.items():
            base = re.sub(rf"\b{name}=\w+", f"{name}={values(kind)[0]}", base)
        base = re.sub(r"^(\w+ \w+) name\b(?!=)", rf"\1 {OBJECTS.get(object_type, 'name')}", base)
        bodies = sorted({re.sub(r"\s+", " ", text).strip(" ,") for text in alternatives(base)})
        bare = min(bodies, key=len)
        works = [text for text in bodies if verb != "ALTER" or OPERATION.search(text.removeprefix(f"ALTER {object_type}"))]
        yield from ((text, None) for text in works)
        if verb == "ALTER" and OPERATION.search(bare.removeprefix(f"ALTER {object_type}")):
            bare = " ".join(bare.split()[:2])
        for name, kind in options:
            if name in required or name == "seconds":
                continue
            partner = re.search(r", with (\w+)", kind)
            more = f", {partner.group(1)}=FD_00_cell" if partner else ""
            # The page says that there are none of categories.
            given = ["''"] if name == "catPlan" else values(kind)
            yield from ((f"{bare}{', ' if '=' in bare else ' '}{name}={value}{more}", name) for value in given)


OPERATION = re.compile(r"\b(ACTIVE|INACTIVE|FLUSH|FREEZE|THAW|SERVICES|VALIDATE)\b")


def carried_out(cell, statements):
    """What the cell says to each: its error, or nothing."""
    connection = UnixConnection(cell.admin_socket)
    body = json.dumps({"text": "\n".join(statements)})
    connection.request("POST", "/v1/cellcli", body, {"content-type": "application/json"})
    answer = json.load(connection.getresponse())
    return [outcome.get("error") or "" for outcome in answer["results"]]


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


@test
def the_page_promises_nothing_that_is_refused():
    with served(griddisks=("data:32M",)) as cell:
        made = [(text, option) for text, option in statements() if not ELSEWHERE.search(text)]
        check(len(made) > 400, f"only {len(made)} statements are made from the page")
        # What changes much comes last: the others have something to work on.
        made.sort(key=lambda it: (it[0].startswith("DROP"), it[0].startswith("CREATE")))
        refused, seen = [], set()
        errors = carried_out(cell, [text for text, _ in made])
        equal(len(errors), len(made), "answers")
        for (text, option), error in zip(made, errors):
            if error.startswith(NOT_BUILT) and option in NOT_YET:
                seen.add(option)
            elif error.startswith((NOT_BUILT, *OF_GRAMMAR)):
                refused.append(f"{text}\n    {error.strip()}")
        cell.check_alive()
        done = sum(not error for error in errors)
        print(f"# {len(made)} statements, {done} carried out", flush=True)
        check(not refused, f"{len(refused)} refused:\n" + "\n".join(refused[:40]))
        equal(seen, NOT_YET, "options that are refused, and are known to be")
        check(done > len(made) // 2, "most are carried out")
        cell.stop()
