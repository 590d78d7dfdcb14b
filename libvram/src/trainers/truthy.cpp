#include "trainers/truthy.hpp"

namespace vram::trainers {

bool truthy(const io::Node& node) {
    switch (node.kind()) {
        case io::Kind::null: return false;
        case io::Kind::boolean: return *node.boolean();
        case io::Kind::integer: return *node.integer() != 0;
        case io::Kind::number: return *node.number() != 0;
        case io::Kind::text: return !node.text()->empty();
        case io::Kind::list: return !node.list()->empty();
        case io::Kind::map: return !node.map()->empty();
    }
    return false;
}

}  // namespace vram::trainers
