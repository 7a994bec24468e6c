// Decode attention in reproducible mode equals the lane twin bit for bit: on every instruction set, for every storage,
// group size, head dimension, length around every boundary, chunk, window and option. Every run reads from memory
// between guard pages whose unused places are poisoned.
#include <gtest/gtest.h>

#include "tests/support/attend.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

class AttentionTwin : public EachIsa {
 protected:
  // Layout and number of parts vary with the case; that they do not matter is claimed in
  // test_decode_attention_invariance.
  void check(const CaseSpec& spec) {
    const std::uint64_t seed = ++count_;
    if (!case_selected(static_cast<std::int64_t>(seed))) return;
    const Case c = make_case(spec);
    const Layout layout = random_layout(seed);
    How how;
    how.isa = isa();
    how.parts = 1 + static_cast<int>(seed % 5);
    how.order_seed = seed;
    expect_same_bits(attend(c, layout, how), twin(c),
                     "#" + std::to_string(seed) + " " + describe(spec) + " " + describe(layout) + " " + describe(how));
  }

 private:
  std::uint64_t count_ = 0;
};

TEST_P(AttentionTwin, StoragePairsAndGroups) {
  for (const Storage k : kStorages) {
    for (const Storage v : kStorages) {
      for (const std::int64_t group : {1, 2, 3, 4, 5, 7, 8, 16, 17, 71}) {
        CaseSpec spec;
        spec.kv_heads = group >= 16 ? 1 : 2;
        spec.query_heads = group * spec.kv_heads;
        spec.value_dim = 48;
        spec.T = 531;
        spec.k_storage = k;
        spec.v_storage = v;
        spec.seed = static_cast<std::uint64_t>(group);
        check(spec);
      }
    }
  }
}

// One query a head, rows of all heads side by side: read row by row across 16 heads and more.
TEST_P(AttentionTwin, ManyHeadsOfATokenSideBySide) {
  std::uint64_t seed = 0;
  for (const Storage storage : kStorages) {
    for (const std::int64_t heads : {4, 16, 17, 35}) {
      for (const std::int64_t d : {64, 128}) {
        CaseSpec spec = case_of(heads, heads, d, d, 1, 700, storage, ++seed);
        if (seed % 2 == 0) {
          spec.window = 90;
          spec.kept_tokens = 5;
        }
        const Case c = make_case(spec);
        for (const Poison poison : kPoisons) {
          Layout layout;
          layout.kind = LayoutKind::token_major;
          layout.seed = seed;
          layout.poison = poison;
          How how;
          how.isa = isa();
          how.parts = 1 + static_cast<int>(seed % 2);
          expect_same_bits(attend(c, layout, how), twin(c), describe(spec) + " " + describe(layout));
        }
      }
    }
  }
}

TEST_P(AttentionTwin, HeadDims) {
  for (const Storage storage : kStorages) {
    for (const std::int64_t d : {1,  2,  3,  7,  8,   15,  16,  17,  24,  31,  32,  33,  40,  48,  63, 64,
                                 65, 72, 80, 96, 100, 112, 120, 127, 128, 129, 160, 192, 256, 512, 576}) {
      CaseSpec spec;
      spec.query_heads = 4;
      spec.kv_heads = 2;
      spec.T = 37;
      spec.k_storage = spec.v_storage = storage;
      spec.seed = static_cast<std::uint64_t>(d);
      spec.key_dim = spec.value_dim = d;
      check(spec);
      spec.value_dim = 64;  // the two dims are independent
      check(spec);
      spec.key_dim = 64;
      spec.value_dim = d;
      check(spec);
    }
  }
}

TEST_P(AttentionTwin, LengthsAroundLanesBlocksAndSegments) {
  for (const Storage storage : kStorages) {
    for (const std::int64_t edge : {0, 16, 32, 64, 128, 256, 512, 528, 1024, 1536, 2048, 2560, 4096}) {
      for (const std::int64_t off : {-1, 0, 1, 2}) {
        CaseSpec spec;
        spec.T = edge + off;
        if (spec.T < 1) continue;
        spec.query_heads = edge % 64 == 0 ? 2 : 5;
        spec.kv_heads = spec.query_heads == 2 ? 2 : 1;
        spec.key_dim = 32;
        spec.value_dim = 24;
        spec.k_storage = spec.v_storage = storage;
        spec.inputs = off == 1 ? Inputs::rising : Inputs::uniform;
        spec.seed = static_cast<std::uint64_t>(spec.T);
        check(spec);
      }
    }
  }
}

