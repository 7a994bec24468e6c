"""`tools/kvroof memory`: the equation with its numbers, what fits, and the tables of the sources."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from errors import OK, UserError
from memory import LayerGroup, Memory, Request, gib, measure, parse_size, ring_rows, sequences_that_fit, tokens_that_fit
from model_config import read_config
from models import PRESETS, STORAGE_BYTES, Latent, Model, every, full, preset


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    which = parser.add_argument_group("which model (a preset, a config.json, or a shape)")
    which.add_argument("--model", metavar="NAME", help="a preset; tools/kvroof memory --list shows them")
    which.add_argument("--config", metavar="FILE", type=Path, help="a model's config.json")
    which.add_argument("--layers", type=int, metavar="L")
    which.add_argument("--query-heads", type=int, metavar="HQ", help="default: as many as KV heads")
    which.add_argument("--kv-heads", type=int, metavar="HKV")
    which.add_argument("--dim", type=int, metavar="D", help="key dim, and value dim unless --value-dim is given")
    which.add_argument("--value-dim", type=int, metavar="DV")
    which.add_argument("--window", type=int, metavar="W", help="visible rows, the query's own counted")
    which.add_argument("--full-every", type=int, metavar="N", help="with --window: every Nth layer sees everything")
    which.add_argument("--latent", type=int, metavar="DC", help="MLA: latent dim (with --rope)")
    which.add_argument("--rope", type=int, metavar="DR", help="MLA: rotated key dim")


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("memory", help="KV-cache size from the equation, for presets and any shape")
    add_model_flags(parser)
    parser.add_argument("--tokens", type=int, metavar="T", help="context length; default: the model's own")
    parser.add_argument("--batch", type=int, default=1, metavar="B")
    parser.add_argument("--storage", choices=list(STORAGE_BYTES), default="f16")
    parser.add_argument(
        "--chunk", type=int, default=1, metavar="N", help="new tokens of one call: a ring needs window + N rows"
    )
    parser.add_argument("--page", type=int, default=16, metavar="P", help="rows of a page")
    parser.add_argument("--kept", type=int, default=0, metavar="K", help="first tokens that stay beside the window")
    parser.add_argument("--fit", metavar="SIZE", help="how many tokens and sequences fit, e.g. 16GiB")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--list", action="store_true", help="all presets at their own context")
    parser.add_argument("--table", action="store_true", help="what the cache costs in four real models (f32)")
    parser.add_argument("--projections", action="store_true", help="projections with and without a cache")
    parser.set_defaults(run=run)


def model_from(args: argparse.Namespace) -> Model:
    shape = [
        name
        for name in ("layers", "kv_heads", "dim", "latent", "rope", "query_heads", "value_dim", "window", "full_every")
        if getattr(args, name) is not None
    ]
    given = [flag for flag, there in (("--model", args.model), ("--config", args.config), ("a shape", shape)) if there]
    if len(given) != 1:
        raise UserError(
            "which model",
            f"{' and '.join(given)} given" if given else "none given",
            "give one of --model NAME, --config FILE, or --layers --kv-heads --dim",
        )
    if args.model:
        return preset(args.model)
    if args.config:
        return read_config(args.config)
    return _model_from_shape(args)


def _model_from_shape(args: argparse.Namespace) -> Model:
    if (args.latent is None) != (args.rope is None):
        raise UserError("the shape", "--latent and --rope belong together", "give both or neither")
    heads = args.kv_heads if args.kv_heads is not None else 1 if args.latent else None
    dim = args.dim if args.dim is not None else args.latent + args.rope if args.latent else None
    if args.layers is None or heads is None or dim is None:
        flags = (("--layers", args.layers), ("--kv-heads", heads), ("--dim", dim))
        missing = [flag for flag, value in flags if value is None]
        raise UserError("the shape", f"{' and '.join(missing)} missing", "give --layers --kv-heads --dim")
    if not 1 <= args.layers <= 10_000:
        raise UserError("--layers", f"{args.layers} layers", "a number from 1 to 10000")
    if args.full_every is not None and (args.full_every < 1 or args.window is None):
        raise UserError(
            "--full-every",
            f"{args.full_every} given" + ("" if args.window else " without --window"),
            "every Nth layer, N from 1, beside --window",
        )
    windows = full(args.layers) if args.window is None else (args.window,) * args.layers
    if args.full_every:
        windows = every(args.layers, args.window, args.full_every)
    latent = Latent(args.latent, args.rope) if args.latent is not None else None
    query_heads = args.query_heads if args.query_heads is not None else heads
    value_dim = args.value_dim if args.value_dim is not None else dim
    return Model("this shape", query_heads, heads, dim, value_dim, windows, 4096, latent).check()


def request_from(args: argparse.Namespace, model: Model) -> Request:
    tokens = args.tokens if args.tokens is not None else model.context
    for flag, value, least in (
        ("--tokens", tokens, 1),
        ("--batch", args.batch, 1),
        ("--chunk", args.chunk, 1),
        ("--page", args.page, 1),
        ("--kept", args.kept, 0),
    ):
        if not least <= value <= 2**40:
            raise UserError(flag, f"{value} is out of range", f"a whole number from {least} to 2^40")
    return Request(model, tokens, args.batch, args.storage, args.chunk, args.page, args.kept)


def _equation(r: Request, group: LayerGroup) -> list[str]:
    model, size = r.model, STORAGE_BYTES[r.storage]
    row, batch = model.layer_row_bytes(r.storage), f"{r.batch} x " if r.batch > 1 else ""
    head = f"{group.layers} x {batch}{group.rows}"
    words = f"layers x {'batch x ' if batch else ''}{'tokens' if group.window is None else 'rows'}"
    if model.latent and r.storage != "int8":
        form, numbers = (
            "(latent + rotated key) x bytes",
            f"({model.latent.latent_dim} + {model.latent.rope_dim}) x {size}",
        )
    elif model.latent:
        form = "(latent + scales + rotated key)"
        scales = row - model.latent.latent_dim - 2 * model.latent.rope_dim
        numbers = f"({model.latent.latent_dim} + {scales} + {2 * model.latent.rope_dim})"
    elif r.storage == "int8":
        form, numbers = (
            "KV heads x (K + V + two scales)",
            f"{model.kv_heads} x ({model.key_dim} + {model.value_dim} + 8)",
        )
    elif model.key_dim == model.value_dim:
        words, head = f"2 x {words}", f"2 x {head}"
        form, numbers = "KV heads x dim x bytes", f"{model.kv_heads} x {model.key_dim} x {size}"
    else:
        form, numbers = (
            "KV heads x (key dim + value dim) x bytes",
            f"{model.kv_heads} x ({model.key_dim} + {model.value_dim}) x {size}",
        )
    which = (
        "every layer" if group.layers == model.layers else "full layers" if group.window is None else "window layers"
    )
    note = (
        ""
        if group.window is None
        else f" of window {group.window}, rows = min(tokens, window)" + (" + kept" if r.kept else "")
    )
    return [
        f"  {which}{note}:",
        f"    bytes = {words} x {form}",
        f"          = {head} x {numbers}",
        f"          = {group.bytes:,}",
    ]


def text(r: Request, m: Memory, budget: int | None) -> str:
    model = r.model
    many = f", {r.batch} sequences" if r.batch > 1 else ""
    lines = [
        f"KV cache of {model.name}: {r.storage}, {r.tokens:,} tokens{many}"
        + (f"  ({model.note})" if model.note else "")
    ]
    for group in m.groups:
        lines += [""] + _equation(r, group)
    rows = [
        (
            "one more token",
            f"{m.per_token:,} bytes"
            + (" until the windows are full" if len(m.groups) > 1 or m.groups[0].window else ""),
        ),
        ("one sequence", gib(m.per_sequence)),
    ]
    if r.batch > 1:
        rows.append((f"{r.batch} sequences", gib(m.ideal)))
    rows.append((f"in pages of {r.page}", gib(m.pages)))
    if any(group.window for group in m.groups):
        held = sorted({ring_rows(r.tokens, g.window, r.chunk, r.kept) for g in m.groups if g.window})
        rows += [
            (f"as a ring of window + {r.chunk}", f"{gib(m.ring)}, {', '.join(map(str, held))} rows in a window layer"),
            ("full pages in every layer", gib(m.full_pages)),
        ]
    dense = measure(replace(r, model=model.as_dense())).ideal
    if dense != m.ideal:
        rows.append(("with K and V per query head", f"{gib(dense)}, {dense / m.ideal:.1f}x"))
    if not model.latent:
        rows.append(
            (
                "separate caches",
                f"{model.layers} layers x {model.kv_heads} heads = {model.layers * model.kv_heads} per sequence",
            )
        )
    others = [f"{s} {gib(measure(replace(r, storage=s)).ideal)}" for s in STORAGE_BYTES if s not in (r.storage, "bf16")]
    rows.append(("at other storage", ", ".join(others)))
    if budget is not None:
        tokens = tokens_that_fit(r, budget)
        fits = "any number of tokens (all layers have a window)" if tokens is None else f"{tokens:,} tokens"
        rows.append(
            (
                f"fits {gib(budget)}",
                f"{fits} for {'each of ' + str(r.batch) + ' sequences' if r.batch > 1 else 'one sequence'}; "
                f"or {sequences_that_fit(r, budget):,} sequences of {r.tokens:,} tokens",
            )
        )
    width = max(len(name) for name, _ in rows)
    return "\n".join(
        lines
        + [""]
        + [f"  {name:<{width}}  {value}" for name, value in rows]
        + ["", "  Without weights, activations and allocator overhead. GiB = 2^30 bytes, GB = 1e9."]
    )


def as_json(r: Request, m: Memory, budget: int | None) -> str:
    value = {
        "model": r.model.name,
        "storage": r.storage,
        "tokens": r.tokens,
        "batch": r.batch,
        "chunk": r.chunk,
        "page": r.page,
        "kept": r.kept,
        "bytes_per_token": m.per_token,
        "bytes_per_sequence": m.per_sequence,
        "bytes": m.ideal,
        "bytes_ring": m.ring,
        "bytes_pages": m.pages,
        "bytes_full_pages": m.full_pages,
        "layers": [
            {"window": g.window or "all", "layers": g.layers, "rows": g.rows, "bytes": g.bytes} for g in m.groups
        ],
    }
    if budget is not None:
        value |= {
            "budget_bytes": budget,
            "tokens_that_fit": tokens_that_fit(r, budget),
            "sequences_that_fit": sequences_that_fit(r, budget),
        }
    return json.dumps(value, indent=1)


def preset_list(storage: str) -> str:
    lines = [
        f"  {'--model':<17} {'layers':>6} {'Hq/Hkv':>8} {'Dk/Dv':>8}  {'bytes/token':>11} {'context':>8}"
        f"  {'cache at that context':<24} window",
        "  " + "-" * 107,
    ]
    for name, model in PRESETS.items():
        m = measure(Request(model, model.context, storage=storage))
        windows = sorted({w for w in model.windows if w})
        counted = f"{windows[0]} in {sum(w is not None for w in model.windows)} of {model.layers}" if windows else ""
        dims = "MLA 512+64" if model.latent else f"{model.key_dim}/{model.value_dim}"
        lines.append(
            f"  {name:<17} {model.layers:>6} {f'{model.query_heads}/{model.kv_heads}':>8} {dims:>8}"
            f"  {m.per_token:>11,} {model.context:>8}  {gib(m.ideal):<24} {counted}".rstrip()
        )
    return "\n".join([f"KV cache of one sequence, {storage}", ""] + lines)


def run(args: argparse.Namespace) -> int:
    from memory_tables import cache_table, projection_table

    parts = []
    if args.table:
        parts.append(cache_table())
    if args.projections:
        parts.append(projection_table())
    if args.list:
        parts.append(preset_list(args.storage))
    if parts:
        print("\n\n".join(parts))
        return OK
    request = request_from(args, model_from(args))
    budget = parse_size(args.fit, "--fit") if args.fit is not None else None
    print((as_json if args.json else text)(request, measure(request), budget))
    return OK
