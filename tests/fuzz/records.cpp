// The records of a run, and of an imported model in its checkpoint. The byte before the last chooses which one.
#include "conversion/finetune_record.h"
#include "conversion/import_origin.h"
#include "framework/core/log.h"
#include "tests/fuzz/json_mutator.h"
#include "trainers/checkpoint/checkpoints.h"

namespace fuzzing = furlong::fuzzing;

namespace {

const std::string& folder() {
  static const std::string path = fuzzing::Folder::instance().path("");
  return path;
}

void read_finetune_record(std::string_view text) {
  fuzzing::write_input("finetune.json", text);
  fuzzing::succeeds([&] {
    const furlong::FinetuneRecord record(folder());
    record.write();
    const furlong::FinetuneRecord again(folder());
    fuzzing::expect(again.source == record.source && again.source_fingerprint == record.source_fingerprint &&
                        again.start_fingerprints == record.start_fingerprints,
                    "a record differs after writing and reading");
  });
}

void read_best(std::string_view text) {
  fuzzing::write_input("best.json", text);
  fuzzing::write_input("best.h5", "");
  fuzzing::succeeds([&] {
    const furlong::CheckpointDirectory checkpoints(folder(), 2, true);
    if (const auto best = checkpoints.best()) fuzzing::expect(best->step >= 0, "a negative step");
  });
  fuzzing::succeeds([&] { furlong::newest_complete_checkpoint(folder()); });
}

void read_origin(std::string_view text) {
  furlong::CheckpointOrigin kept;
  kept.json = text;
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_object() && json.contains("files")) kept.files.resize(json["files"].size());
  fuzzing::succeeds([&] {
    const furlong::Origin origin = furlong::Origin::from_checkpoint(kept, "checkpoint.h5");
    const std::string again = origin.to_checkpoint().json;
    kept.json = again;
    fuzzing::expect(furlong::Origin::from_checkpoint(kept, "checkpoint.h5").to_checkpoint().json == again,
                    "an origin differs after writing and reading");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  [[maybe_unused]] static const bool quiet = (furlong::configure_logging("quiet"), true);
  const auto [text, chosen] = fuzzing::two_texts(fuzzing::text_of(data, size));
  constexpr void (*readers[])(std::string_view) = {read_finetune_record, read_best, read_origin};
  readers[chosen.empty() ? 0 : static_cast<unsigned char>(chosen[0]) % std::size(readers)](text);
  return 0;
}

FURLONG_JSON_MUTATOR
