#include "arguments.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

namespace vram::cli {
namespace {

constexpr std::string_view examples = R"(
  vramest check job.yaml                      on this machine's card, or the smallest that holds it
  vramest check job.yaml --gpu rtx-4090       on that card
  vramest check job.yaml --set train.batch_size=2 --json
  vramest advise job.yaml --gpu rtx-4090      what to change so that it fits
  vramest max job.yaml --gpu rtx-4090 --vary batch_size
  vramest grow job.yaml --gpu rtx-4090        what to raise next, and how far
  vramest sweep job.yaml --gpu rtx-4090 --set train.batch_size=1,2,4 --set data.resolution=512,768,1024
  vramest diagnose run.log job.yaml           why it ran out of memory
  vramest explain job.yaml --gpu rtx-4090 --svg run.svg
  vramest risk job.yaml --gpu rtx-4090        may gradient checkpointing be turned off
)";

Unexpected complaint(Problem problem, std::string key, std::string found, std::string nearest, std::string text) {
    return {{{Severity::error, problem, {}, std::move(key), std::move(found), std::move(nearest), std::move(text)}}};
}

/// What CLI11 fills; read into Arguments once it is done.
struct Raw {
    std::string gpu, capacity, alloc_conf, os, other_processes;
    std::vector<std::string> sets, vary;
    std::vector<CLI::Option*> given;  // those that may not be empty
};

void add_job_options(CLI::App& verb, Raw& raw,
                     const char* sets = "KEY=VALUE: overrides a key of the job; may be given several times") {
    raw.given.push_back(verb.add_option("--gpu", raw.gpu, "a card's id or name; auto asks the driver"));
    raw.given.push_back(
        verb.add_option("--capacity", raw.capacity, "instead of a card: what torch reports as total, such as 24GiB"));
    verb.add_option("--set", raw.sets, sets)->allow_extra_args(false);
    verb.add_option("--alloc-conf", raw.alloc_conf, "as PYTORCH_CUDA_ALLOC_CONF");
    raw.given.push_back(verb.add_option("--os", raw.os, "linux, windows or wsl"));
    raw.given.push_back(
        verb.add_option("--other-processes", raw.other_processes, "what else sits on the card, such as 1.5GiB"));
}

/// A value as YAML flow that reads back as this text.
std::string as_flow(const std::string& text) {
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
    return out + "'";
}

void read_axes(const Raw& raw, Arguments& arguments, Diagnostics& complaints) {
    for (const std::string& set : raw.sets) {
        expected<advise::Axis> axis = advise::axis_of(set);
        if (axis)
            arguments.axes.push_back(*std::move(axis));
        else
            complaints.insert(complaints.end(), axis.error().begin(), axis.error().end());
    }
    // What does not vary is said above a table, not beside it.
    std::stable_partition(arguments.axes.begin(), arguments.axes.end(),
                          [](const advise::Axis& axis) { return axis.values.size() == 1; });
}

void read_vary(const Raw& raw, Arguments& arguments, Diagnostics& complaints) {
    for (const std::string& words : raw.vary) {
        std::istringstream list(words);
        for (std::string word; std::getline(list, word, ',');) {
            const expected<advise::Vary> vary = advise::read_vary(word);
            if (vary)
                arguments.vary.push_back(*vary);
            else
                complaints.insert(complaints.end(), vary.error().begin(), vary.error().end());
        }
    }
    if (complaints.empty() && arguments.vary.empty())
        complaints.push_back({Severity::error,
                              Problem::missing_key,
                              {},
                              "--vary",
                              {},
                              {},
                              "--vary is due: batch_size, resolution, frames or rank"});
}

expected<Arguments> finish(Arguments arguments, const Raw& raw) {
    Diagnostics complaints;
    const auto add = [&](Unexpected failure) {
        complaints.insert(complaints.end(), failure.complaints.begin(), failure.complaints.end());
    };
    for (const CLI::Option* option : raw.given)
        if (option->count() > 0 && option->as<std::string>().empty())
            add(complaint(Problem::bad_value, option->get_name(), {}, {}, option->get_name() + " is given and empty"));
    arguments.options.gpu = raw.gpu;
    if (arguments.verb == Verb::sweep) read_axes(raw, arguments, complaints);
    if (arguments.verb == Verb::max) read_vary(raw, arguments, complaints);
    for (const std::string& set : arguments.verb == Verb::sweep ? std::vector<std::string>{} : raw.sets) {
        const std::size_t equals = set.find('=');
        if (equals == std::string::npos || equals == 0)
            add(complaint(Problem::unknown_option, "--set", set, {}, "--set takes KEY=VALUE, not " + set));
        else
            arguments.options.settings.push_back({set.substr(0, equals), set.substr(equals + 1)});
        const std::string key = set.substr(0, std::min(equals, set.size()));
        if ((key == "gpu" || key == "capacity") && !(raw.gpu.empty() && raw.capacity.empty()))
            add(complaint(Problem::conflict, "--set", set, {},
                          "--set " + key + " and --gpu or --capacity say the same: leave one of them out"));
    }
    if (!raw.alloc_conf.empty())
        arguments.options.settings.push_back({"environment.alloc_conf", as_flow(raw.alloc_conf)});
    if (!raw.os.empty()) arguments.options.settings.push_back({"environment.os", as_flow(raw.os)});
    if (!raw.other_processes.empty())
        arguments.options.settings.push_back({"environment.other_processes", as_flow(raw.other_processes)});
    if (!raw.capacity.empty() && !parse_bytes(raw.capacity, arguments.options.capacity))
        add(complaint(Problem::bad_unit, "--capacity", raw.capacity, {},
                      "--capacity must be a size such as 24GiB, not " + raw.capacity));
    else if (!raw.capacity.empty() && arguments.options.capacity == 0)
        add(complaint(Problem::out_of_range, "--capacity", raw.capacity, {}, "--capacity must be above 0"));
    if (!raw.capacity.empty() && !arguments.options.gpu.empty())
        add(complaint(Problem::conflict, "--capacity", raw.capacity, {}, "--gpu and --capacity exclude each other"));
    if (arguments.json && arguments.csv)
        add(complaint(Problem::conflict, "--csv", {}, {}, "--json and --csv exclude each other"));
    if (arguments.log == "-" && arguments.file == "-")
        add(complaint(Problem::conflict, "CONFIG", "-", {}, "LOG and CONFIG cannot both be standard input"));
    arguments.asks_driver = raw.capacity.empty() && (arguments.options.gpu.empty() || arguments.options.gpu == "auto");
    if (arguments.options.gpu == "auto") arguments.options.gpu.clear();
    if (!complaints.empty()) return Unexpected{std::move(complaints)};
    return arguments;
}

std::vector<std::string> flags_of(const CLI::App& app) {
    std::vector<std::string> out;
    for (const CLI::Option* option : app.get_options())
        for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
    return out;
}

Unexpected unknown_word(const CLI::App& app, const std::string& word) {
    const auto verbs = app.get_subcommands([](const CLI::App*) { return true; });
    const auto chosen = app.get_subcommands();
    if (word.starts_with('-')) {
        const std::string flag = word.substr(0, word.find('='));
        return complaint(Problem::unknown_option, flag, word,
                         nearest(flag, flags_of(chosen.empty() ? app : *chosen.front())), "unknown option " + flag);
    }
    if (!chosen.empty()) return complaint(Problem::unknown_option, word, word, {}, "unexpected argument " + word);
    std::vector<std::string> names;
    for (const CLI::App* verb : verbs) names.push_back(verb->get_name());
    return complaint(Problem::unknown_option, word, word, nearest(word, names), "unknown verb " + word);
}

}  // namespace

