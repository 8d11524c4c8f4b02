"""Medians, ratios and the printed table."""

import statistics


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def median_of(runs, key):
    return median([run.get(key) for run in runs])


def median_ratio(runs, reference, key):
    """Median over the rounds of ours / theirs in the same round: what disturbs the machine disturbs both."""
    pairs = zip(runs, reference)
    return median([a[key] / b[key] for a, b in pairs if a.get(key) is not None and b.get(key)])


class Bound:
    """One bound of DESIGN section 7 with what was measured: at least (`>=`) or at most (`<=`) `limit`."""

    def __init__(self, row, what, value, relation, limit, unit="x"):
        self.row = row
        self.what = what
        self.value = value
        self.relation = relation
        self.limit = limit
        self.unit = unit

    @property
    def holds(self):
        if self.value is None:
            return None
        return self.value >= self.limit if self.relation == ">=" else self.value <= self.limit

    def as_json(self):
        keys = ("row", "what", "value", "relation", "limit", "unit", "holds")
        return {key: getattr(self, key) for key in keys}


def number(value, digits=0):
    if value is None:
        return "-"
    return f"{value:,.{digits}f}"


def columns(head, rows, left=1):
    """Lines of a table; the first `left` columns to the left, the others to the right."""
    rows = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = []
    for row in rows:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        lines.append("  " + "  ".join(cells).rstrip())
    lines.insert(1, "  " + "  ".join("-" * w for w in widths))
    return lines


def print_group(title, head, rows, left=1):
    print(f"\n{title}")
    print("\n".join(columns(head, rows, left)), flush=True)


def print_bounds(bounds):
    head = ("bound (DESIGN section 7)", "", "measured", "bound", "holds")
    rows = []
    for bound in bounds:
        value = "-" if bound.value is None else f"{bound.value:.3g} {bound.unit}"
        holds = {True: "yes", False: "NO", None: "not measured"}[bound.holds]
        rows.append((bound.row, bound.what, value, f"{bound.relation} {bound.limit:g} {bound.unit}", holds))
    print_group("Bounds", head, rows, left=2)


IO_HEAD = ("", "IOPS", "MB/s", "mean us", "p99 us", "server CPU us/IO", "client CPU us/IO", "x reference")


def io_row(name, runs, ratio=None):
    """A line of raw fio figures: medians over the rounds."""
    fields = (("iops", 0), ("mb_s", 0), ("mean_us", 1), ("p99_us", 1), ("server_cpu_us", 2), ("client_cpu_us", 2))
    cells = [number(median_of(runs, key), digits) for key, digits in fields]
    return (name, *cells, number(ratio, 2))
