"""pandas and pyarrow read and write files of an image."""

from __future__ import annotations

import pathlib

import pandas
import pyarrow.dataset
import pyarrow.parquet
import pytest
from conftest import judge, mke2fs

import extant
from extant.fsspec import ExtantFileSystem


def test_tables_are_read_and_written(tmp_path: pathlib.Path) -> None:
    image = mke2fs(tmp_path / "disk.img", "64M")
    table = pandas.DataFrame({"x": range(100_000), "y": [str(n) for n in range(100_000)]})
    with extant.open(image) as fs:
        fs.mkdir("/data")
        with fs.open("/data/t.parquet", "wb") as file:
            table.to_parquet(file)
        with fs.open("/data/t.csv", "w") as file:
            table.to_csv(file, index=False)
    with ExtantFileSystem(str(image), read_only=False):
        table.to_parquet("extant:///data/u.parquet", storage_options=dict(
            fo=str(image), read_only=False))
    judge(image)
    where = f"::{image}"
    for name in ("t", "u"):
        read = pandas.read_parquet(f"extant://data/{name}.parquet{where}")
        pandas.testing.assert_frame_equal(read, table, check_dtype=False)
    csv = pandas.read_csv("extant:///data/t.csv", storage_options={"fo": str(image)}, dtype={"y": str})
    pandas.testing.assert_frame_equal(csv, table, check_dtype=False)
    fs = ExtantFileSystem(str(image))
    rows = pyarrow.dataset.dataset("/data", filesystem=fs, exclude_invalid_files=True,
                                   format="parquet").count_rows()
    assert rows == 200_000
    with fs.filesystem.open("/data/t.parquet") as file:
        assert pyarrow.parquet.read_table(file, columns=["x"]).num_rows == 100_000
    fs.close()
