# SPDX-License-Identifier: Apache-2.0
"""Defines the figures, the commands that measure them on each side, and the engine's targets."""
import dataclasses
import pathlib
import shutil
from collections.abc import Callable

from pinned_run import Run

HERE = pathlib.Path(__file__).resolve().parent
# The lengths of prompts and responses are those of `tidemill-bench engine`.
DECODE = ["--prompt", "16", "--tokens", "48"]
DECODE_MANY = ["--prompt", "16", "--tokens", "12"]
ROLLOUT = ["--prompt", "64", "--tokens", "256", "--sequences", "32"]
GRPO_LONG = ["--prompts", "4", "--samples", "8", "--prompt-tokens", "64", "--response-tokens",
             "256", "--steps", "3"]
# A run on a real model may take that long.
LONG_S = 7200.0


@dataclasses.dataclass(frozen=True)
class Work:
    """The work folder of set_up.py and the tidemill program."""
    folder: pathlib.Path
    tidemill: str

    @property
    def tidemill_bench(self) -> pathlib.Path:
        """The program beside `tidemill`."""
        return pathlib.Path(shutil.which(self.tidemill) or self.tidemill).with_name("tidemill-bench")

    def model(self, preset: str) -> pathlib.Path:
        return self.folder / "models" / preset


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to run a peer."""
    name: str
    command: list[str]  # with the placeholders {work}, {here}, {model} and {threads}


@dataclasses.dataclass(frozen=True)
class Figure:
    """A row of the table.

    `read` returns the values that a run measured, in `unit`. Larger values are better for "tok/s",
    smaller ones for other units. `ratio` is ours / peer or, with `speedup`, peer / ours.
    """
    name: str
    preset: str
    unit: str
    peers: dict[str, list[Variant]]
    reach: dict[str, str]  # target for the ratio by peer, such as ">= 1.1"
    read: Callable[[Run], list[float]]
    directory: str = ""  # subfolder of the preset that contains our model
    speedup: bool = False
    settings: str = ""
    ours: list[str] | None = None  # command that measures our side instead of `tidemill-bench`
    warm: bool = False  # whether each run follows an identical run that does not count
    timeout_s: float = 600.0
    by_name: bool = False  # whether it is only measured if it is named, because it takes minutes
    bench: str = ""  # the figure of `tidemill-bench engine`, if it has another name
    note: str = ""  # the note of that figure that is compared, instead of its value

    @property
    def bench_name(self) -> str:
        """The name in `tidemill-bench engine`."""
        return self.bench or self.name

    def ratio(self, ours: float, peer: float) -> float:
        return peer / ours if self.speedup else ours / peer

    def best(self, values: list[float]) -> float:
        return max(values) if self.unit == "tok/s" else min(values)


# -- reading runs ----------------------------------------------------------------------------------

def rates(run: Run) -> list[float]:
    return run.lines[-1]["runs"]


def first_line(run: Run) -> list[float]:
    return [run.first_line_s]


def peak(run: Run) -> list[float]:
    """Returns the peak of the process without CUDA libraries, which a CPU build would not load."""
    line = run.lines[-1]
    return [line["peak_rss_bytes"] - line.get("rss_cuda_libraries", 0)]


def activations(run: Run) -> list[float]:
    return [line["activation_bytes"] for line in run.lines if "activation_bytes" in line]


# -- the peers' commands ---------------------------------------------------------------------------

def llama(dtype: str, what: str, *words: str, unified: bool = False) -> list[Variant]:
    kind = {"int8": "q8_0"}.get(dtype, dtype)
    command = ["{work}/llama_bench", "{model}/model-" + kind + ".gguf", what, "--threads",
               "{threads}", *words]
    variants = [Variant(f"flash={flash}", [*command, "--flash", str(flash)]) for flash in (0, 1)]
    if unified:
        variants.append(Variant("flash=1 unified", [*command, "--flash", "1", "--unified", "1"]))
    return variants


def hf(what: str, dtype: str, *words: str, variants: dict[str, list[str]]) -> list[Variant]:
    command = ["{work}/venv/bin/python", "-W", "ignore", "{here}/hf_bench.py", "{model}", what,
               "--dtype", dtype, "--threads", "{threads}", *words]
    return [Variant(name, [*command, *more]) for name, more in variants.items()]


def trl(*words: str) -> list[Variant]:
    """Returns a variant per type: users of TRL would choose the fastest one."""
    return [Variant(name, ["{work}/venv/bin/python", "-W", "ignore", "{here}/trl_bench.py",
                           "{model}", "--threads", "{threads}", "--dtype", name, *words])
            for name in ("f32", "bf16", "autocast")]


F32 = ["--dtype", "f32"]  # replaces the type before it
SDPA = {"sdpa": []}
ATTENTIONS = {**SDPA, "eager": ["--attention", "eager"]}
CACHES = {"dynamic cache": [], "static cache": ["--static"],
          "static cache, compiled": ["--static", "--compile"]}


def steps(dtype: str) -> dict[str, list[str]]:
    """Returns the variants of training. By default, PEFT keeps adapters of bf16 models in f32.

    On processors without bf16 products, f32 weights are faster."""
    ways = {**ATTENTIONS, "sdpa, compiled": ["--compile"]}
    if dtype == "bf16":
        ways["sdpa, f32 adapter"] = ["--adapter-dtype", "f32"]
        ways["sdpa, f32 weights"] = F32
    return ways


def long_steps(dtype: str) -> dict[str, list[str]]:
    """Returns the variants of training on long sequences, which need much memory without gradient
    checkpointing."""
    ways = {"sdpa": [], "sdpa, checkpoints": ["--checkpoint"]}
    if dtype == "bf16":
        ways["sdpa, checkpoints, f32 weights"] = ["--checkpoint", *F32]
    return ways


# -- the table -------------------------------------------------------------------------------------

def generation_figures() -> list[Figure]:
    figures = []
    reach_decode = {"f32": ">= 1.0", "bf16": ">= 1.1", "int8": ">= 1.15"}
    reach_prefill = {"f32": ">= 1.2", "bf16": ">= 1.35", "int8": ">= 1.6"}
    for dtype in ("f32", "bf16", "int8"):
        directory = "bf16" if dtype == "bf16" else ""
        peers = {"llama.cpp": llama(dtype, "decode", *DECODE)}
        if dtype != "int8":
            peers["transformers"] = hf("decode", dtype, *DECODE, variants=CACHES)
        figures.append(Figure(f"decode_b1_{dtype}", "197m", "tok/s", peers,
                              {"llama.cpp": reach_decode[dtype]}, rates, directory,
                              settings="48 tokens after 16"))
        peers = {"llama.cpp": llama(dtype, "prefill", "--tokens", "512", "--prompt", "0")}
        reach = {"llama.cpp": reach_prefill[dtype]}
        if dtype != "int8":
            peers["transformers"] = hf("prefill", dtype, "--tokens", "512", variants=ATTENTIONS)
            reach["transformers"] = reach_prefill[dtype]
        figures.append(Figure(f"prefill_512_{dtype}", "197m", "tok/s", peers, reach, rates,
                              directory, settings="one prompt of 512"))
    for count in ("16", "64"):
        words = [*DECODE_MANY, "--sequences", count, "--repeat", "3"]
        figures.append(Figure(
            f"decode_{count}_bf16", "197m", "tok/s",
            {"llama.cpp": llama("bf16", "decode", *words, unified=count == "16"),
             "transformers": hf("decode", "bf16", *words, variants=SDPA)},
            {"llama.cpp": ">= 2.2"}, rates, "bf16", settings="12 tokens after 16, each"))
    figures.append(Figure(
        "rollout_32_bf16", "qwen3-0.6b", "tok/s",
        {"llama.cpp": llama("bf16", "rollout", *ROLLOUT, "--repeat", "2", unified=True)},
        {"llama.cpp": ">= 2.0"}, rates, "bf16", timeout_s=LONG_S, by_name=True,
        settings="32 x (64 + 256) tokens, temperature 1, top-p 0.95"))
    generate = ["{tidemill}", "generate", "{model}/bf16", "--input", "{work}/prompt.jsonl",
                "--json", "--dtype", "bf16", "--threads", "{threads}", "--greedy",
                "--max-new-tokens", "1", "--ignore-eos"]
    figures.append(Figure(
        "start_to_first_token", "197m", "s",
        {"llama.cpp": llama("bf16", "first_token", "--prompt", "64"),
         "transformers": hf("first_token", "bf16", variants=SDPA)},
        {"llama.cpp": "<= 1.0", "transformers": "<= 0.1"}, first_line, ours=generate,
        warm=True, settings="bf16, 64 tokens of prompt, from outside"))
    return figures


def training_figures() -> list[Figure]:
    figures = []

    def add(stem: str, what: str, preset: str, dtype: str, batch: int, reach_step: str) -> None:
        """Adds figures for the speed of a step and for its memory, measured in the same runs."""
        words = ["--tokens", "512", "--batch", str(batch), "--repeat", "1" if batch > 1 else "2"]
        if what == "full_step":
            words[-1] = "4"
        ways = steps(dtype) if what == "lora_step" else steps("f32")
        peer = "peft" if what == "lora_step" else "transformers"
        peers = {peer: hf(what, dtype, *words, variants=ways)}
        directory = "bf16" if dtype == "bf16" else ""
        settings = f"{batch} x 512"
        less = "<= 0.4" if batch > 1 else "<= 0.6"
        figures.extend([
            # There is a single batch size for full steps.
            Figure(f"{stem}_step_{dtype}_b{batch}", preset, "tok/s", peers, {peer: reach_step},
                   rates, directory, settings=settings, timeout_s=LONG_S,
                   bench="full_step_f32" if (stem, batch) == ("full", 1) else ""),
            Figure(f"{stem}_peak_bytes_{dtype}_b{batch}", preset, "bytes", peers, {peer: less},
                   peak, directory, settings=settings, timeout_s=LONG_S),
            Figure(f"{stem}_activation_bytes_{dtype}_b{batch}", preset, "bytes", peers,
                   {peer: "<= 0.25"}, activations, directory, settings=settings),
        ])

    for batch in (1, 4):
        add("lora", "lora_step", "197m", "bf16", batch, ">= 1.7")
        add("lora", "lora_step", "197m", "f32", batch, ">= 1.35")
        add("full", "full_step", "15m", "f32", batch, ">= 1.35")
    for dtype, tokens, suffix in (("f32", 2048, ""), ("bf16", 2048, ""), ("f32", 8192, "_layer"),
                                  ("bf16", 8192, "_cheap"), ("bf16", 8192, "_layer")):
        figures += long_figures("qwen3-0.6b", dtype, tokens, suffix)
    return figures + long_figures("qwen3-1.7b", "bf16", 4096, "")


def long_figures(preset: str, dtype: str, tokens: int, suffix: str) -> list[Figure]:
    """Returns the speed and the memory of a step on one long sequence. `suffix` says what our side
    computes again."""
    peers = {"peft": hf("lora_step", dtype, "--tokens", str(tokens), "--repeat", "1",
                        variants=long_steps(dtype))}
    directory = "bf16" if dtype == "bf16" else ""
    case = f"{dtype}_t{tokens}{suffix}"
    speed = Figure(f"lora_step_{case}", preset, "tok/s", peers, {}, rates, directory,
                   settings=f"1 x {tokens}", timeout_s=LONG_S, by_name=True)
    return [speed, dataclasses.replace(speed, name=f"lora_peak_bytes_{case}", unit="bytes",
                                       read=peak, bench=speed.name, note="peak_bytes")]


def grpo_figures() -> list[Figure]:
    def row(name: str, unit: str, reach: str, read: Callable[[Run], list[float]],
            speedup: bool = True) -> Figure:
        return Figure(name, "3.7m", unit, {"trl": trl()}, {"trl": reach}, read, speedup=speedup,
                      settings="8 prompts x 8 samples, 16 + 32 tokens")

    return [row("grpo_step_f32", "s", ">= 2.2", rates),
            row("grpo_step_bf16", "s", ">= 3.5", rates),
            row("grpo_start", "s", ">= 15", first_line),
            row("grpo_rss", "bytes", "<= 0.2", peak, speedup=False),
            *long_grpo_figures()]


def long_grpo_figures() -> list[Figure]:
    """Returns the figures of a real model. The logits of all samples of a step take gigabytes, so
    that smaller micro-batches of TRL are a variant too."""
    variants = [Variant(f"{way.name}, micro-batch {size}", [*way.command, "--micro-batch", size])
                for size in ("4", "32") for way in trl(*GRPO_LONG)]

    def row(name: str, dtype: str, unit: str, reach: str, read: Callable[[Run], list[float]],
            note: str = "") -> Figure:
        return Figure(name, "qwen3-0.6b", unit, {"trl": variants}, {"trl": reach}, read,
                      "bf16" if dtype == "bf16" else "", speedup=not note, note=note,
                      bench=f"grpo_step_4x8_{dtype}", timeout_s=LONG_S, by_name=True,
                      settings="4 prompts x 8 samples, 64 + 256 tokens")

    return [row("grpo_step_4x8_f32", "f32", "s", "", rates),
            row("grpo_step_4x8_bf16", "bf16", "s", ">= 4.0", rates),
            row("grpo_rss_4x8", "bf16", "bytes", "<= 0.35", peak, note="peak_bytes")]


def all_figures() -> dict[str, Figure]:
    rows = [*generation_figures(), *training_figures(), *grpo_figures()]
    return {figure.name: figure for figure in rows}
