"""The commands of docs/input.md for files of well-known sources, up to the first query."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import galileo
from galileo.cli.main import main

PAGE = Path(__file__).parents[3] / "docs" / "input.md"
FILES = {
    "46029.txt": """\
#YY  MM DD hh mm WDIR WSPD GST  WVHT   DPD   APD MWD   PRES  ATMP  WTMP  DEWP  VIS PTDY  TIDE
#yr  mo dy hr mn degT m/s  m/s     m   sec   sec degT   hPa  degC  degC  degC  nmi  hPa    ft
2022 06 05 13 00 280  3.0  4.0    MM    MM    MM  MM 1015.2    MM  13.9    MM   MM +1.6    MM
2022 06 05 12 50 270  3.0  4.0   0.5     7   3.5 100 1014.3    MM  13.8    MM   MM   MM    MM
""",
    "asos.csv": """\
#DEBUG: Format Typ    -> onlycomma
station,valid,lon,lat,tmpf,dwpf,sknt,p01i,wxcodes
MWN,1993-03-12 06:00,-71.3035,44.2708,-12.10,M,70.00,T,-BLSN
DEN,1993-03-12 06:00,-104.66,39.83,28.00,M,6.00,0.01,M
""",
    "ais.csv": """\
MMSI,BaseDateTime,LAT,LON,SOG,COG,Heading,VesselName,IMO,CallSign,VesselType,Status,Length,Cargo
368084090,2024-01-01T00:00:00,29.93174,-89.99239,6.0,296.2,299.0,TUG ONE,,WDK1234,57,12,0,57
368140160,2024-01-01T00:00:01,30.33475,-87.14429,0.0,312.0,87.0,ANGEL,,WDL5339,36,,,
""",
    "ibtracs.csv": """\
SID,SEASON,NUMBER,BASIN,SUBBASIN,NAME,ISO_TIME,NATURE,LAT,LON,WMO_WIND,WMO_PRES
 ,Year, , , , , , ,degrees_north,degrees_east,kts,mb
2012296N14283,2012,78,NA,CS,SANDY,2012-10-22 15:00:00,TS,13.2,-78.2, ,\x20
2012296N14283,2012,78,NA,NA,SANDY,2012-10-25 06:00:00,TS,20.1,-75.9,100,954
2012166N09269,2012,44,EP,MM,CARLOTTA,2012-06-15 18:00:00,TS,15.1,-96.3,95,973
""",
    "openaq.csv": """\
"location_id","sensors_id","location","datetime","lat","lon","parameter","units","value"
2178,3917,"Del Norte-2178","2024-01-01T01:00:00-07:00",35.1353,-106.5847,"pm25","µg/m³",8.2
2178,3917,"Del Norte-2178","2024-01-01T02:00:00-07:00",35.1353,-106.5847,"pm25","µg/m³",13.7
2178,3916,"Del Norte-2178","2024-01-01T01:00:00-07:00",35.1353,-106.5847,"o3","ppm",0.021
""",
}
ANSWERS = {
    "buoys": {"station": "46029", "wave_height": 0.5, "pressure": 1014.3},
    "asos": {"station": "MWN", "wind": 70.0, "rain": None},
    "ais": {"mmsi": 368084090, "speed": 6.0, "name": "TUG ONE"},
    "storms": {"name": "SANDY", "basin": "NA", "wind": 100},
    "air": {"parameter": "pm25", "value": 13.7, "time": "2024-01-01T09:00:00Z"},
}
"""Of the one row that each query finds, some values."""


@pytest.fixture
def no_datasets(client: galileo.Client) -> Iterator[None]:
    """Other pages use the names of the datasets for their own."""
    yield
    for name in {schema.name for schema in client.datasets()} & ANSWERS.keys():
        client.drop_dataset(name)


@pytest.mark.usefixtures("no_datasets")
def test_commands_lead_from_a_file_to_its_first_query(
    cluster: galileo.LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    section = PAGE.read_text().split("### Files of well-known sources")[1]
    block = re.search(r"```console\n(.*?)```", section, re.DOTALL)
    assert block is not None
    answers = {}
    nodes = [word for address in cluster.addresses for word in ("--node", address)]
    for line in block[1].splitlines():
        if not line.startswith("galileo"):
            continue
        words = [word.removesuffix(".gz") for word in shlex.split(line)[1:]]
        done = CliRunner().invoke(main, [*nodes, *words, "--json"])
        assert done.exit_code == 0, done.output
        if words[0] == "read":
            [row] = json.loads(done.stdout)["rows"]
            answers[words[1]] = {name: row[name] for name in ANSWERS[words[1]]}
    assert answers == ANSWERS
