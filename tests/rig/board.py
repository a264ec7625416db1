"""A dashboard's panels as a page, drawn from what a real Prometheus answers to their questions.

Grafana isn't among Debian's packages; this shows that each panel has something to show, in the
place, with the legend and in the unit that the dashboard's file gives it.
"""

import html
import json
import math
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_COLOURS = ("#1f5fa8", "#b3541e", "#2a7a4b", "#8a3a8f", "#8a6d00", "#9c2f3d", "#2f6f78", "#555")
_WIDE, _HIGH = 400, 150
"""Of a plot, in its own units."""
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
:root {{ color-scheme: light dark;
  --paper: #f4f5f7; --card: #fff; --ink: #1b1d21; --line: #c9ccd2 }}
@media (prefers-color-scheme: dark) {{
  :root {{ --paper: #111217; --card: #1c1e24; --ink: #e6e7ea; --line: #4a4d55 }} }}
body {{ margin: 1rem; background: var(--paper); color: var(--ink); font: 13px sans-serif }}
main {{ display: grid; grid-template-columns: repeat(24, minmax(0, 1fr)); gap: 8px }}
h1 {{ font-size: 20px }} h2 {{ margin: .6em 0 0; font-size: 15px }}
figure {{ margin: 0; padding: 8px; background: var(--card); border: 1px solid var(--line);
  overflow-wrap: anywhere }}
figcaption {{ font-weight: bold }}
svg {{ display: block; width: 100%; height: auto; margin: 4px 0 }}
polyline {{ fill: none; stroke-width: 2; vector-effect: non-scaling-stroke }}
.axis {{ stroke: var(--line) }} svg text {{ fill: var(--ink); font-size: 11px }}
ul {{ margin: 0; padding: 0; list-style: none }}
.swatch {{ display: inline-block; width: 12px; height: 3px; margin-right: 5px;
  vertical-align: middle }}
.value {{ font-size: 19px }}
</style><h1>{title}</h1><main>{panels}</main></html>
"""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel."""

    legend: str
    points: tuple[tuple[float, float], ...]
    """Instants, in Unix seconds, and finite values."""


Answers = dict[int, list[Series]]
"""By the panel's number."""


def answers(web: str, dashboard: Any, begin: float, end: float) -> Answers:
    """What the Prometheus at ``web`` has for each panel, with all that a person may choose there.

    Args:
        web: its address.
        dashboard: the file's document.
        begin: of what is shown, in Unix seconds.
        end: likewise.
    """
    found: Answers = {}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            asked: dict[str, str | float] = {"query": target["expr"].replace("$instance", ".*")}
            if target.get("instant"):
                call, asked["time"] = "query", end
            else:
                call = "query_range"
                asked |= {"start": begin, "end": end, "step": max(1.0, (end - begin) / 200)}
            query = urllib.parse.urlencode(asked)
            with urllib.request.urlopen(f"http://{web}/api/v1/{call}?{query}") as reply:
                result = json.load(reply)["data"]["result"]
            found.setdefault(panel["id"], []).extend(_series(target["legendFormat"], result))
    return found


def _series(legend: str, result: list[Any]) -> Iterator[Series]:
    for each in result:
        said = legend
        for name in re.findall(r"\{\{(\w+)\}\}", legend):
            said = said.replace("{{" + name + "}}", each["metric"].get(name, ""))
        values = each["values"] if "values" in each else [each["value"]]
        points = ((float(when), float(value)) for when, value in values)
        kept = tuple((when, value) for when, value in points if math.isfinite(value))
        if kept:
            yield Series(said, kept)


def page(dashboard: Any, found: Answers) -> str:
    """The whole dashboard as one HTML page that asks for nothing."""
    panels = "".join(_panel(panel, found.get(panel["id"], [])) for panel in dashboard["panels"])
    return _PAGE.format(title=html.escape(dashboard["title"]), panels=panels)


def _panel(panel: Any, series: list[Series]) -> str:
    place = panel["gridPos"]
    where = f"grid-column:{place['x'] + 1}/span {place['w']};grid-row:{place['y'] + 1}"
    if panel["type"] != "row":
        where += f"/span {place['h']}"
    title = html.escape(panel["title"])
    if panel["type"] == "row":
        return f'<h2 style="{where}">{title}</h2>'
    unit = panel["fieldConfig"]["defaults"]["unit"]
    names_alone = panel["options"].get("textMode") == "name"
    mapped: dict[str, str] = {
        value: text["text"]
        for mapping in panel["fieldConfig"]["defaults"].get("mappings", ())
        for value, text in mapping["options"].items()
    }

    def shown(value: float) -> str:
        return mapped.get(f"{value:g}", _number(value, unit))

    last = [
        each.legend if names_alone else f"{each.legend} {shown(each.points[-1][1])}"
        for each in series
    ]
    alt = html.escape(f"{panel['title']}: {'; '.join(last)}", quote=True)
    if panel["type"] == "stat":
        rows = "".join(f'<li class="value">{html.escape(each)}</li>' for each in last)
        body = f"<ul>{rows}</ul>"
    else:
        swatches = (f"background:{_COLOURS[n % len(_COLOURS)]}" for n in range(len(last)))
        rows = "".join(
            f'<li><span class="swatch" style="{style}"></span>{html.escape(each)}</li>'
            for style, each in zip(swatches, last, strict=True)
        )
        body = f"{_plot(series, unit)}<ul>{rows}</ul>"
    return (
        f'<figure role="img" aria-label="{alt}" style="{where}">'
        f"<figcaption>{title}</figcaption>{body}</figure>"
    )


def _plot(series: list[Series], unit: str) -> str:
    times = [when for each in series for when, _ in each.points] or [0.0]
    values = [value for each in series for _, value in each.points]
    begin, end = min(times), max(times)
    most = max([*values, 0.0]) or 1.0
    left, top, width, height = 58.0, 12.0, _WIDE - 66.0, _HIGH - 30.0

    def at(when: float, value: float) -> str:
        across = (when - begin) / max(end - begin, 1.0)
        return f"{left + width * across:.1f},{top + height * (1 - value / most):.1f}"

    lines = "".join(
        f'<polyline style="stroke:{_COLOURS[n % len(_COLOURS)]}" '
        f'points="{" ".join(at(*point) for point in part)}"/>'
        for n, each in enumerate(series)
        for part in _unbroken(each.points)
    )
    marks = "".join(
        f'<line class="axis" x1="{left}" x2="{left + width}" y1="{y}" y2="{y}"/>'
        f'<text x="{left - 5}" y="{y + 4}" text-anchor="end">{_number(value, unit)}</text>'
        for value, y in ((0.0, top + height), (most / 2, top + height / 2), (most, top))
    )
    seconds = (
        f'<text x="{left + width}" y="{_HIGH - 4}" text-anchor="end">{end - begin:.0f} s</text>'
    )
    return f'<svg viewBox="0 0 {_WIDE} {_HIGH}">{marks}{lines}{seconds}</svg>'


def _unbroken(points: tuple[tuple[float, float], ...]) -> Iterator[list[tuple[float, float]]]:
    """The parts between gaps, in which there was nothing to scrape."""
    step = min((b[0] - a[0] for a, b in pairwise(points)), default=0.0)
    part: list[tuple[float, float]] = []
    for point in points:
        if part and point[0] - part[-1][0] > 1.5 * step:
            yield part
            part = []
        part.append(point)
    yield part


def _number(value: float, unit: str) -> str:
    """As Grafana would, in the units that the dashboard uses."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit in ("bytes", "Bps"):
        power = min(2, int(math.log10(max(value, 1.0)) / 3))
        return f"{value / 1000**power:.3g} {' kM'[power].strip()}B{'/s' if unit == 'Bps' else ''}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
