#include "run.hpp"

#include <algorithm>
#include <exception>
#include <ostream>

#include "arguments.hpp"
#include "verbs.hpp"

namespace vram::cli {
namespace {

int act(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    switch (arguments.verb) {
        case Verb::check: return check(arguments, out, err);
        case Verb::advise: return advise(arguments, out, err);
        case Verb::max: return max(arguments, out, err);
        case Verb::grow: return grow(arguments, out, err);
        case Verb::sweep: return sweep(arguments, out, err);
        case Verb::diagnose: return diagnose(arguments, out, err);
        case Verb::explain: return explain(arguments, out, err);
        case Verb::risk: return risk(arguments, out, err);
        case Verb::trace: return trace(arguments, out, err);
        case Verb::models: return models(arguments, out, err);
        case Verb::gpus: return gpus(arguments, out);
        case Verb::trainers: return trainers(arguments, out);
        case Verb::schema: return schema(out);
        case Verb::version: out << "vramest " << report::library_version() << '\n'; return 0;
        case Verb::help: out << arguments.help; return 0;
    }
    return 2;
}

}  // namespace

int run(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
    try {
        const expected<Arguments> arguments = read_arguments(args);
        if (arguments) return act(*arguments, out, err);
        const bool json = std::find(args.begin(), args.end(), "--json") != args.end();
        return refuse(arguments.error(), json, out, err);
    } catch (const std::exception& bug) {
        err << "vramest: an error of its own: " << bug.what() << '\n';
    } catch (...) {
        err << "vramest: an error of its own\n";
    }
    return 2;
}

}  // namespace vram::cli
