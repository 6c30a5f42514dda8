#!/usr/bin/env python3
"""Kills a run, resumes it, and reads its event file with an independent parser.

The file must have the format that TensorBoard expects, agree with metrics.jsonl record for record, and
contain no step twice. The parser implements TFRecord frames, CRC-32C and the wire format of protocol
buffers, and uses no code of the program.

Usage: event_file_test.py TIDEMILL SOURCE_DIRECTORY
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

STEPS = 40
DEADLINE_S = 120


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """Yields the content of each record. Fails if a checksum is wrong or the last record is incomplete."""
    while data:
        head, (size, crc) = data[:8], struct.unpack("<QI", data[:12])
        assert crc == masked(head), "checksum of a length"
        content, (crc,) = data[12:12 + size], struct.unpack("<I", data[12 + size:16 + size])
        assert crc == masked(content), "checksum of a record"
        yield content
        data = data[16 + size:]


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """Yields the fields of a protocol buffer as (number, value)."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
            value, at = data[at:at + size], at + size
        yield number, value


def scalars(summary):
    found = {}
    for number, value in fields(summary):
        assert number == 1
        parts = dict(fields(value))
        tag = parts[1].decode()
        assert tag not in found, tag
        found[tag], = struct.unpack("<f", parts[2])
    return found


def events(path):
    """Returns [(step, {tag: value})], after checking the first record and the times."""
    parsed = [dict(fields(record)) for record in records(path.read_bytes())]
    assert parsed[0][3] == b"brain.Event:2", parsed[0]
    for event in parsed:
        wall, = struct.unpack("<d", event[1])
        assert abs(wall - time.time()) < 3600, wall
    return [(event[2], scalars(event[5])) for event in parsed[1:]]


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def metrics(path):
    lines = []
    for line in path.read_text().splitlines():
        values = json.loads(line)
        kind, step = values.pop("kind"), values.pop("step")
        lines.append((step, {f"{kind}/{name}": float32(value)
                             for name, value in values.items() if value is not None}))
    return lines


def run_and_kill(program, folder, metrics_file):
    """Kills the run between two commits. Returns how many lines it had written to metrics.jsonl."""
    run = subprocess.Popen([program, "run", "small.yaml"], cwd=folder, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + DEADLINE_S
    while not metrics_file.exists() or metrics_file.read_bytes().count(b"\n") < 12:
        assert run.poll() is None and time.monotonic() < deadline, "the run ended or hangs"
        time.sleep(0.001)
    run.kill()
    run.wait()
    return metrics_file.read_bytes().count(b"\n")


def main(program, source):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rows = (pathlib.Path(source) / "examples/arithmetic/data/eval.jsonl").read_text().split("\n")
        (folder / "eval.jsonl").write_text("\n".join(rows[:4]))
        (folder / "small.yaml").write_text(f"""
workflow: rl
model: {{path: {source}/examples/models/arithmetic}}
data: {{train: {source}/examples/arithmetic/data/train.jsonl, eval: eval.jsonl}}
rollout: {{group_size: 4, max_new_tokens: 4, workers: 1}}
reward: {{kind: number}}
train: {{steps: {STEPS}, prompts_per_step: 8}}
eval: {{every_steps: 20}}
checkpoint: {{every_steps: 7}}
""")
        directory = folder / "runs/small"
        killed_at = run_and_kill(program, folder, directory / "metrics.jsonl")
        before, = directory.glob("*tfevents*")
        resumed = subprocess.run([program, "resume", "runs/small"], cwd=folder, timeout=DEADLINE_S,
                                 capture_output=True, text=True)
        assert resumed.returncode == 0, resumed.stderr
        after, = directory.glob("*tfevents*")
        assert after == before, "a second event file"
        read = events(after)
        assert read == metrics(directory / "metrics.jsonl")
        trained = [step for step, values in read if "train/reward_mean" in values]
        assert trained == list(range(1, STEPS + 1)), trained
        assert any("eval/eval_mean_at_k" in values for _, values in read)
        print(f"killed after {killed_at} lines, resumed; {len(read)} records of "
              f"{after.stat().st_size} bytes, each step once")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
