// Native mode reads and writes what it is given and nothing else, and leaves the caller's floating-point state alone.
#include <gtest/gtest.h>

#include "tests/support/compare.hpp"
#include "tests/support/float_state.hpp"
#include "tests/support/native.hpp"

namespace kvroof::test {
namespace {

class NativeMemory : public NativeMode {};

// Every head dim at both ends of every array against a guard page; q, out, lse, runs and the workspace have theirs too.
TEST_F(NativeMemory, NoHeadDimReadsPastAnArray) {
  constexpr std::int64_t dims[] = {1,  2,  7,  15, 16,  17,  24,  31,  32,  33,  40,  63,  64,  65,  72,
                                   80, 95, 96, 97, 112, 127, 128, 129, 160, 191, 192, 256, 257, 512, 576};
  std::size_t other = 0;
  for (const std::int64_t dk : dims) {
    for (const std::int64_t group : {1, 2, 3, 12, 33, 70}) {
      for (const std::int64_t T : {1, 5, 16, 33}) {
        const std::int64_t dv = dims[(other += 7) % std::size(dims)];
        const Case c = make_case(native_spec(group, 1, dk, dv, T == 33 ? 2 : 1, T, 5));
        Attention expected;
        for (const Layout& layout : edge_layouts()) {
          const Attention a = attend(c, layout, how(1));
          if (expected.out.empty()) expected = a;
          expect_same_bits(a, expected, describe(c.spec) + " " + describe(layout));
        }
      }
    }
  }
}

// Several heads a group of work, and long enough that rows are prefetched.
TEST_F(NativeMemory, NoNeighbourIsTouchedInLongCaches) {
  for (const std::int64_t group : {1, 3, 13}) {
    for (const LayoutKind kind : kLayoutKinds) {
      const Case c = make_case(native_spec(3 * group, 3, 65, 33, 5, 1100, 5));
      Layout layout;
      layout.kind = kind;
      for (const int parts : {1, 3}) attend(c, layout, how(parts));
    }
  }
}

TEST_F(NativeMemory, CallersFloatStateHasNoEffectAndIsKept) {
  for (const std::int64_t group : {1, 2, 12}) {
    for (const Inputs inputs : {Inputs::uniform, Inputs::subnormal}) {
      CaseSpec spec = native_spec(2 * group, 2, 24, 20, 2, 700, 5);
      spec.softcap = 20.0f;
      spec.sink = true;
      spec.inputs = inputs;
      const Case c = make_case(spec);
      const Attention expected = attend(c, {}, how(1));
      for (const std::uint64_t state : {kFlushToZero, kTowardZero, kTrapping}) {
        if (state == kTrapping && !kTrapsExist) continue;
        for (const int parts : {1, 4}) {
          StoredSequence sequence(c, {});
          const StoredCall call(sequence, Mode::native);
          GuardedBuffer workspace(attention_workspace_bytes(call.args, parts), Edge::end, 64);
          std::uint64_t after = 0;
          {
            ScopedFloatState scoped(state);
            for (int part = 0; part < parts; ++part) attention_run_part(call.args, parts, part, workspace.data(), kIsa);
            for (int part = 0; part < parts; ++part)
              attention_merge_part(call.args, parts, part, workspace.data(), kIsa);
            after = float_state();
          }
          EXPECT_EQ(after, state) << std::hex << "state after the call";
          expect_same_bits(sequence.result(), expected, describe(spec) + " state " + std::to_string(state));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvroof::test
