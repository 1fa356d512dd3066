"""Files of observations; `detection.READERS` lists the formats."""

from galileo.formats.csv_options import CsvOptions
from galileo.formats.detection import FORMATS, open_source
from galileo.formats.grid_options import GridOptions
from galileo.formats.mapping import Mapping
from galileo.formats.schema_suggestion import Choice, suggest_schema
from galileo.formats.source import Source
from galileo.formats.variables import VariableInfo

__all__ = [
    "FORMATS",
    "Choice",
    "CsvOptions",
    "GridOptions",
    "Mapping",
    "Source",
    "VariableInfo",
    "open_source",
    "suggest_schema",
]
