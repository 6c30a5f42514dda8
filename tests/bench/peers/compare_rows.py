#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares rows that pass to another process with TransferQueue.

Run it with a Python that has TransferQueue 0.1.11; compare_store.py says how:
    W/tq/bin/python compare_rows.py --tidemill BUILD/launcher/tidemill-bench

One operation makes N rows with nine columns of 32 KiB, puts them, gets them and reads them. The rows
of TransferQueue are one tensor for each column; they go to its storage units, which are other
processes, and come back to this one: kv_batch_put, kv_batch_get, SimpleStorage. With cells of 1 to
63 KiB, they are nested tensors. Tidemill's rows go from the process of the stream to a consumer in
another process, and are acked (`tidemill-bench store --figure store_putget`). The sides alternate,
and each one's median counts.
"""
import json
import random
import statistics
import time

from compare_store import measure, parse_arguments

TARGET = 20.0
NUM_COLUMNS = 9
CELL_BYTES = 32 << 10


class Peer:
    def __init__(self) -> None:
        import transfer_queue

        import ray

        ray.init(num_cpus=8)  # its actors would wait for cores that the machine lacks
        self.queue = transfer_queue
        self.queue.init()
        self.num_puts = 0

    def make(self, rows: int, ragged: bool):
        import torch
        from tensordict import TensorDict

        def column():
            if not ragged:
                return torch.full((rows, CELL_BYTES // 4), 0.5)
            kibibytes = [random.randint(1, 63) for _ in range(rows)]
            cells = [torch.full((size * 256,), 0.5) for size in kibibytes]
            return torch.nested.as_nested_tensor(cells, layout=torch.jagged)

        return TensorDict({f"column-{i}": column() for i in range(NUM_COLUMNS)}, batch_size=rows)

    def rate(self, rows: int, ragged: bool) -> float:
        """Passes rows and removes them afterwards. Returns bytes per second."""
        partition = f"partition-{self.num_puts}"
        self.num_puts += 1
        keys = [str(i) for i in range(rows)]
        start = time.monotonic()
        self.queue.kv_batch_put(keys=keys, partition_id=partition, fields=self.make(rows, ragged))
        got = self.queue.kv_batch_get(keys=keys, partition_id=partition)
        total = 0.0
        num_bytes = 0
        for name in got.keys():
            values = got[name]
            values = values.values() if values.is_nested else values
            total += float(values.sum())
            num_bytes += values.numel() * 4
        seconds = time.monotonic() - start
        if abs(total - num_bytes / 8) > 1e-3 * total:
            raise RuntimeError(f"TransferQueue: the {num_bytes} bytes add up to {total}")
        self.queue.kv_clear(keys=keys, partition_id=partition)
        return num_bytes / seconds


def our_rate(program: str, figure: str) -> float:
    line = measure(program, figure, 3)
    return line["bytes"] / line["seconds"]


def main() -> None:
    args = parse_arguments(__doc__)
    peer = Peer()
    for figure, ragged in (("store_putget", False), ("store_putget_ragged", True)):
        peer.rate(1024, ragged)
        ours = []
        theirs = []
        for _ in range(args.rounds):
            ours.append(our_rate(args.tidemill, figure))
            theirs.append(peer.rate(1024, ragged))
        row = {"figure": figure, "gb_per_s": statistics.median(ours) * 1e-9, "peer": "TransferQueue",
               "peer_gb_per_s": statistics.median(theirs) * 1e-9,
               "ratio": statistics.median(ours) / statistics.median(theirs), "target": TARGET}
        print(json.dumps(row), flush=True)
    peer.queue.close()


if __name__ == "__main__":
    main()
