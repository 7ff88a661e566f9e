"""The charts of a report as SVG: every number a run can log has a place, and no text gets out of its place."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from canary_mlflow.reports.charts import Chart, Curve, Mark, Range
from canary_mlflow.reports.svg import HIGH, WIDE, axis, svg

SVG = "{http://www.w3.org/2000/svg}"
DARK = "prefers-color-scheme:dark"


def curve(values: Sequence[float], run: str = "seed 0", label: str = "loss") -> Curve:
    return Curve(name=label, label=label, run=run, steps=np.arange(1, len(values) + 1), values=np.array(values))


def a_chart(*curves: Curve, **rest: Any) -> Chart:
    return Chart(**{"title": "Loss", "slug": "loss", "unit": "", "curves": curves, **rest})


def drawn(chart: Chart) -> ET.Element:
    text = svg(chart)
    assert "nan" not in text.lower().replace("nan_", "")
    return ET.fromstring(text)


def places(root: ET.Element) -> list[tuple[float, float]]:
    """The points of all lines in the box, in units from its upper left corner."""
    lines = root.findall(f"{SVG}svg/{SVG}polyline")
    return [tuple(map(float, one.split(","))) for line in lines for one in line.get("points", "").split()]


def written(root: ET.Element) -> list[str]:
    return [one.text or "" for one in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        (0.7, 0.5, 0.4),
        (1e100, -1e100, 0.0),
        (1e-310, 5e-324, 1e-320),
        (3.0, 3.0, 3.0),
        (0.0, 0.0, 0.0),
        (1e6, 1e6 + 1e-9, 1e6),
        (1e-12, 1e12, 1.0),
        (1.0, 1.5, 1.2),
    ],
)
def test_every_finite_value_is_drawn_within_the_box(values: tuple[float, ...], log: bool) -> None:
    root = drawn(a_chart(curve(values), log=log))
    found = places(root)
    assert len(found) == 3
    assert all(0 <= x <= WIDE and 0 <= y <= HIGH for x, y in found)
    assert len(root.findall(f"{SVG}line")) <= 14  # of the grid


def test_a_higher_value_is_drawn_higher_and_a_later_step_further_right() -> None:
    (first, high), (second, low), (third, middle) = places(drawn(a_chart(curve((0.7, 0.3, 0.5)))))
    assert first < second < third
    assert high < middle < low
    assert middle == pytest.approx((high + low) / 2, abs=0.1)
    tenfold = [y for _, y in places(drawn(a_chart(curve((1, 10, 100)), log=True)))]
    assert tenfold[0] - tenfold[1] == pytest.approx(tenfold[1] - tenfold[2], abs=0.2)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3e-7, 2e-6), (17.0, 23.0), (0.0, 1e100), (99.7, 99.9)])
def test_ticks_are_few_round_and_between_the_ends(low: float, high: float) -> None:
    made = axis(np.array([low, high]), 100)
    ticks = made.ticks()
    assert 2 <= len(ticks) <= 7
    assert all(made.low <= one <= made.high for one in ticks)
    assert all(len(f"{one:.8g}") <= 8 for one in ticks)
    assert np.ptp(np.diff(ticks)) <= 1e-6 * (high - low)


def test_what_belongs_to_the_curves_is_drawn_and_named() -> None:
    steps = np.arange(1, 4)
    wide = Range(steps=steps, low=np.array([0.2, 0.2, -1.0]), high=np.array([0.9, 0.9, 5.0]))
    marks = [Mark(step=2, stream="loss", level=level, run="seed 0") for level in ("WARN", "STOP")]
    curves = [curve((0.5, 0.4, 0.3), f"seed {seed}") for seed in range(6)] + [curve((0.6,), label="evaluation loss")]
    chart = a_chart(*curves, band=wide, around=[("seed 1", wide)], marks=marks, target=0.1, unit="nats")
    root = drawn(chart)
    (box,) = root.findall(f"{SVG}svg")
    assert len(box.findall(f"{SVG}polygon")) == 2
    assert len(box.findall(f"{SVG}circle")) == 1  # a curve of one point
    words = written(root)
    assert {"Loss (nats)", "step", "seed 3", "and 2 more", "evaluation loss", "baseline", "target"} <= set(words)
    assert "seed 4" not in words
    assert sum("z" in one.get("d", "") for one in root.iter(f"{SVG}path")) == 2  # the arrows


def test_names_stay_text_whatever_they_hold() -> None:
    hostile = "</text><script>x</script> \x00\x1b[31m $x$ &amp;"
    root = drawn(a_chart(curve((1.0, 2.0), run=hostile, label=hostile), title=hostile))
    assert root.find(f".//{SVG}script") is None
    assert any(word.startswith("</text><script>x</script>") for word in written(root))


def test_each_colour_has_another_in_the_dark() -> None:
    text = svg(a_chart(curve((1.0, 2.0))))
    light, dark = (dict(re.findall(r"(--c\d+):(#\w+)", part)) for part in text.partition(DARK)[::2])
    used = set(re.findall(r"var\((--c\d+)\)", text))
    assert used <= set(light) == set(dark)
    assert all(light[one] != dark[one] for one in light)
    assert not re.search(r"(fill|stroke):#", text)
