// The tokens around a whole document.
#include "datasets/tokenizers/text_growth.h"
#include "datasets/tokenizers/tokenizer_kinds.h"

namespace furlong {
namespace {

std::vector<std::int32_t> ids_of(const JsonView& json) {
  std::vector<std::int32_t> ids;
  for (const JsonView& item : json.items()) ids.push_back(item.token_id());
  return ids;
}

/// Each token of the frame counts as a step.
void read_frame(const JsonView& json, TokenFrame& frame) {
  if (json.is_null()) return;
  const auto add = [&](std::vector<std::int32_t>& side, const JsonView& id) {
    check_step_count(frame.front.size() + frame.back.size(), json.name(), "tokens around a text");
    side.push_back(id.token_id());
  };
  const std::string& type = json.at("type").text();
  if (type == "Sequence") {
    for (const JsonView& item : json.at("processors").items()) read_frame(item, frame);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    add(frame.front, json.at("cls").item(1));
    add(frame.back, json.at("sep").item(1));
  } else if (type == "TemplateProcessing") {
    bool after_text = false;
    for (const JsonView& item : json.at("single").items()) {
      if (item.has("Sequence")) {
        if (after_text) throw UserError("{}: a frame that contains the text twice is not supported", item.name());
        after_text = true;
        continue;
      }
      const std::string& name = item.at("SpecialToken").at("id").text();
      for (const JsonView& id : json.at("special_tokens").at(name).at("ids").items())
        add(after_text ? frame.back : frame.front, id);
    }
  } else if (type != "ByteLevel") {  // ByteLevel only trims offsets
    throw UserError(
        "{}: the post_processor '{}' is not supported; expected BertProcessing, ByteLevel, RobertaProcessing or "
        "TemplateProcessing",
        json.name(), type);
  }
}

}  // namespace

nlohmann::json frame_to_json(const TokenFrame& frame) { return {{"front", frame.front}, {"back", frame.back}}; }

TokenFrame frame_from_json(const JsonView& json) {
  TokenFrame frame{ids_of(json.at("front")), ids_of(json.at("back"))};
  const std::size_t count = frame.front.size() + frame.back.size();
  if (count > 0) check_step_count(count - 1, json.name(), "tokens around a text");
  return frame;
}

TokenFrame frame_of_processor(const JsonView& json) {
  TokenFrame frame;
  read_frame(json, frame);
  return frame;
}

}  // namespace furlong
