#include "datasets/tokenizers/json_view.h"

#include <limits>

namespace furlong {

void JsonView::fail_with_expected(std::string_view expected) const {
  throw UserError("{}: expected {}, found {}", name(), expected, value_->type_name());
}

JsonView JsonView::at(std::string_view key) const {
  if (!value_->is_object()) fail_with_expected("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) throw UserError("{}: \"{}\" is missing", name(), key);
  return JsonView(*found, name_ + (name_.ends_with(':') ? " " : ".") + std::string(key));
}

bool JsonView::has(std::string_view key) const {
  if (!value_->is_object()) fail_with_expected("an object");
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

std::size_t JsonView::size() const {
  if (!value_->is_array()) fail_with_expected("an array");
  return value_->size();
}

JsonView JsonView::item(std::size_t index) const {
  if (index >= size()) throw UserError("{}: expected at least {} items, found {}", name(), index + 1, size());
  return JsonView((*value_)[index], fmt::format("{}[{}]", name(), index));
}

std::vector<JsonView> JsonView::items() const {
  std::vector<JsonView> all;
  for (std::size_t i = 0; i < size(); ++i) all.push_back(item(i));
  return all;
}

const std::string& JsonView::text() const {
  if (!value_->is_string()) fail_with_expected("a string");
  return value_->get_ref<const std::string&>();
}

std::int64_t JsonView::integer() const {
  if (!value_->is_number_integer() ||
      (value_->is_number_unsigned() && value_->get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())) {
    fail_with_expected("an integer");
  }
  return value_->get<std::int64_t>();
}

bool JsonView::boolean() const {
  if (!value_->is_boolean()) fail_with_expected("true or false");
  return value_->get<bool>();
}

double JsonView::real() const {
  if (!value_->is_number()) fail_with_expected("a number");
  return value_->get<double>();
}

std::string JsonView::text(std::string_view key, std::string_view fallback) const {
  return has(key) ? at(key).text() : std::string(fallback);
}

bool JsonView::boolean(std::string_view key, bool fallback) const { return has(key) ? at(key).boolean() : fallback; }

std::int64_t JsonView::integer(std::string_view key, std::int64_t fallback) const {
  return has(key) ? at(key).integer() : fallback;
}

std::int32_t JsonView::token_id() const {
  const std::int64_t id = integer();
  if (id < 0 || id > std::numeric_limits<std::int32_t>::max())
    throw UserError("{}: {} is not a token id; expected 0 to 2^31 - 1", name(), id);
  return static_cast<std::int32_t>(id);
}

}  // namespace furlong
