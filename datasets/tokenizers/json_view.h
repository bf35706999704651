#pragma once
// JSON from foreign files. Each value knows its path, so that errors name file and place.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json_text.h"
#include "framework/core/error.h"

namespace furlong {

/// A value in a JSON document, and its name ("tokenizer.json: model.vocab"). The document must outlive the view. All
/// getters throw UserError with that name if the value is missing or has another type.
class JsonView {
 public:
  JsonView(const nlohmann::json& value, std::string name) : value_(&value), name_(std::move(name)) {}

  const nlohmann::json& value() const { return *value_; }
  std::string name() const { return name_.ends_with(':') ? name_.substr(0, name_.size() - 1) : name_; }
  bool is_null() const { return value_->is_null(); }

  /// Returns a required member.
  JsonView at(std::string_view key) const;
  /// Whether the member exists and is not null.
  bool has(std::string_view key) const;
  /// Returns an element of an array.
  JsonView item(std::size_t index) const;
  /// Returns the length of an array.
  std::size_t size() const;
  std::vector<JsonView> items() const;

  const std::string& text() const;
  std::int64_t integer() const;
  bool boolean() const;
  double real() const;
  /// Returns a member, or `fallback` if it is missing or null.
  std::string text(std::string_view key, std::string_view fallback) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::int64_t integer(std::string_view key, std::int64_t fallback) const;
  /// Returns a token id. Throws UserError if it is not in 0 to 2^31 - 1.
  std::int32_t token_id() const;

 private:
  [[noreturn]] void fail_with_expected(std::string_view expected) const;
  const nlohmann::json* value_;
  std::string name_;
};

using foreign::parse_json;

}  // namespace furlong
