"""What scripts/demo-postgres shows: progress, a table, and a page in HTML."""

import contextlib
import html
import shutil
import sys
import threading
import time

WIDTH = 24
# Name, unit, digits, whether more is better, key.
COLUMNS = (
    ("select-only", "TPS", 0, True, "select_tps"),
    ("select-only, 95 % within", "ms", 1, False, "select_p95_ms"),
    ("TPC-B", "TPS", 0, True, "tpcb_tps"),
    ("TPC-B, 95 % within", "ms", 1, False, "tpcb_p95_ms"),
    ("sort that spills", "s", 1, False, "sort_seconds"),
)
STYLE = """
:root { color-scheme: light dark; --bar: #2b6cb0; --rule: #8888; }
@media (prefers-color-scheme: dark) { :root { --bar: #63b3ed; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.5rem 0; } figcaption { font-weight: 600; }
th { white-space: normal; min-width: 4.5rem; vertical-align: bottom; }
.line { display: grid; grid-template-columns: minmax(8rem, 20rem) 1fr; gap: .6rem; align-items: center; margin: .2rem 0; }
.bar { height: 1.1rem; background: var(--bar); border: 1px solid currentColor; box-sizing: border-box; display: inline-block; vertical-align: middle; }
.value { margin-left: .4rem; white-space: nowrap; font-variant-numeric: tabular-nums; }
@media (max-width: 30rem) { .line { grid-template-columns: 1fr; gap: 0; } }
@media print { .bar { background: #888; print-color-adjust: exact; } }
"""


class Progress:
    """Which step it is at; on a terminal with a bar that moves."""

    def __init__(self, steps):
        self.steps, self.at = steps, 0
        self.is_terminal = sys.stderr.isatty()

    def draw(self, text, share):
        whole = (self.at - 1 + share) / self.steps
        full = int(WIDTH * whole)
        line = f"[{'#' * full}{'.' * (WIDTH - full)}] {100 * whole:3.0f} % {text}"
        print("\r" + line[: shutil.get_terminal_size().columns - 1] + "\033[K", end="", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def step(self, row, what, seconds=None):
        """One step; `seconds` that it takes, where that is known."""
        self.at += 1
        text = f"{row}: {what}" + (f", {seconds} s" if seconds else "")
        if not self.is_terminal:
            print(f"{self.at}/{self.steps} {text}", file=sys.stderr, flush=True)
            yield
            return
        began, ended = time.monotonic(), threading.Event()

        def tick():
            while not ended.wait(0.2):
                self.draw(text, min(1, (time.monotonic() - began) / seconds) if seconds else 0)

        ticking = threading.Thread(target=tick, daemon=True)
        ticking.start()
        try:
            yield
        finally:
            ended.set()
            ticking.join()
            self.draw(text, 1)
            if self.at == self.steps:
                print("\r\033[K", end="", file=sys.stderr, flush=True)


def number(value, digits):
    return "-" if value is None else f"{value:,.{digits}f}"


def ratio(row, reference, key):
    """Against all flash, or none where there is nothing to compare."""
    return f"{row[key] / reference[key]:.2f}" if row[key] and reference[key] else "-"


def show(rows, reference):
    """The table, for people at a terminal."""
    head = ["", "select TPS", "p95 ms", "of all flash", "TPC-B TPS", "p95 ms", "of all flash", "sort s", "of all flash"]
    lines = [head]
    for row in rows:
        line = [row["configuration"]]
        for _, _, digits, _, key in COLUMNS:
            line.append(number(row[key], digits))
            if not key.endswith("p95_ms"):
                continue
            line.append(ratio(row, reference, key.replace("p95_ms", "tps")))
        lines.append([*line, ratio(row, reference, "sort_seconds")])
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    for line in lines:
        print("  ".join(cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(zip(line, widths))))


def page(rows, reference, about):
    """The same as a page of its own, readable without colour and on paper."""
    cells = "".join(f"<th>{html.escape(name)}, {unit}</th>" for name, unit, _, _, _ in COLUMNS)
    body = "".join(
        f"<tr><td>{html.escape(row['configuration'])}</td>" + "".join(f"<td>{number(row[key], digits)}</td>" for _, _, digits, _, key in COLUMNS) + "</tr>"
        for row in rows
    )
    figures = []
    for name, unit, digits, is_more, key in COLUMNS:
        most = max((row[key] or 0 for row in rows), default=0) or 1
        lines = "".join(
            f'<div class="line"><span>{html.escape(row["configuration"])}</span><span>'
            f'<span class="bar" style="width: {60 * (row[key] or 0) / most:.1f}%"></span>'
            f'<span class="value">{number(row[key], digits)} ({ratio(row, reference, key)})</span></span></div>'
            for row in rows
        )
        better = "more is better" if is_more else "less is better"
        figures.append(f"<figure><figcaption>{html.escape(name)}, {unit}: {better}; in brackets against all flash</figcaption>{lines}</figure>")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>PostgreSQL on Flashcell</title><style>{STYLE}</style></head><body><h1>PostgreSQL on Flashcell</h1><p>{html.escape(about)}</p>"
        f'<div class="wide"><table><thead><tr><th></th>{cells}</tr></thead><tbody>{body}</tbody></table></div>{"".join(figures)}</body></html>\n'
    )
