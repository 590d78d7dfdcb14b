#pragma once

#include <cstddef>
#include <functional>

namespace vram {

/// Calls task(0) … task(count − 1), each once and in any order, on the cores that the machine has, and returns when all
/// are done. What a task throws is thrown again: of several, that of the lowest index. Tasks that call this themselves
/// get their own done one after the other, so that cores are not asked for twice. Where no thread can be had, all runs
/// on the caller's.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& task);

}  // namespace vram
