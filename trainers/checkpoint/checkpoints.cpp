#include "trainers/checkpoint/checkpoints.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/io/atomic_file.h"
#include "framework/io/checkpoint_file.h"
#include "framework/io/checkpoint_shards.h"
#include "framework/io/text_file.h"

namespace furlong {

namespace fs = std::filesystem;

namespace {

void remove_or_warn(const fs::path& path) {
  std::error_code failure;
  fs::remove(path, failure);
  if (failure) log_warn("{}: cannot remove this file: {}", path.string(), failure.message());
}

void copy_atomically(const fs::path& from, const fs::path& to) {
  std::ifstream in(from, std::ios::binary);
  if (!in) throw_file_error(from, "read", errno);
  AtomicFile out(to);
  std::vector<char> block(std::size_t{1} << 20);
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())), in.gcount() > 0) {
    out.write(block.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad()) throw MachineError("{}: cannot read: input/output error", from.string());
  out.commit();
}

/// Makes `to` another name of the file `from`, or a copy on file systems without hard links.
void link_atomically(const fs::path& from, const fs::path& to) {
  const fs::path temporary = partial_path(to);
  std::error_code ignored;
  if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, temporary.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    copy_atomically(from, to);  // reports any other failure
    return;
  }
  // rename() leaves both names where they already are links to one file.
  const int failure = ::rename(temporary.c_str(), to.c_str()) == 0 ? 0 : errno;
  fs::remove(temporary, ignored);
  if (failure != 0) throw_file_error(to, "write", failure);
  flush_directory(to.parent_path());
}

/// Reads best.json in a folder; nullopt if it is missing or invalid.
std::optional<CheckpointDirectory::Best> recorded_best(const fs::path& folder) {
  const fs::path record = folder / "best.json";
  std::error_code failure;
  if (!fs::exists(record, failure)) return std::nullopt;
  const auto json = nlohmann::json::parse(read_text_file(record, 4096), nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer() ||
      json["step"].get<std::int64_t>() < 0 || !json.contains("validation_loss") ||
      !json["validation_loss"].is_number()) {
    log_warn("{}: not a valid record of the best checkpoint; the best one is chosen among later validations",
             record.string());
    return std::nullopt;
  }
  return CheckpointDirectory::Best{json["step"].get<std::int64_t>(), json["validation_loss"].get<double>(),
                                   folder / "best.h5"};
}

/// Whether a checkpoint that cannot be opened is damaged or missing. Otherwise (permissions, an I/O error, a newer
/// format) it may be intact.
bool is_damage(const Error& error) {
  return dynamic_cast<const UserError*>(&error) != nullptr && dynamic_cast<const UnusableFile*>(&error) == nullptr;
}

/// Opens a checkpoint and its shards. Returns nullopt, and the reason in `damage`, if it is damaged or missing. Throws
/// if it cannot be read for another reason.
std::optional<CheckpointReader> open_if_intact(const fs::path& path, std::string& damage) {
  try {
    return CheckpointReader::open(path);
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
    damage = error.what();
    return std::nullopt;
  }
}

using Candidates = std::vector<std::pair<std::int64_t, fs::path>>;

/// Inserts best.h5 before the step file of the same step, which is therefore tried first.
void add_best(Candidates& candidates, const CheckpointDirectory::Best& best) {
  candidates.insert(
      std::find_if(candidates.begin(), candidates.end(), [&](const auto& c) { return c.first >= best.step; }),
      {best.step, best.path});
}

/// Returns the step that an intact checkpoint contains if it is another one than expected.
std::optional<std::int64_t> other_step(const CheckpointReader& checkpoint, std::int64_t expected) {
  if (!checkpoint.has("step") || checkpoint.integer("step") == expected) return std::nullopt;
  return checkpoint.integer("step");
}

/// Returns the step of a checkpoint, or nullopt if it is damaged, missing or of no step.
std::optional<std::int64_t> step_of(const fs::path& path) {
  std::string damage;
  const auto checkpoint = open_if_intact(path, damage);
  if (!checkpoint || !checkpoint->has("step")) return std::nullopt;
  return checkpoint->integer("step");
}

