"""`tools/kvroof predict`: attention time of a model on a measured machine; --check measures a sample."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import journal
from errors import OK, UserError
from headline import plain_decode
from memory import Request, gib, parse_size, sequences_that_fit, tokens_that_fit
from memory_command import add_model_flags, model_from
from models import STORAGE_BYTES, Model
from predict import Checked, Fit, Step, check, step
from rows import ResultFile, load
from sweep_table import duration

CHECKED = frozenset((2048, 16384))  # context lengths that --check leaves out of the fit and measures


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "predict", help="from a result file and a model: attention time per token over the context"
    )
    parser.add_argument("--machine", type=Path, metavar="FILE", required=True, help="a result file")
    add_model_flags(parser)
    parser.add_argument(
        "--tokens", type=int, nargs="+", metavar="T", help="context lengths; default: 512 up to the model's own"
    )
    parser.add_argument("--batch", type=int, default=1, metavar="B")
    parser.add_argument("--storage", choices=list(STORAGE_BYTES), default="f16")
    parser.add_argument("--threads", choices=["1", "all"], default="all")
    parser.add_argument("--weights", metavar="SIZE", help="bytes of weights read for every token, e.g. 8GiB")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--check", action="store_true", help="measure a sample on this machine (minutes) and print the error"
    )
    parser.set_defaults(run=run)


def _contexts(args: argparse.Namespace, model: Model) -> list[int]:
    if args.tokens:
        for tokens in args.tokens:
            if not 1 <= tokens <= 2**40:
                raise UserError("--tokens", f"{tokens} is out of range", "whole numbers from 1 to 2^40")
        return sorted(set(args.tokens))
    lengths = []
    tokens = 512
    while tokens < model.context:
        lengths.append(tokens)
        tokens *= 2
    return lengths + [model.context]


def _model(args: argparse.Namespace) -> Model:
    model = model_from(args)
    if model.latent:
        raise UserError(model.name, "MLA rows are not in result files yet", "choose a model with MHA, GQA or MQA")
    return model


def _memory_lines(result: ResultFile, model: Model, args: argparse.Namespace, longest: int, weights: int) -> list[str]:
    memory = result.fact("memory_total_bytes")
    if not memory:
        return ["the machine's memory is not known: what fits is not computed"]
    room = memory - weights
    if room <= 0:
        return [f"the weights alone ({gib(weights)}) fill the machine's {gib(memory)}"]
    request = Request(model, longest, args.batch, args.storage)
    tokens = tokens_that_fit(request, room)
    what = "without weights" if not weights else f"beside {gib(weights)} of weights"
    lines = [
        f"of the machine's {gib(memory)}, {what}: "
        + ("any context fits" if tokens is None else f"{tokens:,} tokens")
        + (f" for each of {args.batch} sequences" if args.batch > 1 else ""),
        f"or {sequences_that_fit(request, room):,} sequences of {longest:,} tokens",
    ]
    return lines


def _text(result: ResultFile, model: Model, args: argparse.Namespace, steps: list[Step], weights: int, fit: Fit) -> str:
    lines = [
        f"{model.name} on {result.cpu}, {args.threads} thread{'s' if args.threads == 'all' else ''}"
        + (f" ({result.all_threads})" if args.threads == "all" else "")
        + f", {args.storage}"
        + (f", {args.batch} sequences" if args.batch > 1 else ""),
        "Attention of all layers for one new token" + (" of every sequence:" if args.batch > 1 else ":"),
        "",
        f"  {'T':>8}  {'time':>9}  {'bytes bound':>11}  {'compute bound':>13}  {'cache read':>22}"
        f"  {'tokens/s at most':>16}",
    ]
    beyond = False
    for s in steps:
        seconds = (s.ns + (weights / fit.roof(weights) if weights else 0)) / 1e9
        beyond |= not s.measured
        lines.append(
            f"  {s.tokens:>8}  {duration(s.ns):>9}{' ' if s.measured else '~'} {duration(s.bytes_ns):>11}"
            f"{'*' if s.bound == 'bytes' else ' '} {duration(s.compute_ns):>13}{'*' if s.bound == 'compute' else ' '}"
            f" {gib(s.bytes):>22}  {args.batch / seconds:>16.1f}"
        )
    lines += [
        "",
        "  * the roof that binds. Tokens/s: attention"
        + (f" and {gib(weights)} of weights" if weights else " alone; --weights SIZE adds the weights")
        + ", nothing else.",
    ]
    if beyond:
        lines.append("  ~ beyond the sizes or groups that were measured: the nearest measured fraction is used.")
    return "\n".join(lines + ["  " + line for line in _memory_lines(result, model, args, steps[-1].tokens, weights)])


def _measure_sample(storage: str, threads: str) -> ResultFile:
    import sweep_command

    with tempfile.TemporaryDirectory(prefix="kvroof-check-") as folder:
        path, log = Path(folder) / "check.journal", Path(folder) / "check.log"
        lengths = "|".join(str(T) for T in sorted(CHECKED))
        wanted = (
            f"^decode/.*/storage:{storage}/.*/B:1/n:1/T:({lengths})/W:all/cache:cold/impl:kvroof/.*threads:{threads}/"
        )
        code = sweep_command.run_benchmark(
            [
                str(sweep_command.benchmark_program()),
                "--preset=full",
                f"--journal={path}",
                f"--benchmark_filter={wanted}",
            ],
            log,
        )
        if code != OK:
            raise sweep_command.failure(code, log, 0)
        return journal.assemble(Path(folder) / "check.json", journal.read(path))


def _check_text(checked: list[Checked]) -> str:
    errors = [abs(c.error) for c in checked]
    lines = [f"  {'row':<28} {'predicted':>10} {'measured':>10} {'error':>8}"]
    for c in checked:
        name = f"{c.row.shape['name']} {c.row.raw['storage']} T {c.row.get('T')}"
        lines.append(f"  {name:<28} {duration(c.predicted_ns):>10} {duration(c.row.ns):>10} {c.error * 100:>+7.1f}%")
    return "\n".join(
        lines
        + [
            "",
            f"  error: median {statistics.median(errors) * 100:.1f} %, worst {max(errors) * 100:.1f} %, "
            "on points that the fit has not seen, the roof measured again beside each",
        ]
    )


def run(args: argparse.Namespace) -> int:
    result = load(args.machine)
    if args.check:
        fit = Fit(result, args.storage, args.threads, CHECKED)
        sample = _measure_sample(args.storage, args.threads)
        checked = check(fit, plain_decode(sample))
        if not checked:
            raise UserError("predict --check", "no point could be measured here", "see why with tools/kvroof sweep")
        print(_check_text(checked))
        return OK
    model = _model(args)
    if not 1 <= args.batch <= 2**20:
        raise UserError("--batch", f"{args.batch} is out of range", "a whole number from 1 to 2^20")
    weights = parse_size(args.weights, "--weights") if args.weights is not None else 0
    fit = Fit(result, args.storage, args.threads)
    steps = [step(fit, model, args.storage, tokens, args.batch) for tokens in _contexts(args, model)]
    if args.json:
        print(
            json.dumps(
                {
                    "model": model.name,
                    "machine": result.path.name,
                    "storage": args.storage,
                    "threads": args.threads,
                    "batch": args.batch,
                    "weights_bytes": weights,
                    "steps": [
                        {
                            "tokens": s.tokens,
                            "ns": s.ns,
                            "bytes_bound_ns": s.bytes_ns,
                            "compute_bound_ns": s.compute_ns,
                            "bytes": s.bytes,
                            "bound": s.bound,
                            "within_measured": s.measured,
                        }
                        for s in steps
                    ],
                },
                indent=1,
            )
        )
    else:
        print(_text(result, model, args, steps, weights, fit))
    return OK
