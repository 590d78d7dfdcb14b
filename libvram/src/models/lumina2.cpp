#include "models/families.hpp"
namespace vram::models::lumina2 {
std::unique_ptr<Model> build(nn::Weights&, const profile::ModelProfile&) { return nullptr; }
}
