#!/usr/bin/env python3
"""tools/kvroof memory: every figure of the sources, the known cases of other calculators, and what it must refuse."""

from __future__ import annotations

import json
import subprocess
import sys
import unittest
from typing import Any

from support import CLI, CommandTest

from model_config import read_config
from models import PRESETS


class Memory(CommandTest):
    def figures(self, *arguments: object) -> dict[str, Any]:
        return json.loads(self.succeeds("memory", "--json", *arguments))

    def shape(self, layers: int, kv_heads: int, dim: int, *more: object) -> dict[str, Any]:
        return self.figures("--layers", layers, "--kv-heads", kv_heads, "--dim", dim, *more)

    def test_equation_of_the_source(self) -> None:
        self.assertEqual(self.shape(2, 2, 4, "--tokens", 10)["bytes"], 640)
        self.assertEqual(self.shape(2, 2, 4, "--tokens", 20)["bytes"], 1280)
        self.assertEqual(self.shape(32, 8, 128, "--tokens", 4096)["bytes"], 512 * 2**20)

    def test_equation_is_shown_with_its_numbers(self) -> None:
        out = self.succeeds("memory", "--layers", 32, "--kv-heads", 8, "--dim", 128, "--tokens", 4096)
        self.assertIn("2 x layers x tokens x KV heads x dim x bytes", out)
        self.assertIn("2 x 32 x 4096 x 8 x 128 x 2", out)
        self.assertIn("536,870,912", out)

    def test_real_models_at_f32(self) -> None:
        for model, tokens, per_token, gib in (
            ("gpt2-small", 1024, 73_728, 72 / 1024),
            ("llama2-7b", 4096, 1_048_576, 4.0),
            ("llama2-70b", 4096, 655_360, 2.5),
        ):
            with self.subTest(model):
                found = self.figures("--model", model, "--tokens", tokens, "--storage", "f32")
                self.assertEqual(found["bytes_per_token"], per_token)
                self.assertEqual(found["bytes"], gib * 2**30)
        flat = self.shape(80, 64, 128, "--tokens", 4096, "--storage", "f32")
        self.assertEqual((flat["bytes_per_token"], flat["bytes"] / 2**30), (5_242_880, 20.0))
        v3 = self.shape(61, 128, 128, "--tokens", 128_000, "--storage", "f32")
        self.assertEqual((v3["bytes_per_token"], f"{v3['bytes'] / 2**30:.1f}"), (7_995_392, "953.1"))

    def test_mla(self) -> None:
        v3 = self.figures("--model", "deepseek-v3", "--tokens", 128_000)
        self.assertEqual(f"{v3['bytes'] / 2**30:.1f}", "8.4")
        self.assertEqual(self.figures("--model", "deepseek-v3", "--tokens", 32768)["bytes"], 2196 * 2**20)
        self.assertEqual(self.figures("--model", "deepseek-v2-lite")["bytes_per_token"], 31_104)
        toy = self.figures("--layers", 1, "--latent", 16, "--rope", 8, "--tokens", 1, "--storage", "f32")
        self.assertEqual(toy["bytes"] // 4, 24)
        self.assertEqual(self.shape(1, 8, 8, "--tokens", 1, "--storage", "f32")["bytes"] // 4, 128)
        self.assertEqual(
            self.figures("--layers", 1, "--latent", 512, "--rope", 64, "--tokens", 1, "--storage", "int8")["bytes"], 656
        )
        dense = self.succeeds("memory", "--model", "deepseek-v2-lite", "--tokens", 1)
        self.assertIn(f"{276_480 / 31_104:.1f}x", dense)

    def test_kv_heads_not_query_heads(self) -> None:
        found = self.figures("--model", "llama3-8b", "--tokens", 8192)
        self.assertEqual((found["bytes_per_token"], found["bytes"]), (131_072, 2**30))

    def test_int8_counts_its_scales(self) -> None:
        self.assertEqual(self.shape(1, 8, 128, "--tokens", 1, "--storage", "int8")["bytes"], 8 * (128 + 128 + 8))

    def test_window_layers(self) -> None:
        gemma = self.figures("--model", "gemma3-1b", "--tokens", 32768)
        self.assertEqual(gemma["bytes"], 139 * 2**20)
        self.assertEqual(gemma["bytes_full_pages"], 832 * 2**20)
        self.assertEqual([(g["window"], g["layers"]) for g in gemma["layers"]], [("all", 4), (512, 22)])
        self.assertEqual(self.shape(46, 16, 128, "--tokens", 8192)["bytes"], 2944 * 2**20)

    def test_all_counts_of_a_hybrid_model(self) -> None:
        found = self.figures("--model", "gpt-oss-120b", "--tokens", 131072, "--chunk", 512)
        self.assertEqual(found["bytes"], 4_836_556_800)
        self.assertEqual(found["bytes_full_pages"], 9 * 2**30)
        self.assertEqual(found["bytes_ring"], 18 * 131072 * 2048 + 18 * (128 + 512) * 2048)
        self.assertEqual(found["bytes_pages"], found["bytes"])

    def test_ring_needs_window_and_chunk(self) -> None:
        out = self.succeeds(
            "memory", "--layers", 1, "--kv-heads", 1, "--dim", 64, "--window", 512, "--chunk", 512, "--tokens", 9999
        )
        self.assertIn("1024 rows", out)
        found = self.shape(1, 1, 64, "--window", 512, "--chunk", 512, "--tokens", 9999)
        self.assertEqual((found["bytes"], found["bytes_ring"]), (512 * 256, 1024 * 256))

    def test_pages_hold_every_visible_row(self) -> None:
        for tokens, window, kept, page in (
            (1, None, 0, 16),
            (16, None, 0, 16),
            (17, None, 0, 16),
            (100, 5, 0, 4),
            (100, 1, 0, 4),
            (101, 4, 0, 4),
            (100, 8, 3, 4),
            (100, 99, 3, 4),
            (64, 16, 16, 16),
            (65, 16, 17, 16),
        ):
            with self.subTest(tokens=tokens, window=window, kept=kept, page=page):
                visible = {j for j in range(tokens) if window is None or tokens - 1 - j < window or j < kept}
                more = () if window is None else ("--window", window)
                found = self.shape(1, 1, 1, "--tokens", tokens, "--page", page, "--kept", kept, *more)
                self.assertEqual(found["bytes"], len(visible) * 4)
                self.assertEqual(found["bytes_pages"], len({j // page for j in visible}) * page * 4)

    def test_units_never_share_a_name(self) -> None:
        out = self.succeeds("memory", "--model", "deepseek-v3", "--tokens", 32768)
        self.assertIn("2.1445 GiB (2.3027 GB)", out)

    def test_what_fits(self) -> None:
        found = self.figures("--model", "llama3-8b", "--fit", "16GiB", "--tokens", 8192)
        self.assertEqual((found["tokens_that_fit"], found["sequences_that_fit"]), (131_072, 16))
        self.assertLess(self.figures("--model", "llama3-8b", "--fit", "16GB")["tokens_that_fit"], 131_072)
        hybrid = self.figures("--model", "gemma3-1b", "--fit", "1GiB", "--batch", 3)
        for tokens, fits in ((hybrid["tokens_that_fit"], True), (hybrid["tokens_that_fit"] + 1, False)):
            self.assertEqual(
                self.figures("--model", "gemma3-1b", "--tokens", tokens, "--batch", 3)["bytes"] <= 2**30, fits
            )
        self.assertIsNone(self.figures("--model", "mistral-7b", "--fit", "1GiB")["tokens_that_fit"])

    def test_table_of_the_source(self) -> None:
        out = self.succeeds("memory", "--table")
        for words in (
            "73,728  72 MiB",
            "1,048,576  4.0 GiB",
            "5,242,880  20.0 GiB",
            "7,995,392  953.1 GiB",
            "655,360 bytes/token, 2.50 GiB",
            "576 floats",
            "32,768, 56.9x",
            "8.4 GiB",
            "128 against 24 floats, 5.3x",
            "144 caches",
        ):
            self.assertIn(words, out)

    def test_projections_of_the_source(self) -> None:
        lines = [line.split() for line in self.succeeds("memory", "--projections").splitlines()]
        for row in (
            ["10", "55", "10", "5.5x"],
            ["100", "5050", "100", "50.5x"],
            ["1000", "500500", "1000", "500.5x"],
            ["4096", "8390656", "4096", "2048.5x"],
        ):
            self.assertIn(row, lines)
        out = self.succeeds("memory", "--projections")
        self.assertIn("21 projections without, 6 with", out)
        self.assertIn("48 floats", out)

    def test_exercise_two_layers_two_heads(self) -> None:
        self.assertEqual(self.shape(2, 2, 4, "--tokens", 1000, "--storage", "f32")["bytes"], 2 * 2 * 2 * 1000 * 4 * 4)
        self.assertEqual(
            self.shape(2, 8, 4)["bytes_per_token"], 8 * self.shape(2, 1, 4, "--query-heads", 8)["bytes_per_token"]
        )

    def test_every_preset_is_listed_and_consistent(self) -> None:
        out = self.succeeds("memory", "--list")
        for name in (
            "gpt2-small",
            "llama2-7b",
            "llama2-70b",
            "llama3-8b",
            "llama3-70b",
            "mistral-7b",
            "gemma3-27b",
            "qwen3-32b",
            "qwen3-235b-a22b",
            "gpt-oss-20b",
            "gpt-oss-120b",
            "deepseek-v2-lite",
            "deepseek-v3",
        ):
            self.assertIn(name, out)
            self.assertGreater(self.figures("--model", name)["bytes"], 0)

    def test_as_a_process(self) -> None:
        done = self.run_process("memory", "--model", "nobody")
        self.assertEqual((done.code, done.out, len(done.err.splitlines())), (2, "", 1))
        with open("/dev/full", "w", encoding="utf-8") as full:
            command = [sys.executable, str(CLI), "memory", "--list"]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
        self.assertIn("no space left on device", done.stderr)
        done = self.run_process("memory", "--model", "gpt2-small")
        self.assertEqual((done.code, done.err), (0, ""))

    def test_refusals(self) -> None:
        self.refuses("memory", says="none given")
        self.refuses("memory", "--model", "llama9", says="no such preset")
        self.refuses("memory", "--model", "llama3-8b", "--layers", 3, says="--model and a shape")
        self.refuses("memory", "--layers", 2, "--dim", 4, says="--kv-heads missing")
        self.refuses("memory", "--layers", 0, "--kv-heads", 2, "--dim", 4, says="0 layers")
        self.refuses("memory", "--layers", 2, "--kv-heads", 0, "--dim", 4, says="heads is 0")
        self.refuses(
            "memory",
            "--layers",
            2,
            "--kv-heads",
            2,
            "--query-heads",
            33,
            "--dim",
            4,
            says="33 query heads cannot share 2",
        )
        self.refuses("memory", "--layers", 2, "--kv-heads", 2, "--dim", 4, "--window", 0, says="window of 0")
        self.refuses("memory", "--layers", 2, "--kv-heads", 2, "--dim", 4, "--full-every", 2, says="without --window")
        self.refuses("memory", "--layers", 2, "--latent", 512, says="--latent and --rope belong together")
        self.refuses("memory", "--model", "llama3-8b", "--tokens", 0, says="--tokens")
        self.refuses("memory", "--model", "llama3-8b", "--tokens", "9" * 30, says="--tokens")
        self.refuses("memory", "--model", "llama3-8b", "--tokens", "many", says="invalid int value")
        self.refuses("memory", "--model", "llama3-8b", "--storage", "fp8", says="invalid choice")
        self.refuses("memory", "--model", "llama3-8b", "--fit", "16Gib8", says="not a size")
        self.refuses("memory", "--model", "llama3-8b", "--fit", "0", says="out of range")
        self.refuses("memory", "--model", "llama3-8b", "--colour", says="'--colour': unknown argument")
        self.refuses("remember", says="invalid choice: 'remember'")


# What the models' own config.json say, as far as it decides the cache.
OWN_FILES: dict[str, dict[str, Any]] = {
    "gpt2-small": {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024},
    "llama2-7b": {
        "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "hidden_size": 4096, "max_position_embeddings": 4096,
    },
    "llama2-70b": {
        "model_type": "llama", "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "hidden_size": 8192, "max_position_embeddings": 4096,
    },
    "llama3-8b": {
        "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "hidden_size": 4096, "max_position_embeddings": 8192,
    },
    "llama3-70b": {
        "model_type": "llama", "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "hidden_size": 8192, "max_position_embeddings": 8192,
    },
    "mistral-7b": {
        "model_type": "mistral", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "hidden_size": 4096, "max_position_embeddings": 32768, "sliding_window": 4096,
    },
    "gemma3-1b": {
        "model_type": "gemma3_text", "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 256, "hidden_size": 1152, "max_position_embeddings": 32768, "sliding_window": 512,
        "sliding_window_pattern": 6,
    },
    "gemma3-4b": {"model_type": "gemma3", "text_config": {
        "model_type": "gemma3_text", "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "hidden_size": 2560, "max_position_embeddings": 131072, "sliding_window": 1024,
    }},
    "gemma3-12b": {"model_type": "gemma3", "text_config": {
        "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
        "hidden_size": 3840, "max_position_embeddings": 131072, "sliding_window": 1024,
    }},
    "gemma3-27b": {"model_type": "gemma3", "text_config": {
        "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
        "hidden_size": 5376, "max_position_embeddings": 131072, "sliding_window": 1024,
    }},
    "qwen3-8b": {
        "model_type": "qwen3", "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "hidden_size": 4096, "max_position_embeddings": 40960, "sliding_window": None,
        "use_sliding_window": False, "max_window_layers": 36,
    },
    "qwen3-32b": {
        "model_type": "qwen3", "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 40960, "sliding_window": None,
        "use_sliding_window": False, "max_window_layers": 64,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "hidden_size": 2048, "max_position_embeddings": 40960, "sliding_window": None,
        "use_sliding_window": False, "max_window_layers": 48,
    },
    "qwen3-235b-a22b": {
        "model_type": "qwen3_moe", "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 128, "hidden_size": 4096, "max_position_embeddings": 40960, "sliding_window": None,
        "use_sliding_window": False, "max_window_layers": 94,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "hidden_size": 2880, "max_position_embeddings": 131072, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss", "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "hidden_size": 2880, "max_position_embeddings": 131072, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
    },
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2", "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "hidden_size": 2048,
        "max_position_embeddings": 163840,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "hidden_size": 7168,
        "max_position_embeddings": 163840,
    },
}  # fmt: skip


class Presets(CommandTest):
    def test_presets_are_what_the_models_own_files_say(self) -> None:
        for name, config in OWN_FILES.items():
            with self.subTest(name):
                own, preset = read_config(self.write("config.json", config)), PRESETS[name]
                for field in ("query_heads", "kv_heads", "key_dim", "value_dim", "windows", "latent"):
                    self.assertEqual(getattr(own, field), getattr(preset, field), field)
                if not name.startswith("deepseek"):  # their files leave room beyond the context that the makers state
                    self.assertEqual(own.context, preset.context)

    def test_windows_by_layer(self) -> None:
        self.assertEqual(PRESETS["gemma3-1b"].windows[:6], (512,) * 5 + (None,))
        self.assertEqual(PRESETS["gemma3-27b"].windows.count(None), 10)
        self.assertEqual(PRESETS["gpt-oss-120b"].windows[:2], (128, None))
        self.assertEqual(set(PRESETS["mistral-7b"].windows), {4096})


class ConfigJson(CommandTest):
    def figures(self, config: dict[str, Any] | str, *more: object) -> dict[str, Any]:
        return json.loads(self.succeeds("memory", "--json", "--config", self.write("config.json", config), *more))

    def refuses_config(self, config: dict[str, Any] | str, says: str) -> None:
        self.refuses("memory", "--config", self.write("config.json", config), says=says)

    LLAMA = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "max_position_embeddings": 8192,
    }

    def test_forms(self) -> None:
        self.assertEqual(self.figures(self.LLAMA)["bytes"], 2**30)
        self.assertEqual(self.figures(self.LLAMA | {"head_dim": 64})["bytes_per_token"], 65_536)
        gpt2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
        self.assertEqual(self.figures(gpt2, "--storage", "f32")["bytes_per_token"], 73_728)
        mla = {
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "hidden_size": 2048,
        }
        self.assertEqual(self.figures(mla)["bytes_per_token"], 31_104)
        self.assertEqual(self.figures({"model_type": "gemma3", "text_config": self.LLAMA})["bytes"], 2**30)

    def test_windows(self) -> None:
        def windows(config: dict[str, Any]) -> list[tuple[Any, int]]:
            return [(g["window"], g["layers"]) for g in self.figures(self.LLAMA | config)["layers"]]

        self.assertEqual(windows({"sliding_window": 4096}), [(4096, 32)])
        self.assertEqual(windows({"sliding_window": None}), [("all", 32)])
        self.assertEqual(
            windows({"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 28}), [("all", 32)]
        )
        self.assertEqual(
            windows({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28}),
            [("all", 28), (4096, 4)],
        )
        self.assertEqual(windows({"sliding_window": 512, "sliding_window_pattern": 6}), [("all", 5), (512, 27)])
        self.assertEqual(windows({"sliding_window": 512, "model_type": "gemma3_text"}), [("all", 5), (512, 27)])
        self.assertEqual(
            windows({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 16}),
            [("all", 16), (128, 16)],
        )

    def test_missing_and_contradictory_fields(self) -> None:
        for gone in ("num_hidden_layers", "num_attention_heads", "hidden_size"):
            self.refuses_config({k: v for k, v in self.LLAMA.items() if k != gone}, f"{gone} is missing")
        self.refuses_config(self.LLAMA | {"num_key_value_heads": 5}, "32 query heads cannot share 5 KV heads")
        self.refuses_config(self.LLAMA | {"hidden_size": 4097}, "does not divide")
        self.refuses_config(self.LLAMA | {"n_layer": 31}, "contradict each other")
        self.refuses_config(self.LLAMA | {"num_hidden_layers": -1}, "num_hidden_layers is -1")
        self.refuses_config(self.LLAMA | {"num_hidden_layers": True}, "num_hidden_layers is True")
        self.refuses_config(self.LLAMA | {"num_hidden_layers": "32"}, "num_hidden_layers is '32'")
        self.refuses_config(self.LLAMA | {"num_hidden_layers": 32.5}, "num_hidden_layers is 32.5")
        self.refuses_config(self.LLAMA | {"num_hidden_layers": 10**9}, "no model has over")
        self.refuses_config(self.LLAMA | {"head_dim": 10**15}, "head_dim is 1000000000000000")
        self.refuses_config(self.LLAMA | {"layer_types": ["full_attention"] * 31}, "31 entries for 32 layers")
        self.refuses_config(self.LLAMA | {"layer_types": ["linear_attention"] * 32}, "linear_attention")
        self.refuses_config(self.LLAMA | {"layer_types": ["sliding_attention"] * 32}, "no sliding_window")
        self.refuses_config(self.LLAMA | {"sliding_window": 0}, "sliding_window is 0")
        self.refuses_config(self.LLAMA | {"kv_lora_rank": 512}, "qk_rope_head_dim is missing")

    def test_damaged_files(self) -> None:
        self.refuses("memory", "--config", self.folder / "none.json", says="no such file")
        self.refuses("memory", "--config", self.folder, says="not a regular file")
        self.refuses_config("", "the file is empty")
        self.refuses_config("[1, 2]", "holds list, not an object")
        self.refuses_config('{"num_hidden_layers": 32,', "line 1, column")
        self.refuses_config('{"num_hidden_layers": 32, "num_hidden_layers": 33}', "given twice")
        self.refuses_config('{"num_hidden_layers": NaN}', "NaN is not JSON")
        self.refuses_config('{"num_hidden_layers": 1e999}', "too large")
        self.refuses_config('{"num_hidden_layers": ' + "9" * 5000 + "}", "too large")
        self.refuses_config("[" * 100_000, "nested too deeply")
        (self.folder / "bytes.json").write_bytes(b'{"model_type": "\xff\xfe"}')
        self.refuses("memory", "--config", self.folder / "bytes.json", says="not UTF-8")
        self.refuses_config({"num_hidden_layers": "3\n2"}, "num_hidden_layers is")


if __name__ == "__main__":
    unittest.main()
