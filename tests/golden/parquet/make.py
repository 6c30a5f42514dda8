#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the files of this folder with pyarrow. Usage: make.py"""
import datetime
import decimal
import json
import math
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent


def write(name, schema, rows, **options):
    """Writes `rows` as NAME.parquet, with the options of pyarrow's writer."""
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), HERE / f"{name}.parquet", **options)


def write_lines(name, rows):
    """Writes the twin of a Parquet file: one line of JSON for each row, by Python's own json."""
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    (HERE / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def prompts():
    """Every type that JSON has, with nulls on every level; three row groups, snappy."""
    meta = pa.struct([("level", pa.int8()), ("source", pa.string()), ("parts", pa.list_(pa.list_(pa.float64())))])
    schema = pa.schema([
        ("prompt", pa.string()), ("answer", pa.int64()), ("score", pa.float64()), ("weight", pa.float32()),
        ("hard", pa.bool_()), ("big", pa.uint64()), ("tags", pa.list_(pa.string())), ("meta", meta),
        ("kind", pa.dictionary(pa.int8(), pa.string())), ("note", pa.large_string()), ("nothing", pa.null()),
        ("pair", pa.list_(pa.int16(), 2)), ("ids", pa.large_list(pa.uint8()))])
    texts = ['1+1=', 'say "no\\yes"\t\n\r\x01\x1f\x7f', 'größer als 😀', '   ', 'a' * 300]
    rows = []
    for i in range(10):
        rows.append({
            "prompt": f"{i}: {texts[i % len(texts)]}", "answer": None if i % 4 == 1 else i * (-1) ** i * 10**i,
            "score": [0.1, 1.0, -2.5e-9, 1e22, 123456.789][i % 5], "weight": [0.25, 3.0, 0.1][i % 3],
            "hard": [True, False, None][i % 3], "big": 2**64 - 1 - i,
            "tags": [None, [], ["x"], ["y", None, ""]][i % 4],
            "meta": None if i % 5 == 2 else {"level": i - 5, "source": None if i % 2 else "web",
                                             "parts": [[], [1.5, None], None][:i % 4] if i % 3 else None},
            "kind": ["easy", "hard", None][i % 3], "note": None if i < 5 else "n" * i, "nothing": None,
            "pair": [i, -i], "ids": [0, 255][:i % 3]})
    write("prompts", schema, rows, row_group_size=4, compression="snappy")
    write_lines("prompts", rows)
    return schema, rows


def messages():
    """Conversations of different lengths; two row groups, zstd, checksums, pages of version 2."""
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("name", pa.string())])
    schema = pa.schema([("messages", pa.list_(message)), ("answer", pa.string())])
    rows = []
    for i in range(9):
        turns = [{"role": "system", "content": "Add.", "name": None}] if i % 3 == 0 else []
        for turn in range(i % 3 + 1):
            turns += [{"role": "user", "content": f"{i}+{turn}=", "name": "anna" if i % 2 else None},
                      {"role": "assistant", "content": str(i + turn), "name": None}]
        rows.append({"messages": turns, "answer": str(i + i % 3)})
    write("messages", schema, rows, row_group_size=5, compression="zstd", write_page_checksum=True,
          data_page_version="2.0")
    write_lines("messages", rows)


def tokens():
    """Rows of ready tokens; not compressed, in pages of a few rows."""
    schema = pa.schema([("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int64()))])
    rows = []
    for i in range(40):
        ids = [(i * 7 + k) % 256 for k in range(2 + i % 9)]
        rows.append({"input_ids": ids, "labels": [-100 if k < 1 + i % 2 else token for k, token in enumerate(ids)]})
    write("tokens", schema, rows, compression="none", data_page_size=64, write_batch_size=4, use_dictionary=False)
    write_lines("tokens", rows)


def sums():
    """What a run trains on."""
    schema = pa.schema([("prompt", pa.string()), ("completion", pa.string())])
    rows = [{"prompt": f"{10 + i}+{20 + i}=", "completion": str(30 + 2 * i)} for i in range(12)]
    write("sums", schema, rows, row_group_size=5, compression="zstd")
    write_lines("sums", rows)


def refused():
    """Files and rows that are refused."""
    def one(name, kind, value):
        write(name, pa.schema([("prompt", pa.string()), ("extra", kind)]), [{"prompt": "p", "extra": value}])

    one("timestamp", pa.timestamp("us", tz="UTC"), datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc))
    one("decimal", pa.decimal128(10, 2), decimal.Decimal("1.25"))
    one("binary", pa.list_(pa.struct([("bytes", pa.binary())])), [{"bytes": b"\0"}])
    one("map", pa.map_(pa.string(), pa.int32()), [("a", 1)])
    deep, value = pa.int8(), 1
    for _ in range(70):
        deep, value = pa.struct([("in", deep)]), {"in": value}
    one("deep", deep, value)
    schema = pa.schema([("prompt", pa.string()), ("answer", pa.string()), ("score", pa.float64())])
    write("bad_rows", schema, [
        {"prompt": "a", "answer": "1", "score": 0.5}, {"prompt": "b", "answer": "1", "score": math.nan},
        {"prompt": None, "answer": "1", "score": 0.5}, {"prompt": "d", "answer": "1", "score": -math.inf},
        {"prompt": "e" * 400, "answer": "1", "score": None}, {"prompt": "f", "answer": "", "score": 1.0}])
    write("empty", schema, [])
    pq.write_table(pa.table({}), HERE / "no_columns.parquet")
    # One text of a megabyte in a dictionary, and a hundred rows that name it.
    write("expanding", pa.schema([("prompt", pa.string())]), [{"prompt": "x" * (1 << 20)}] * 100,
          compression="zstd", dictionary_pagesize_limit=4 << 20)
    # A row of 700 MiB of zeros, which takes 90 KB of file.
    write("huge", pa.schema([("input_ids", pa.list_(pa.int64()))]), [{"input_ids": [0] * (90 << 20)}],
          compression="zstd", use_dictionary=False, data_page_size=2 << 30, write_statistics=False)


prompts()
messages()
tokens()
sums()
refused()
