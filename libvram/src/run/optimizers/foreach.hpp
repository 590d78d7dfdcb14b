#pragma once

#include <cstddef>
#include <vector>

#include "shadow/ops.hpp"

namespace vram::run {

/// Optimizer._group_tensors_by_device_and_dtype: the parameters from `first` up to `last` that have a gradient, a group
/// a dtype, by index. Groups
/// come in the reverse of the order in which their dtypes first appear: they are read out of a std::unordered_map,
/// where libstdc++ puts the newest in front. (Three dtypes may stand otherwise; two do not.) Source:
/// ATen/native/ForeachUtils.h, FlatMap (torch 2.13).
[[nodiscard]] std::vector<std::vector<std::size_t>> foreach_groups(const std::vector<shadow::Parameter*>& parameters,
                                                                   std::size_t first, std::size_t last);

/// torch._foreach_sqrt and the like over a list: a new tensor each.
[[nodiscard]] std::vector<shadow::Tensor> foreach_like(const std::vector<shadow::Tensor>& list);

}  // namespace vram::run
