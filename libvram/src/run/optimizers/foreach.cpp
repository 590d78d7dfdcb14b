#include "run/optimizers/foreach.hpp"

namespace vram::run {

using shadow::Tensor;

std::vector<std::vector<std::size_t>> foreach_groups(const std::vector<shadow::Parameter*>& parameters,
                                                     std::size_t first, std::size_t last) {
    std::vector<Dtype> dtypes;
    std::vector<std::vector<std::size_t>> groups;
    for (std::size_t i = first; i < last; ++i) {
        if (!parameters[i]->grad.defined()) continue;
        std::size_t at = 0;
        while (at < dtypes.size() && dtypes[at] != parameters[i]->value.dtype()) ++at;
        if (at == dtypes.size()) {
            at = 0;
            dtypes.insert(dtypes.begin(), parameters[i]->value.dtype());
            groups.insert(groups.begin(), std::vector<std::size_t>{});
        }
        groups[at].push_back(i);
    }
    return groups;
}

std::vector<Tensor> foreach_like(const std::vector<Tensor>& list) {
    std::vector<Tensor> out;
    out.reserve(list.size());
    for (const Tensor& tensor : list) out.push_back(tensor.run().empty_like(tensor, shadow::Op::foreach_));
    return out;
}

}  // namespace vram::run
