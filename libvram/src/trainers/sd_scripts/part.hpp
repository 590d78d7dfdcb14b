#pragma once

#include <memory>
#include <string>

#include "models/model.hpp"

namespace vram::trainers::sd_scripts {

/// One model of a run, and where it stands. Its adapter is no part of it: that is the network's.
class Part {
  public:
    Part(shadow::Run& run, std::string component, nn::Rules rules, const profile::ModelProfile& profile);

    /// module.to(device), which a part that stands there already does not feel.
    void to_gpu();
    void to_cpu();
    void move(bool to_gpu_if_true) { to_gpu_if_true ? to_gpu() : to_cpu(); }
    [[nodiscard]] bool on_gpu() const noexcept { return on_gpu_; }
    [[nodiscard]] const std::string& component() const noexcept { return component_; }
    [[nodiscard]] shadow::Tensors forward(const shadow::Tensors& args, const models::Request& request) const;
    /// The arguments of forward, as they come from the host.
    [[nodiscard]] shadow::Tensors arguments(const models::Request& request) const;
    /// The same as accelerator.prepare leaves it: under autocast, its outputs in fp32. `in_class`: they come in an
    /// object that ConvertOutputsToFp32 does not look into.
    [[nodiscard]] shadow::Tensors prepared(const shadow::Tensors& args, const models::Request& request,
                                           const shadow::Run::Autocast& autocast, bool in_class = false) const;

    nn::Weights weights;
    std::unique_ptr<models::Model> model;
    bool pooled_first = false;  // in the class's outputs: CLIPTextModelOutput's text_embeds

  private:
    std::string component_;
    bool on_gpu_ = false;
};

}  // namespace vram::trainers::sd_scripts
