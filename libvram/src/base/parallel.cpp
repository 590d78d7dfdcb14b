#include "base/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace vram {
namespace {

thread_local bool is_worker = false;

class Work {
  public:
    Work(std::size_t count, const std::function<void(std::size_t)>& task) : task_(task), failures_(count) {}

    void run() noexcept {
        const bool was_worker = std::exchange(is_worker, true);
        for (std::size_t i = next_++; i < failures_.size(); i = next_++) {
            try {
                task_(i);
            } catch (...) {
                failures_[i] = std::current_exception();
            }
        }
        is_worker = was_worker;
    }
    void rethrow() const {
        for (const std::exception_ptr& failure : failures_)
            if (failure) std::rethrow_exception(failure);
    }

  private:
    const std::function<void(std::size_t)>& task_;
    std::vector<std::exception_ptr> failures_;
    std::atomic<std::size_t> next_ = 0;
};

}  // namespace

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& task) {
    if (count == 1) return task(0);  // nothing to share out: what it calls may have the cores
    Work work(count, task);
    const std::size_t cores = is_worker ? 1 : std::max(1U, std::thread::hardware_concurrency());
    std::vector<std::jthread> helpers;
    try {
        for (std::size_t i = 1; i < std::min(cores, count); ++i) helpers.emplace_back([&work] { work.run(); });
    } catch (const std::system_error&) {
        // Those that are there, and the caller, do it.
    }
    work.run();
    helpers.clear();
    work.rethrow();
}

}  // namespace vram
