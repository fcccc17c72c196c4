"""The colours can be told apart by every kind of colour vision, and text on them can be read."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from nsprof.render.flamegraph_colours import GREY, HUES, LESS, MIDDLE, MORE, name_shade, rgb

#: Machado, Oliveira and Fernandes 2009, full severity, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: tuple[int, int, int]) -> NDArray[np.float64]:
    value = np.array(colour) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(light: NDArray[np.float64]) -> NDArray[np.float64]:
    x, y, z = (_XYZ @ np.clip(light, 0, 1)) / np.array([0.9505, 1.0, 1.089])
    f = [v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    a, b = sorted((float(_XYZ[1] @ one), float(_XYZ[1] @ other)))
    return (b + 0.05) / (a + 0.05)


@pytest.mark.parametrize("vision", VISION)
def test_more_less_same_and_grey_are_four_colours_for_everybody(vision: str) -> None:
    seen = {
        name: lab(VISION[vision] @ linear(colour))
        for name, colour in {"more": MORE, "less": LESS, "same": MIDDLE, "grey": GREY}.items()
    }
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 12, (vision, one, other)
    assert np.linalg.norm(seen["more"] - seen["less"]) > 40


@pytest.mark.parametrize("dim", [1.0, 0.9])  # light and dark pages
def test_black_names_can_be_read_on_every_fill(dim: float) -> None:
    fills = [MORE, LESS, MIDDLE, GREY, *(end for pair in HUES.values() for end in pair)]
    for fill in fills:
        dimmed = tuple(round(v * dim) for v in fill)
        assert contrast(linear(dimmed), linear((17, 17, 17))) >= 4.5, fill  # type: ignore[arg-type]


def test_shades_run_from_end_to_end() -> None:
    assert rgb(MIDDLE, MORE, 0) == "rgb({},{},{})".format(*MIDDLE)
    assert rgb(MIDDLE, MORE, 1) == "rgb({},{},{})".format(*MORE)
    assert 0 <= name_shade("") <= 1 and name_shade("a") != name_shade("b")