TEST_P(AttentionTwin, Chunks) {
  for (const std::int64_t n : {2, 3, 4, 5, 8, 15, 16, 17, 31, 33, 64, 65, 130}) {
    for (const std::int64_t before : {0, 1, 15, 16, 500, 511, 512, 1000}) {
      CaseSpec spec;
      spec.n = n;
      spec.T = before + n;
      spec.query_heads = n % 2 == 0 ? 6 : 3;
      spec.kv_heads = n % 2 == 0 ? 2 : 3;
      spec.key_dim = 40;
      spec.value_dim = 20;
      spec.k_storage = kStorages[static_cast<std::size_t>((n + before) % 4)];
      spec.v_storage = kStorages[static_cast<std::size_t>(n % 4)];
      spec.seed = static_cast<std::uint64_t>(1000 * n + before);
      check(spec);
      spec.window = before % 3 == 0 ? 5 : 40;
      check(spec);
    }
  }
}

TEST_P(AttentionTwin, WindowsAndKeptTokens) {
  for (const std::int64_t n : {1, 3, 37}) {
    for (const std::int64_t window : {1, 2, 3, 15, 16, 17, 31, 33, 511, 512, 513, 600, 1099, 1100, 1101}) {
      for (const std::int64_t kept : {0, 1, 5, 16, 512, 513, 700, 1100}) {
        CaseSpec spec;
        spec.n = n;
        spec.T = 1100;
        spec.query_heads = 2;
        spec.key_dim = 16;
        spec.value_dim = 16;
        spec.window = window;
        spec.kept_tokens = kept;
        spec.k_storage = spec.v_storage = kStorages[static_cast<std::size_t>((window + kept + n) % 4)];
        spec.seed = static_cast<std::uint64_t>(window);
        check(spec);
      }
    }
  }
}

TEST_P(AttentionTwin, EveryCombinationOfOptions) {
  constexpr Inputs kinds[] = {Inputs::uniform, Inputs::large,    Inputs::rising,
                              Inputs::zero_q,  Inputs::mean_one, Inputs::subnormal};
  for (int bits = 0; bits < 32; ++bits) {
    for (const Inputs inputs : kinds) {
      for (const std::int64_t n : {1, 6}) {
        CaseSpec spec;
        spec.n = n;
        spec.T = 1030;
        spec.query_heads = 6;
        spec.kv_heads = 2;
        spec.key_dim = 24;
        spec.value_dim = 33;
        spec.softcap = (bits & 1) != 0 ? 30.0f : spec.softcap;
        spec.alibi = (bits & 2) != 0;
        spec.sink = (bits & 4) != 0;
        spec.window = (bits & 8) != 0 ? 520 : kAll;
        spec.kept_tokens = (bits & 16) != 0 ? 7 : 0;
        spec.inputs = inputs;
        spec.k_storage = kStorages[static_cast<std::size_t>(bits + n) % 4];
        spec.v_storage = kStorages[static_cast<std::size_t>(bits / 4) % 4];
        spec.seed = static_cast<std::uint64_t>(bits);
        check(spec);
      }
    }
  }
}

TEST_P(AttentionTwin, ManySegments) {  // the tree of segments: every shape from 1 to 20 leaves, and holes in it
  for (std::int64_t segments = 1; segments <= 20; ++segments) {
    CaseSpec spec;
    spec.T = segments * kSegmentRows - segments % 3;
    spec.key_dim = 16;
    spec.value_dim = 8;
    spec.inputs = segments % 2 == 0 ? Inputs::rising : Inputs::mean_one;
    spec.seed = static_cast<std::uint64_t>(segments);
    check(spec);
    spec.window = kSegmentRows * (segments / 2) + 1;  // the middle of the tree is absent
    spec.kept_tokens = segments % 4 == 0 ? kSegmentRows + 3 : 3;
    check(spec);
  }
}

TEST_P(AttentionTwin, RandomCases) {
  for (std::uint64_t seed = 1; seed <= 250; ++seed) check(random_spec(seed, 1500000));
}

KVROOF_INSTANTIATE_EACH_ISA(AttentionTwin);

class LongAttentionTwin : public AttentionTwin {};

TEST_P(LongAttentionTwin, RandomCases) {
  for (std::uint64_t seed = 1000; seed < 6000; ++seed) check(random_spec(seed, 8000000));
}

KVROOF_INSTANTIATE_EACH_ISA(LongAttentionTwin);

}  // namespace
}  // namespace kvroof::test
