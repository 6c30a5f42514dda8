# SPDX-License-Identifier: Apache-2.0
"""A client that tinker_client_test.py kills.

It trains like the test's clients, prints the path of a checkpoint after 3 steps, and then trains
without end, with a line for each step.
"""

import tinker
from tinker import types

from tinker_data import batch

client = tinker.ServiceClient().create_lora_training_client("arithmetic", rank=8, seed=5).result()
adam = types.AdamParams(learning_rate=1e-3)
for step in range(1 << 30):
    client.forward_backward(batch(), "cross_entropy")
    client.optim_step(adam).result()
    if step == 2:
        print(client.save_state("left").result().path, flush=True)
    elif step > 2:
        print("step", flush=True)