/// Returns the last readable candidate; candidates are ascending by step. A best.h5 of another step than its record is
/// the last choice.
std::optional<fs::path> newest_complete_of(const fs::path& folder, const Candidates& candidates) {
  std::string newest_reason;
  std::optional<fs::path> wrongly_recorded;
  for (auto candidate = candidates.rbegin(); candidate != candidates.rend(); ++candidate) {
    std::string damage;
    const auto checkpoint = open_if_intact(candidate->second, damage);
    if (!checkpoint) {
      log_warn("checkpoint skipped: {}", damage);
      if (newest_reason.empty()) newest_reason = damage;
      continue;
    }
    const auto step = other_step(*checkpoint, candidate->first);
    if (!step || candidate->second.filename() != "best.h5") return candidate->second;
    log_warn("checkpoint skipped: {}: contains step {}, but best.json gives step {}", candidate->second.string(), *step,
             candidate->first);
    wrongly_recorded = candidate->second;
  }
  if (candidates.empty() || wrongly_recorded) return wrongly_recorded;
  throw DamagedCheckpoints(
      "{}: none of the {} checkpoints here is intact ({}); to start from step 0, remove {}, or use furlong train "
      "--resume never",
      folder.string(), candidates.size(), newest_reason, folder.parent_path().string());
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(fs::path path, std::int64_t keep_last, bool keep_best)
    : path_(std::move(path)), keep_last_(keep_last), keep_best_(keep_best) {
  require(keep_last_ >= 1, "CheckpointDirectory: keep_last is {}, expected at least 1", keep_last_);
  std::error_code failure;
  fs::create_directories(path_, failure);
  if (!failure && !fs::is_directory(path_)) failure = std::make_error_code(std::errc::not_a_directory);
  if (failure) throw_file_error(path_, "create the directory", failure.value());
  remove_abandoned_partial_files(path_);
  load_best();
}

void CheckpointDirectory::check_writable() const { AtomicFile(path_ / "best.json").discard(); }

std::optional<std::int64_t> step_in_name(const std::string& name) {
  constexpr std::string_view prefix = "step_", suffix = ".h5";
  if (name.size() < prefix.size() + 8 + suffix.size() || !name.starts_with(prefix) || !name.ends_with(suffix))
    return std::nullopt;
  const char* begin = name.data() + prefix.size();
  const char* end = name.data() + name.size() - suffix.size();
  std::int64_t step = 0;
  const auto [parsed, error] = std::from_chars(begin, end, step);
  if (error != std::errc{} || parsed != end || step < 0) return std::nullopt;
  return step;
}

fs::path checkpoint_path(const fs::path& folder, std::int64_t step) {
  require(step >= 0, "a checkpoint of step {}", step);
  return folder / fmt::format("step_{:08d}.h5", step);
}

fs::path CheckpointDirectory::path_for(std::int64_t step) const { return checkpoint_path(path_, step); }

std::vector<std::int64_t> CheckpointDirectory::steps() const {
  std::vector<std::int64_t> found;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(path_, failure)) {
    if (const auto step = step_in_name(entry.path().filename().string())) found.push_back(*step);
  }
  if (failure) throw_file_error(path_, "list the directory", failure.value());
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<CheckpointDirectory::Best> CheckpointDirectory::best() const { return best_; }

void CheckpointDirectory::committed(std::int64_t step, std::optional<double> validation_loss) {
  if (keep_best_ && validation_loss && std::isfinite(*validation_loss) &&
      (!best_ || *validation_loss < best_->validation_loss)) {
    set_best(step, *validation_loss);
  }
  if (!keep_best_) forget_best();  // left by an earlier part of the run; no longer updated
  std::vector<std::int64_t> found = steps();
  std::erase_if(found, [&](std::int64_t other) { return other > step; });
  const std::size_t excess = found.size() - std::min(found.size(), static_cast<std::size_t>(keep_last_));
  for (std::size_t i = 0; i < excess; ++i) remove_or_warn(path_for(found[i]));
  remove_orphaned_shards(step);  // other ranks may be writing those of later steps
}

void CheckpointDirectory::adopt(const fs::path& checkpoint, std::int64_t step) const {
  std::error_code missing;
  if (!fs::equivalent(checkpoint, path_for(step), missing)) link_atomically(checkpoint, path_for(step));
}

void CheckpointDirectory::outdate_best() {
  if (best_) best_->validation_loss = HUGE_VAL;
}

/// Removes shards up to a step whose checkpoint was deleted or never completed. The best checkpoint may exist as
/// best.h5 alone.
void CheckpointDirectory::remove_orphaned_shards(std::int64_t up_to) const {
  std::set<std::string> wanted;
  for (const std::int64_t step : steps()) wanted.insert(path_for(step).stem().string());
  if (best_) wanted.insert(path_for(best_->step).stem().string());
  std::error_code failure;
  std::vector<fs::path> orphans;
  for (const auto& entry : fs::directory_iterator(path_, failure)) {
    const auto checkpoint = checkpoint_of_shard(entry.path().filename().string());
    if (checkpoint && !wanted.contains(*checkpoint) && step_in_name(*checkpoint + ".h5").value_or(up_to) <= up_to)
      orphans.push_back(entry.path());
  }
  // Whatever best.json says, best.h5 names its shards.
  if (!orphans.empty() && (!best_ || !best_has_recorded_step_)) {
    const auto needed = shards_of_best();
    if (!needed) return;
    std::erase_if(orphans, [&](const fs::path& orphan) {
      return std::find(needed->begin(), needed->end(), orphan.filename()) != needed->end();
    });
  }
  for (const fs::path& orphan : orphans) remove_or_warn(orphan);
}

/// Returns the shards that best.h5 needs; nullopt if it cannot be read, but may be intact.
std::optional<std::vector<std::string>> CheckpointDirectory::shards_of_best() const {
  std::vector<std::string> none;
  const fs::path best = path_ / "best.h5";
  if (!fs::exists(best)) return none;
  try {
    return CheckpointReader::shards_of(best);
  } catch (const Error& error) {
    log_warn("{}", error.what());
    return is_damage(error) ? std::optional(none) : std::nullopt;
  }
}

// best.json is written first. If the program is killed before best.h5 follows, load_best() detects the difference, and
// the step's own file still exists, because pruning comes last.
void CheckpointDirectory::set_best(std::int64_t step, double validation_loss) {
  const nlohmann::ordered_json record = {{"step", step}, {"validation_loss", validation_loss}, {"file", "best.h5"}};
  write_file_atomically(path_ / "best.json", record.dump() + '\n');
  link_atomically(path_for(step), path_ / "best.h5");
  best_has_recorded_step_ = true;
  best_ = Best{step, validation_loss, path_ / "best.h5"};
}

void CheckpointDirectory::load_best() {
  const std::optional<Best> best = recorded_best(path_);
  if (!best) return;
  const fs::path file = path_for(best->step);
  const auto wanted = checkpoint_checksum(file);
  if (wanted && wanted != checkpoint_checksum(best->path)) {
    const std::optional<std::int64_t> present = step_of(best->path);
    best_has_recorded_step_ = !present || *present <= best->step;
    if (!best_has_recorded_step_)
      log_warn("{}: contains step {}, but best.json gives step {}", best->path.string(), *present, best->step);
    // The program was killed between the two files. A damaged file, or one of another step, must not replace best.h5.
    if (present.value_or(-1) < best->step && step_of(file) == best->step) link_atomically(file, best->path);
  }
  if (fs::exists(best->path)) best_ = best;
}

void CheckpointDirectory::forget_best() {
  remove_or_warn(path_ / "best.json");
  remove_or_warn(path_ / "best.h5");
  best_.reset();
}

std::optional<fs::path> CheckpointDirectory::newest_complete() const {
  Candidates candidates;
  for (const std::int64_t step : steps()) candidates.emplace_back(step, path_for(step));
  if (best_) add_best(candidates, *best_);
  return newest_complete_of(path_, candidates);
}

std::optional<fs::path> newest_complete_checkpoint(const fs::path& folder) {
  const auto list = [&] {
    Candidates candidates;
    std::error_code failure;
    for (const auto& entry : fs::directory_iterator(folder, failure)) {
      if (const auto step = step_in_name(entry.path().filename().string()))
        candidates.emplace_back(*step, entry.path());
    }
    std::sort(candidates.begin(), candidates.end());
    if (const auto best = recorded_best(folder); best && fs::exists(best->path)) add_best(candidates, *best);
    return candidates;
  };
  for (Candidates candidates = list();;) {
    try {
      return newest_complete_of(folder, candidates);
    } catch (const Error&) {
      Candidates now = list();
      if (now == candidates) throw;
      candidates = std::move(now);  // a training has replaced them meanwhile
    }
  }
}

namespace {

/// Returns the number in "<number>_<stage>", or nullopt for other names.
std::optional<std::int64_t> stage_number(const std::string& name) {
  std::int64_t number = 0;
  const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const std::string_view stage(rest, static_cast<std::size_t>(name.data() + name.size() - rest));
  // _transfer: the name of attention transfer in runs of earlier versions.
  constexpr std::array stages{"_attention_transfer", "_transfer", "_distillation", "_task"};
  const bool is_stage = error == std::errc{} && std::find(stages.begin(), stages.end(), stage) != stages.end();
  return is_stage ? std::optional(number) : std::nullopt;
}

bool holds_checkpoints(const fs::path& folder) {
  if (fs::exists(folder / "best.h5")) return true;
  std::error_code missing;
  const fs::directory_iterator entries(folder, missing);
  return !missing && std::any_of(begin(entries), end(entries), [](const auto& entry) {
    return step_in_name(entry.path().filename().string()).has_value();
  });
}

}  // namespace

std::optional<CheckpointReader> open_newest_checkpoint(const fs::path& folder) {
  for (std::optional<fs::path> newest = newest_complete_checkpoint(folder); newest;) {
    try {
      return CheckpointReader::open(*newest);
    } catch (const UserError&) {
      const std::optional<fs::path> now = newest_complete_checkpoint(folder);
      if (now == newest) throw;
      newest = now;  // a training has replaced it meanwhile
    }
  }
  return std::nullopt;
}

std::optional<fs::path> last_stage_of(const fs::path& run) {
  std::vector<std::pair<std::int64_t, fs::path>> stages;
  bool any = false;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(run, failure)) {
    const auto number = stage_number(entry.path().filename().string());
    if (!number || !entry.is_directory()) continue;
    any = true;
    if (holds_checkpoints(entry.path() / "checkpoints")) stages.emplace_back(*number, entry.path());
  }
  if (failure) throw_file_error(run, "list the directory", failure.value());
  if (!any) return std::nullopt;
  if (stages.empty())
    throw UserError("{}: no stage of this run of furlong finetune has a checkpoint yet{}", run.string(),
                    fs::exists(run / "teacher.h5") ? "; teacher.h5 there is the model that it starts from" : "");
  std::sort(stages.begin(), stages.end());
  const auto& last = stages.back();
  if (stages.size() > 1 && stages[stages.size() - 2].first == last.first)
    throw UserError(
        "{}: the last stage is ambiguous: {} and {} come from different finetune.stages; pass the directory of one of "
        "them",
        run.string(), stages[stages.size() - 2].second.filename().string(), last.second.filename().string());
  return last.second;
}

void CheckpointDirectory::forget_wrong_record(std::int64_t step) {
  if (!best_ || best_->step <= step) return;
  std::string damage;
  const auto checkpoint = open_if_intact(best_->path, damage);
  if (!checkpoint || !other_step(*checkpoint, best_->step)) return;
  remove_or_warn(path_ / "best.json");
  best_.reset();
}

void CheckpointDirectory::discard_after(std::int64_t step) {
  for (const std::int64_t later : steps()) {
    if (later > step) remove_or_warn(path_for(later));
  }
  // A new run (step < 0) also removes a best.h5 without a readable record.
  if (step < 0 || (best_ && best_->step > step)) forget_best();
  remove_orphaned_shards(std::numeric_limits<std::int64_t>::max());
  flush_directory(path_);
}

}  // namespace furlong