expected<Arguments> read_arguments(const std::vector<std::string>& args) {
    Arguments arguments;
    Raw raw;
    CLI::App app("Predicts the VRAM of diffusion training and sampling before a GPU is touched.", "vramest");
    app.footer(std::string(examples));
    app.allow_extras();
    bool version = false;
    app.add_flag("--version", version, "print the version");

    const auto needs_file = [&](CLI::App& verb) {
        verb.add_option("FILE", arguments.file, "a job file or a trainer's config; - reads standard input")->required();
    };
    CLI::App& check = *app.add_subcommand("check", "will it fit, in which phase is it tightest");
    needs_file(check);
    add_job_options(check, raw);
    check.add_flag("--json", arguments.json, "print the report as JSON");
    check.add_flag("--strict", arguments.strict, "exit 1 where it is tight");
    CLI::App& advise = *app.add_subcommand("advise", "the smallest changes that make it fit");
    needs_file(advise);
    add_job_options(advise, raw);
    advise.add_flag("--json", arguments.json, "print the advice as JSON");
    raw.given.push_back(
        advise.add_option("--write", arguments.out, "write a copy of FILE with the first advice in it"));
    CLI::App& max = *app.add_subcommand("max", "the most of something that fits");
    needs_file(max);
    add_job_options(max, raw);
    max.add_option("--vary", raw.vary, "batch_size, resolution, frames or rank; of two the frontier")
        ->allow_extra_args(false);
    max.add_flag("--json", arguments.json, "print the answer as JSON");
    CLI::App& grow = *app.add_subcommand("grow", "what to raise once it runs, and how far");
    needs_file(grow);
    add_job_options(grow, raw);
    grow.add_flag("--json", arguments.json, "print the answer as JSON");
    CLI::App& sweep = *app.add_subcommand("sweep", "what every combination of values needs");
    needs_file(sweep);
    add_job_options(sweep, raw, "KEY=VALUE,VALUE…: the values that a key of the job takes; may be given several times");
    sweep.add_flag("--json", arguments.json, "print the cells as JSON");
    sweep.add_flag("--csv", arguments.csv, "print the cells as CSV");
    raw.given.push_back(sweep.add_option("--svg", arguments.svg, "write a picture to this file"));
    CLI::App& diagnose =
        *app.add_subcommand("diagnose", "which memory ran out in a log, where, and what to change first");
    diagnose.add_option("LOG", arguments.log, "a trainer's log, whole or a part; - reads standard input")->required();
    diagnose.add_option("CONFIG", arguments.file, "the config that was run, to lay its prediction beside");
    add_job_options(diagnose, raw);
    diagnose.add_flag("--json", arguments.json, "print the diagnosis as JSON");
    CLI::App& explain =
        *app.add_subcommand("explain", "the run over its phases, what is alive at the peak, what options add");
    needs_file(explain);
    add_job_options(explain, raw);
    raw.given.push_back(explain.add_option("--phase", arguments.phase,
                                           "whose peak is taken apart, such as \"step 2\"; else the tightest"));
    raw.given.push_back(explain.add_option("--svg", arguments.out, "write the run as a picture"));
    explain.add_flag("--json", arguments.json, "print it as JSON");
    CLI::App& risk = *app.add_subcommand("risk", "what turning gradient checkpointing off would mean");
    needs_file(risk);
    add_job_options(risk, raw);
    risk.add_flag("--json", arguments.json, "print it as JSON");
    CLI::App& trace = *app.add_subcommand("trace", "write the events of the played job, to be laid beside PyTorch's");
    needs_file(trace);
    add_job_options(trace, raw);
    trace.add_option("--out", arguments.out, "where to; standard output if absent");
    trace.add_flag("--scratch", arguments.scratch, "with the scratch of kernels and libraries");
    trace.group("");  // for developers
    CLI::App& models = *app.add_subcommand("models", "the models that are known, or whose model a folder or file is");
    models.add_option("PATH", arguments.file,
                      "a folder of diffusers or transformers, a file of weights, or a model's name");
    models.add_flag("--json", arguments.json, "as JSON");
    CLI::App& gpus = *app.add_subcommand("gpus", "the cards that are known");
    gpus.add_flag("--json", arguments.json, "as JSON");
    CLI::App& trainers = *app.add_subcommand("trainers", "the trainers whose loop is played");
    trainers.add_flag("--json", arguments.json, "as JSON");
    CLI::App& schema = *app.add_subcommand("schema", "JSON Schema of the report, the diagnosis and the job file");
    schema.add_flag("--json", arguments.json, "as JSON, which it is anyway");
    for (CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) verb->allow_extras();
    app.require_subcommand(0, 1);  // the name of a second verb is no verb

    try {
        app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
    } catch (const CLI::CallForHelp&) {
        arguments.help = app.help();
        return arguments;
    } catch (const CLI::RequiredError&) {
        if (const auto rest = app.remaining(true); !rest.empty()) return unknown_word(app, rest.front());
        const std::string due = diagnose.parsed() ? "LOG" : "FILE";
        return complaint(Problem::missing_key, due, {}, {}, "a " + due + " is due; - reads standard input");
    } catch (const CLI::ParseError& error) {
        return complaint(Problem::unknown_option, {}, {}, {}, error.what());
    }
    if (const auto rest = app.remaining(true); !rest.empty()) return unknown_word(app, rest.front());
    if (version) {
        arguments.verb = Verb::version;
        return arguments;
    }
    if (check.parsed()) arguments.verb = Verb::check;
    if (advise.parsed()) arguments.verb = Verb::advise;
    if (max.parsed()) arguments.verb = Verb::max;
    if (grow.parsed()) arguments.verb = Verb::grow;
    if (sweep.parsed()) arguments.verb = Verb::sweep;
    if (diagnose.parsed()) arguments.verb = Verb::diagnose;
    if (explain.parsed()) arguments.verb = Verb::explain;
    if (risk.parsed()) arguments.verb = Verb::risk;
    if (trace.parsed()) arguments.verb = Verb::trace;
    if (models.parsed()) arguments.verb = Verb::models;
    if (gpus.parsed()) arguments.verb = Verb::gpus;
    if (trainers.parsed()) arguments.verb = Verb::trainers;
    if (schema.parsed()) arguments.verb = Verb::schema;
    arguments.help = app.help();
    return finish(std::move(arguments), raw);
}

}  // namespace vram::cli
