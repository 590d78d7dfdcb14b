#pragma once

#include <vector>

#include "shadow/run.hpp"

namespace vram::run {

/// Live bytes of tensors at the end of a run's trace, each storage rounded to 512; scratch is not counted. Reads on
/// from where it stood, so that asking costs what has happened since.
class Live {
  public:
    explicit Live(const shadow::Run& run) : run_(run) {}
    [[nodiscard]] Bytes now();

  private:
    const shadow::Run& run_;
    std::size_t at_ = 0;
    Bytes live_ = 0;
    std::vector<Bytes> sizes_;  // by slot; 0 for scratch
};

}  // namespace vram::run
