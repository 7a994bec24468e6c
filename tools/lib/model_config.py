"""A model's config.json, read strictly: what is missing or contradicts itself is refused, nothing is guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import json_file
from errors import UserError
from models import Latent, Model, every, full

_RIGHT = "give a model's config.json (num_hidden_layers, num_attention_heads, head_dim or hidden_size, ...)"
_LARGEST = 2**40
# Families whose files leave the window pattern to the code that reads them.
_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}


class _Config:
    def __init__(self, path: Path, fields: dict[str, Any]) -> None:
        self.where, self.fields = str(path), fields

    def refuse(self, what: str, right: str) -> UserError:
        return UserError(self.where, what, right)

    def size(self, *names: str) -> int | None:
        """The first of these fields that is there and not null, as a positive whole number."""
        found: int | None = None
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
                raise self.refuse(f"{name} is {value!r}", f"it must be a whole number from 1 to {_LARGEST:,}")
            if found is not None and value != found:
                raise self.refuse(
                    f"{names[0]} and {name} contradict each other ({found} and {value})", "leave one of them out"
                )
            found = value
        return found

    def need(self, *names: str) -> int:
        value = self.size(*names)
        if value is None:
            raise self.refuse(f"{names[0]} is missing", f"add it; {_RIGHT}")
        return value


def _windows(config: _Config, layers: int) -> tuple[int | None, ...]:
    fields = config.fields
    window = config.size("sliding_window")
    if fields.get("use_sliding_window") is False:
        window = None
    kinds = fields.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            count = len(kinds) if isinstance(kinds, list) else repr(kinds)
            raise config.refuse(f"layer_types has {count} entries for {layers} layers", "one entry a layer")
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise config.refuse(
                    f"layer_types names {kind!r}",
                    "only full_attention and sliding_attention keep a KV cache that is known here",
                )
        if "sliding_attention" in kinds and window is None:
            raise config.refuse(
                "layer_types has sliding_attention, but there is no sliding_window in use",
                "give sliding_window, or full_attention for every layer",
            )
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    if window is None:
        return full(layers)
    pattern = config.size("sliding_window_pattern", "_sliding_window_pattern")
    pattern = pattern or _FULL_EVERY.get(str(fields.get("model_type")))
    if pattern:
        return every(layers, window, pattern)
    first = fields.get("max_window_layers")
    if fields.get("use_sliding_window") is True and isinstance(first, int) and not isinstance(first, bool):
        return tuple(window if i >= first else None for i in range(layers))
    return (window,) * layers


def _latent(config: _Config) -> tuple[Latent, int, int] | None:
    d_c = config.size("kv_lora_rank")
    if d_c is None:
        return None
    d_rope = config.need("qk_rope_head_dim")
    nope, value = config.need("qk_nope_head_dim"), config.need("v_head_dim")
    return Latent(d_c, d_rope), nope + d_rope, value


def read_config(path: Path) -> Model:
    value = json_file.read(path, _RIGHT)
    if not isinstance(value, dict):
        raise UserError(str(path), f"holds {type(value).__name__}, not an object", _RIGHT)
    inner = value.get("text_config")
    if isinstance(inner, dict):  # a model for text and pictures keeps its text part here
        value = {"model_type": value.get("model_type")} | inner
    config = _Config(path, value)

    layers = config.need("num_hidden_layers", "n_layer", "num_layers")
    if layers > 10_000:
        raise config.refuse(f"num_hidden_layers is {layers}", "no model has over 10,000 layers")
    query_heads = config.need("num_attention_heads", "n_head")
    kv_heads = config.size("num_key_value_heads", "num_kv_heads")
    if kv_heads is None:
        kv_heads = 1 if value.get("multi_query") is True else query_heads
    context = config.size("max_position_embeddings", "n_positions", "n_ctx")
    name = str(value.get("_name_or_path") or value.get("model_type") or path.name)

    latent = _latent(config)
    if latent:
        shape, key_dim, value_dim = latent
        return Model(
            name, query_heads, query_heads, key_dim, value_dim, _windows(config, layers), context or 4096, shape
        ).check()
    dim = config.size("head_dim")
    if dim is None:
        hidden = config.need("hidden_size", "n_embd", "d_model")
        if hidden % query_heads:
            raise config.refuse(f"hidden_size {hidden} does not divide into {query_heads} heads", "give head_dim")
        dim = hidden // query_heads
    return Model(
        name, query_heads, kv_heads, dim, config.size("v_head_dim") or dim, _windows(config, layers), context or 4096
    ).check()
