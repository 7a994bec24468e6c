"""What of a model decides the size of its KV cache, and the presets.

Dimensions are those of the models' own config.json; the context is the one their makers state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from errors import UserError

STORAGE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}
SCALE_BYTES = 4  # int8: one float scale per row and KV head, for K and for V
LATENT_GROUP = 128  # int8 MLA row: one float scale per 128 latent elements, the rotated key stays bf16


@dataclass(frozen=True)
class Latent:
    """MLA: one row a token, shared by all heads."""

    latent_dim: int  # d_c
    rope_dim: int  # d_rope


@dataclass(frozen=True)
class Model:
    name: str
    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    windows: tuple[int | None, ...]  # one entry a layer; None is unlimited
    context: int  # the longest the model is made for
    latent: Latent | None = None
    note: str = ""

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def group(self) -> int:
        return self.query_heads // self.kv_heads

    def layer_groups(self) -> list[tuple[int | None, int]]:
        """(window, how many layers), full layers first, then by falling window."""
        counts = {window: self.windows.count(window) for window in set(self.windows)}
        return sorted(counts.items(), key=lambda item: (item[0] is not None, -(item[0] or 0)))

    def layer_row_bytes(self, storage: str) -> int:
        """Bytes that one token adds in one layer."""
        size = STORAGE_BYTES[storage]
        if self.latent:
            d_c, d_rope = self.latent.latent_dim, self.latent.rope_dim
            if storage == "int8":
                return d_c + -(-d_c // LATENT_GROUP) * SCALE_BYTES + 2 * d_rope
            return (d_c + d_rope) * size
        scales = 2 * SCALE_BYTES if storage == "int8" else 0
        return self.kv_heads * ((self.key_dim + self.value_dim) * size + scales)

    def as_dense(self) -> "Model":
        """The same model with one plain K and V row per query head: what GQA and MLA are measured against."""
        return replace(self, kv_heads=self.query_heads, latent=None)

    def check(self) -> "Model":
        sizes = {
            "layers": self.layers,
            "query heads": self.query_heads,
            "KV heads": self.kv_heads,
            "key dim": self.key_dim,
            "value dim": self.value_dim,
            "context": self.context,
        }
        if self.latent:
            sizes |= {"latent dim": self.latent.latent_dim, "rope dim": self.latent.rope_dim}
        for what, value in sizes.items():
            if not 1 <= value <= 2**40:
                raise UserError(self.name, f"{what} is {value}", "sizes are whole numbers from 1")
        if self.query_heads % self.kv_heads:
            raise UserError(
                self.name,
                f"{self.query_heads} query heads cannot share {self.kv_heads} KV heads",
                "query heads must be a multiple of KV heads",
            )
        for window in self.windows:
            if window is not None and window < 1:
                raise UserError(
                    self.name,
                    f"a window of {window}",
                    "W counts the query itself and is at least 1; leave it out for unlimited",
                )
        return self


def full(layers: int) -> tuple[int | None, ...]:
    return (None,) * layers


def every(layers: int, window: int, full_every: int) -> tuple[int | None, ...]:
    """Hybrid windows: layer numbers full_every, 2*full_every, ... (from 1) see everything, the others a window."""
    return tuple(None if (i + 1) % full_every == 0 else window for i in range(layers))


def _plain(name: str, layers: int, heads: str, dim: int, context: int, note: str = "") -> Model:
    query_heads, kv_heads = map(int, heads.split("/"))
    return Model(name, query_heads, kv_heads, dim, dim, full(layers), context, note=note)


def _hybrid(
    name: str, layers: int, heads: str, dim: int, context: int, window: int, full_every: int, note: str
) -> Model:
    return replace(_plain(name, layers, heads, dim, context, note), windows=every(layers, window, full_every))


def _mla(name: str, layers: int, heads: int, context: int) -> Model:
    return Model(
        name,
        heads,
        heads,
        192,
        128,
        full(layers),
        context,
        Latent(512, 64),
        "MLA: latent 512 + rotated key 64; K of a head is 128 + 64, V 128",
    )


PRESETS: dict[str, Model] = {
    "gpt2-small": _plain("GPT-2 Small", 12, "12/12", 64, 1024),
    "llama2-7b": _plain("Llama-2 7B", 32, "32/32", 128, 4096),
    "llama2-70b": _plain("Llama-2 70B", 80, "64/8", 128, 4096),
    "llama3-8b": _plain("Llama-3 8B", 32, "32/8", 128, 8192, "3.1 and later: the same cache, context 131072"),
    "llama3-70b": _plain("Llama-3 70B", 80, "64/8", 128, 8192, "3.1 and later: the same cache, context 131072"),
    "mistral-7b": replace(
        _plain("Mistral 7B v0.1", 32, "32/8", 128, 32768, "window 4096 in every layer"), windows=(4096,) * 32
    ),
    "gemma2-27b": _hybrid("Gemma-2 27B", 46, "32/16", 128, 8192, 4096, 2, "every 2nd layer full"),
    "gemma3-270m": _hybrid("Gemma-3 270M", 18, "4/1", 256, 32768, 512, 6, "5 window layers to 1 full"),
    "gemma3-1b": _hybrid("Gemma-3 1B", 26, "4/1", 256, 32768, 512, 6, "5 window layers to 1 full"),
    "gemma3-4b": _hybrid("Gemma-3 4B", 34, "8/4", 256, 131072, 1024, 6, "5 window layers to 1 full"),
    "gemma3-12b": _hybrid("Gemma-3 12B", 48, "16/8", 256, 131072, 1024, 6, "5 window layers to 1 full"),
    "gemma3-27b": _hybrid("Gemma-3 27B", 62, "32/16", 128, 131072, 1024, 6, "5 window layers to 1 full"),
    "qwen3-0.6b": _plain("Qwen3 0.6B", 28, "16/8", 128, 40960),
    "qwen3-1.7b": _plain("Qwen3 1.7B", 28, "16/8", 128, 40960),
    "qwen3-4b": _plain("Qwen3 4B", 36, "32/8", 128, 40960),
    "qwen3-8b": _plain("Qwen3 8B", 36, "32/8", 128, 40960),
    "qwen3-14b": _plain("Qwen3 14B", 40, "40/8", 128, 40960),
    "qwen3-32b": _plain("Qwen3 32B", 64, "64/8", 128, 40960),
    "qwen3-30b-a3b": _plain("Qwen3 30B-A3B", 48, "32/4", 128, 40960, "mixture of experts: the cache does not grow"),
    "qwen3-235b-a22b": _plain("Qwen3 235B-A22B", 94, "64/4", 128, 40960, "mixture of experts: the cache does not grow"),
    "gpt-oss-20b": _hybrid(
        "gpt-oss 20B", 24, "64/8", 64, 131072, 128, 2, "every 2nd layer full; sink logits need no rows"
    ),
    "gpt-oss-120b": _hybrid(
        "gpt-oss 120B", 36, "64/8", 64, 131072, 128, 2, "every 2nd layer full; sink logits need no rows"
    ),
    "deepseek-v2-lite": _mla("DeepSeek-V2-Lite", 27, 16, 32768),
    "deepseek-v3": _mla("DeepSeek-V3", 61, 128, 131072),
}


def preset(name: str) -> Model:
    wanted = name.lower().replace("_", "-").replace(" ", "-")
    if wanted not in PRESETS:
        raise UserError(f"--model {name}", "no such preset", "one of " + ", ".join(PRESETS))
    return PRESETS[wanted]
