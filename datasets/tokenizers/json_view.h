#pragma once
// JSON written by others: each value knows where it stands, so that what is wrong is said with file and place.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json_text.h"
#include "framework/core/error.h"

namespace furlong {

/// A value inside a document that outlives it, and its name ("tokenizer.json: model.vocab"). All getters throw
/// UserError with that name.
class JsonView {
 public:
  JsonView(const nlohmann::json& value, std::string name) : value_(&value), name_(std::move(name)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& name() const { return name_; }
  bool is_null() const { return value_->is_null(); }

  /// A member that has to be there.
  JsonView at(std::string_view key) const;
  bool has(std::string_view key) const;  ///< there, and not null
  JsonView item(std::size_t index) const;
  std::size_t size() const;  ///< of an array
  std::vector<JsonView> items() const;

  const std::string& text() const;
  std::int64_t integer() const;
  bool boolean() const;
  double real() const;
  std::string text(std::string_view key, std::string_view fallback) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::int64_t integer(std::string_view key, std::int64_t fallback) const;
  /// An id of a token: 0 to 2^31 - 1.
  std::int32_t token_id() const;

 private:
  [[noreturn]] void wrong(std::string_view expected) const;
  const nlohmann::json* value_;
  std::string name_;
};

using foreign::parse_json;

}  // namespace furlong
