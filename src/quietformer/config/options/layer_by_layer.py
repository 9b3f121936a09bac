"""Options of `export --layer-by-layer`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quietformer.config.options.base import Flag, Names
from quietformer.config.options.data import CalibrationOptions
from quietformer.config.options.export import IntegerOptions
from quietformer.config.options.opening import OpeningOptions


class LayerByLayerOptions(OpeningOptions, IntegerOptions, CalibrationOptions):
    """What can be told of an export of a model that does not fit into memory."""

    title = "export --layer-by-layer"
    device_map: Annotated[Names, Flag("DEVICE,...")] = Field(
        default=(),
        validate_default=True,
        description="Layer by layer: the devices that blocks run on, each an even share of them in order, e.g. cuda:0,cuda:1; "
        "the CPU by default.",
    )
