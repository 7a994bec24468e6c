"""`tools/kvroof predict`: attention time of a model on a measured machine. --check, the proof, is predict_check.py."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from errors import OK, UserError
from memory import Request, gib, parse_size, sequences_that_fit, tokens_that_fit
from memory_command import add_model_flags, model_from
from models import STORAGE_BYTES, Model
from predict import WEIGHT_BYTES, Step, fit_for, fold_weights, known_dims, step
from predict_fit import Fit, LatentFit, Source
from rows import ResultFile, load
from sweep_table import duration


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
    parser.add_argument("--storage", choices=list(STORAGE_BYTES), help="default: f16; with --check: all that FILE has")
    parser.add_argument("--threads", choices=["1", "all"], help="default: all; with --check: both")
    parser.add_argument("--native", action="store_true", help="from the rows of native mode, where FILE has them")
    parser.add_argument("--weights", metavar="SIZE", help="bytes of weights read for every token, e.g. 8GiB")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--check",
        action="store_true",
        help="instead of a model: measure points that no sweep has on this machine (minutes), print the error of each; "
        "exit code 1 where the median is over 10 %% or the worst over 20 %%",
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


def _latent_line(model: Model, fit: Fit | LatentFit) -> list[str]:
    if not isinstance(fit, LatentFit):
        return []
    size = fold_weights(model) * WEIGHT_BYTES
    ns = model.layers * fit.folds(size, fit.roof(size))
    how = "as the measured steps read them" if fit.folds_measured else "no step was measured: read like plain f32 rows"
    return [
        f"  MLA, absorbed: the cache once for all {model.query_heads} heads, and W_UK and W_UV around it ({gib(size)} "
        f"a layer in f32, {how}): {duration(ns)} of every time above."
    ]


def _text(
    result: ResultFile,
    model: Model,
    args: argparse.Namespace,
    steps: list[Step],
    weights: int,
    fit: Fit | LatentFit,
) -> str:
    lines = [
        f"{model.name} on {result.cpu}, {args.threads} thread{'s' if args.threads == 'all' else ''}"
        + (f" ({result.all_threads})" if args.threads == "all" else "")
        + f", {args.storage}"
        + (", native mode" if args.native else "")
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
        lines.append(
            "  ~ beyond the sizes, groups of heads or dims that were measured: the nearest measured fraction is used, "
            "and nothing is promised."
        )
    if not known_dims(fit, model):
        lines.append(
            f"  Key and value dims of {model.key_dim} and {model.value_dim} were not measured: taken to do as others."
        )
    lines += _latent_line(model, fit)
    return "\n".join(lines + ["  " + line for line in _memory_lines(result, model, args, steps[-1].tokens, weights)])


def run(args: argparse.Namespace) -> int:
    result = load(args.machine)
    if args.check:
        from predict_check import run_check

        return run_check(result, args.storage, args.threads, args.native, args.json)
    args.storage, args.threads = args.storage or "f16", args.threads or "all"
    model = model_from(args)
    if not 1 <= args.batch <= 2**20:
        raise UserError("--batch", f"{args.batch} is out of range", "a whole number from 1 to 2^20")
    weights = parse_size(args.weights, "--weights") if args.weights is not None else 0
    fit = fit_for(Source(result, args.storage, args.threads, args.native), model)
    steps = [step(fit, model, args.storage, tokens, args.batch) for tokens in _contexts(args, model)]
    if args.json:
        print(
            json.dumps(
                {
                    "model": model.name,
                    "machine": result.path.name,
                    "storage": args.storage,
                    "threads": args.threads,
                    "mode": "native" if args.native else "reproducible",
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
