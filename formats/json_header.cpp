#include "formats/json_header.h"

#include <nlohmann/json.hpp>

#include "formats/element_type.h"
#include "formats/tensor_table.h"
#include "framework/core/printable.h"

namespace furlong::foreign {

namespace {

using Json = nlohmann::json;

/// Reduces the parser's events to one callback per kind of value. Every callback throws or continues.
class Events : public Json::json_sax_t {
 public:
  explicit Events(const std::string& path) : path_(path) {}

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(Json::number_integer_t) override { return other("a negative number"); }
  bool number_unsigned(Json::number_unsigned_t) override { return other("a number"); }
  bool number_float(Json::number_float_t, const Json::string_t&) override {
    return other("a number that is not an integer or is too large");
  }
  bool string(Json::string_t&) override { return other("text"); }
  bool binary(Json::binary_t&) override { return other("bytes"); }
  bool start_array(std::size_t) override { return other("a list"); }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    throw UserError("{}: damaged: its JSON is invalid at byte {} ({}); download or copy it again", path_, position,
                    printable(reason_of(error.what())));
  }

 protected:
  /// Called for a value of an unexpected kind.
  virtual bool other(std::string_view found) = 0;

  const std::string& path_;

 private:
  /// Returns the library's message without its number and position.
  static std::string_view reason_of(std::string_view message) {
    const auto at = message.find(": ");
    return at == std::string_view::npos ? message : message.substr(at + 2);
  }
};

/// {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"KEY": "TEXT"}}
class SafetensorsEvents : public Events {
 public:
  using Events::Events;
  std::vector<HeaderEntry> take() && { return std::move(entries_); }

  bool start_object(std::size_t) override {
    if (depth_ == 0) {
      depth_ = 1;
      return true;
    }
    if (depth_ != 1) return other("an object");
    depth_ = 2;
    if (!in_metadata_) {
      entries_.emplace_back().tensor.name = name_;
      has_type_ = has_shape_ = has_offsets_ = false;
    }
    return true;
  }

  bool end_object() override {
    if (depth_ == 2 && !in_metadata_ && !(has_type_ && has_shape_ && has_offsets_)) {
      throw UserError("{}: damaged: the header has no {} for tensor '{}'; download or copy it again", path_,
                      !has_type_    ? "dtype"
                      : !has_shape_ ? "shape"
                                    : "data_offsets",
                      printable(name_));
    }
    --depth_;
    return true;
  }

  bool key(Json::string_t& text) override {
    if (depth_ == 1) {
      name_ = text;
      in_metadata_ = text == "__metadata__";
      if (in_metadata_ && std::exchange(had_metadata_, true))
        throw UserError("{}: damaged: the header has '__metadata__' twice; download or copy it again", path_);
      return true;
    }
    field_ = text;
    if (in_metadata_) return true;
    bool* const seen = text == "dtype"          ? &has_type_
                       : text == "shape"        ? &has_shape_
                       : text == "data_offsets" ? &has_offsets_
                                                : nullptr;
    if (seen == nullptr || std::exchange(*seen, true)) {
      throw UserError(
          "{}: damaged: tensor '{}' has {} '{}' in the header; expected dtype, shape and data_offsets, once each; "
          "download or copy it again",
          path_, printable(name_), seen == nullptr ? "a field" : "two fields", printable(text));
    }
    n_offsets_ = 0;
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || field_ == "dtype") return other("a list");
    depth_ = 3;
    return true;
  }

  bool end_array() override {
    if (field_ == "data_offsets" && n_offsets_ != 2) {
      throw UserError("{}: damaged: data_offsets of tensor '{}' has {} numbers, expected 2; download or copy it again",
                      path_, printable(name_), n_offsets_);
    }
    depth_ = 2;
    return true;
  }

  bool string(Json::string_t& text) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || field_ != "dtype") return other("text");
    if (find_element_type(text) == nullptr) {
      throw UserError("{}: tensor '{}' has dtype '{}', which is unknown; convert it to F32, F16 or BF16", path_,
                      printable(name_), printable(text));
    }
    entries_.back().tensor.stored_type = text;
    return true;
  }

  bool number_unsigned(Json::number_unsigned_t number) override {
    if (depth_ != 3) return other("a number");
    HeaderEntry& entry = entries_.back();
    if (field_ == "shape") {
      append_extent(path_, name_, entry.tensor.shape, number);
    } else {
      if (n_offsets_ == 2)
        throw UserError("{}: damaged: data_offsets of tensor '{}' has more than 2 numbers; download or copy it again",
                        path_, printable(name_));
      (n_offsets_++ == 0 ? entry.begin : entry.end) = number;
    }
    return true;
  }

 private:
  bool other(std::string_view found) override {
    const std::string place = depth_ == 0   ? "instead of the header's object"
                              : depth_ == 1 ? fmt::format("for '{}'", printable(name_))
                                            : fmt::format("in '{}' of '{}'", printable(field_), printable(name_));
    throw UserError("{}: damaged: the header has {} {}, which safetensors does not allow; download or copy it again",
                    path_, found, place);
  }

  std::vector<HeaderEntry> entries_;
  int depth_ = 0;
  std::string name_;
  std::string field_;
  bool in_metadata_ = false, had_metadata_ = false;
  bool has_type_ = false, has_shape_ = false, has_offsets_ = false;
  int n_offsets_ = 0;
};

/// {"weight_map": {"NAME": "FILE"}, ...}; other members are ignored.
class WeightMapEvents : public Events {
 public:
  using Events::Events;
  std::vector<std::pair<std::string, std::string>> take() && {
    if (!had_map_) throw UserError("{}: has no 'weight_map'; expected a shard index", path_);
    return std::move(map_);
  }

  bool start_object(std::size_t) override {
    if (depth_ == 2 && in_map_) return other("an object");
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    other("a list");
    ++depth_;
    return true;
  }
  bool end_array() override { return end_object(); }
  bool key(Json::string_t& text) override {
    if (depth_ == 1) {
      in_map_ = text == "weight_map";
      if (in_map_ && std::exchange(had_map_, true))
        throw UserError("{}: damaged: has 'weight_map' twice; download or copy it again", path_);
    } else if (in_map_) {
      name_ = text;
    }
    return true;
  }
  bool string(Json::string_t& text) override {
    if (depth_ != 2 || !in_map_) return other("text");
    map_.emplace_back(name_, text);
    return true;
  }

 private:
  bool other(std::string_view found) override {
    if (depth_ == 0) throw UserError("{}: is {}, expected an object with a 'weight_map'", path_, found);
    if (in_map_)
      throw UserError(
          "{}: damaged: 'weight_map' has {}, expected tensor names mapped to file names; download or copy it again",
          path_, found);
    return true;
  }

  std::vector<std::pair<std::string, std::string>> map_;
  std::size_t depth_ = 0;
  bool in_map_ = false, had_map_ = false;
  std::string name_;
};

}  // namespace

std::vector<HeaderEntry> parse_safetensors_header(const std::string& path, std::string_view header) {
  SafetensorsEvents events(path);
  Json::sax_parse(header, &events);
  return std::move(events).take();
}

std::vector<std::pair<std::string, std::string>> parse_weight_map(const std::string& path, std::string_view text) {
  WeightMapEvents events(path);
  Json::sax_parse(text, &events);
  return std::move(events).take();
}

}  // namespace furlong::foreign
