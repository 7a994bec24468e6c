"""The tables of the texts that this project grew from: the cost of the cache in real models, and what it saves.

They count f32 (4 bytes) and one KV head per query head unless said otherwise; sizes are binary and named so.
"""

from __future__ import annotations

from dataclasses import replace

from memory import Request, measure
from models import Latent, Model, full


def _heads(name: str, layers: int, query_heads: int, kv_heads: int, dim: int) -> Model:
    return Model(name, query_heads, kv_heads, dim, dim, full(layers), 1)


COSTS = (  # model as the sources have it, context
    (_heads("GPT-2 Small", 12, 12, 12, 64), 1024),
    (_heads("LLaMA-7B", 32, 32, 32, 128), 4096),
    (_heads("LLaMA-70B", 80, 64, 64, 128), 4096),
    (_heads("DeepSeek-V3", 61, 128, 128, 128), 128_000),
)


def _size(size: int, digits: int = 1) -> str:
    return f"{size / 2**20:.0f} MiB" if size < 2**30 else f"{size / 2**30:.{digits}f} GiB"


def cache_table() -> str:
    lines = [
        "KV cache memory of real models, f32, one KV head per query head",
        "",
        f"  {'model':<14}  layers  heads  dim  tokens   bytes/token  full cache",
        f"  {'-' * 14}  ------  -----  ---  ------   -----------  ----------",
    ]
    for model, tokens in COSTS:
        m = measure(Request(model, tokens, storage="f32"))
        lines.append(
            f"  {model.name:<14}  {model.layers:>6}  {model.kv_heads:>5}  {model.key_dim:>3}  {tokens:>6}"
            f"   {m.per_token:>11,}  {_size(m.ideal)}"
        )
    real = measure(Request(_heads("", 80, 64, 8, 128), 4096, storage="f32"))
    mla = Model("", 128, 128, 192, 128, full(61), 1, Latent(512, 64))
    half = measure(Request(mla, 128_000, storage="f16"))
    dense_floats, latent_floats = 128 * 128 * 2, 512 + 64
    small = COSTS[0][0]
    toy = Model("", 8, 8, 8, 8, full(1), 1)
    toy_floats = measure(Request(toy, 1, storage="f32")).ideal // 4
    toy_latent = measure(Request(replace(toy, latent=Latent(16, 8)), 1, storage="f32")).ideal // 4
    return "\n".join(
        lines
        + [
            "",
            f"  LLaMA-70B has 8 KV heads: {real.per_token:,} bytes/token, {_size(real.ideal, 2)} at 4096, 8x less.",
            f"  DeepSeek-V3 stores a latent of 512 and a rotated key of 64: {latent_floats} floats a layer and token",
            f"  against {dense_floats:,}, {dense_floats / latent_floats:.1f}x less; 128,000 tokens in 2 bytes: "
            f"{_size(half.ideal)}.",
            f"  A toy of 8 heads x 8 with latent 16 and key 8: {toy_floats} against {toy_latent} floats, "
            f"{toy_floats / toy_latent:.1f}x.",
            f"  {small.name}, {small.layers} layers of {small.kv_heads} heads, keeps {small.layers * small.kv_heads} "
            "caches for each sequence.",
        ]
    )


def projections(length: int) -> tuple[int, int]:
    """K/V projections to generate `length` tokens: without a cache step t projects t rows, with one it projects 1."""
    return sum(range(1, length + 1)), length


def projection_table() -> str:
    lines = [
        "K/V projections, without and with a cache",
        "",
        f"  {'tokens':>6}  {'without':>10}  {'with':>5}  {'saved':>8}",
        "  ------  ----------  -----  --------",
    ]
    for length in (10, 100, 1000, 4096):
        without, cached = projections(length)
        lines.append(f"  {length:>6}  {without:>10}  {cached:>5}  {without / cached:>7.1f}x")
    six, cached = projections(6)
    floats = measure(Request(_heads("", 1, 1, 1, 4), 6, storage="f32")).ideal // 4
    return "\n".join(
        lines
        + [
            "",
            f"  Six tokens: {six} projections without, {cached} with a cache; it then holds 6 entries x 4 dims x 2 = "
            f"{floats} floats.",
            "  The cache divides the projections by (n+1)/2. The scoring stays: a new query still meets every row.",
        ]
    )
