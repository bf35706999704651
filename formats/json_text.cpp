#include "formats/json_text.h"

#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong::foreign {

namespace {

template <class Json>
Json parse(std::string_view text, std::string_view origin) {
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    std::string_view what = error.what();
    if (const auto bracket = what.find("] "); bracket != std::string_view::npos) what.remove_prefix(bracket + 2);
    throw UserError("{}: is not valid JSON ({})", origin, single_line(what));
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view origin) {
  check_json_depth(text, origin);
  return parse<nlohmann::json>(text, origin);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view origin) {
  check_ordered_json(text, origin);
  return parse<nlohmann::ordered_json>(text, origin);
}

}  // namespace furlong::foreign
