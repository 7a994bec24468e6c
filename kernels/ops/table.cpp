// Fills this ISA's table. The only file to edit, beside kernel_table.hpp and ops.hpp, when an operation is added.
#include "kernels/simd/isa.hpp"

#include "kernels/ops/ops.hpp"

namespace kvroof::KVROOF_NS {

extern const KernelTable table;
const KernelTable table = {
    Isa::KVROOF_ISA,
    attention_run_part,
    attention_merge_part,
    attention_finish_partials,
    convert_to_f16,
    convert_to_bf16,
    convert_from_f16,
    convert_from_bf16,
    store_row,
    load_row,
    project,
    rope,
};

}  // namespace kvroof::KVROOF_NS
