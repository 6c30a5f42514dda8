#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the control plane of a stream with the controller of TransferQueue.

Run it with a Python that has TransferQueue 0.1.11:
    python3 -m venv W/tq && W/tq/bin/pip install TransferQueue==0.1.11
    W/tq/bin/python compare_store.py --tidemill BUILD/launcher/tidemill-bench

One operation passes N rows with nine columns: the producer reports them, a consumer takes all of
them. TransferQueue does that with get_metadata(mode="insert"), update_production_status and
get_metadata(mode="fetch") of its controller, called in this process, without messages and without
data. Tidemill writes, leases and acks the rows (`tidemill-bench store --figure store_meta_*`). Both
sides count the time of the thread that does it, which leaves out the time that other programs take,
and threads of PyTorch. The sides alternate, and each one's median counts.
"""
import argparse
import json
import logging
import statistics
import subprocess
import time

FIGURES = {"store_meta_1k": (1024, 20.0), "store_meta_16k": (16384, 100.0), "store_meta_131k": (131072, 500.0)}
NUM_COLUMNS = 9


def make_controller():
    """Returns a controller in this process, not in one of Ray's."""
    from transfer_queue.controller import TransferQueueController

    logging.disable(logging.WARNING)
    return TransferQueueController.__ray_metadata__.modified_class(polling_mode=True)


class Peer:
    def __init__(self) -> None:
        import torch

        self.controller = make_controller()
        self.columns = [f"column-{i}" for i in range(NUM_COLUMNS)]
        self.schema = {
            name: {"dtype": torch.float32, "shape": torch.Size([16]), "is_nested": False, "is_non_tensor": False}
            for name in self.columns
        }
        self.num_partitions = 0

    def seconds(self, rows: int) -> float:
        """Passes rows through a new partition, and removes it afterwards."""
        partition = f"partition-{self.num_partitions}"
        self.num_partitions += 1
        start = time.thread_time()
        inserted = self.controller.get_metadata(self.columns, partition, mode="insert", batch_size=rows)
        written = self.controller.update_production_status(partition, inserted.global_indexes, self.schema)
        fetched = self.controller.get_metadata(self.columns, partition, mode="fetch", task_name="consume", batch_size=rows)
        seconds = time.thread_time() - start
        if not written or len(fetched.global_indexes) != rows:
            raise RuntimeError(f"TransferQueue passed {len(fetched.global_indexes)} of {rows} rows")
        self.controller.clear_partition(partition)
        return seconds


def measure(program: str, figure: str, repetitions: int) -> dict:
    """Returns what `tidemill-bench store` prints about a figure."""
    command = [program, "store", "--figure", figure, "--repetitions", str(repetitions), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def parse_arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--tidemill", required=True, metavar="PROGRAM", help="tidemill-bench")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments(__doc__)
    peer = Peer()
    for figure, (rows, target) in FIGURES.items():
        peer.seconds(rows)
        ours = []
        theirs = []
        for _ in range(args.rounds):
            ours.append(measure(args.tidemill, figure, 15)["row_ns"] * 1e-9 * rows)
            theirs.append(statistics.median(peer.seconds(rows) for _ in range(3)))
        row = {"figure": figure, "rows": rows, "ms": statistics.median(ours) * 1e3, "peer": "TransferQueue",
               "peer_ms": statistics.median(theirs) * 1e3, "ratio": statistics.median(theirs) / statistics.median(ours),
               "target": target}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
