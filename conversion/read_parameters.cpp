#include "conversion/read_parameters.h"

#include <cmath>
#include <cstring>
#include <set>

#include "conversion/import_model.h"

#include "framework/core/error.h"

namespace furlong {
namespace {

/// Returns the tensor that a part is read from: its own, or a duplicate. Null if both are missing.
const ForeignTensor* find_part(const TensorFile& file, const Part& part, const std::vector<Duplicate>& duplicates) {
  if (const ForeignTensor* own = file.find(part.name)) return own;
  for (const Duplicate& duplicate : duplicates) {
    if (duplicate.of == part.name) {
      if (const ForeignTensor* other = file.find(duplicate.name)) return other;
    }
  }
  return nullptr;
}

/// Compares the tensors of a file with the table.
class Matching {
 public:
  Matching(const TensorFile& file, const std::vector<Mapping>& table, const std::vector<Duplicate>& duplicates)
      : file_(file), table_(table), duplicates_(duplicates) {}

  TensorReport report(const std::function<bool(std::string_view)>& is_carried) {
    for (const Mapping& mapping : table_) match(mapping);
    for (const Duplicate& duplicate : duplicates_) compare(duplicate);
    for (const ForeignTensor& tensor : file_.tensors()) {
      if (used_.contains(tensor.name)) continue;
      (is_carried(tensor.name) ? report_.carried : report_.unexpected).push_back({tensor.name, tensor.shape, ""});
    }
    return std::move(report_);
  }

 private:
  void match(const Mapping& mapping) {
    TensorReport::Matched matched{mapping.parameter, mapping.shape(), {}, {}};
    bool whole = true;
    for (const Part& part : mapping.parts) {
      const ForeignTensor* tensor = find_part(file_, part, duplicates_);
      if (!tensor) {
        report_.missing.push_back({part.name, part.shape, ""});
        whole = false;
        continue;
      }
      used_.insert(tensor->name);
      if (!(tensor->shape == part.shape)) {
        report_.misshapen.push_back({tensor->name, tensor->shape, "expected " + part.shape.text()});
        whole = false;
        continue;
      }
      matched.foreign.push_back(tensor->name);
      if (matched.stored_type.empty()) matched.stored_type = tensor->stored_type;
    }
    if (whole) report_.matched.push_back(std::move(matched));
  }

  void compare(const Duplicate& duplicate) {
    const ForeignTensor* other = file_.find(duplicate.name);
    const ForeignTensor* own = file_.find(duplicate.of);
    // Missing, or already used instead of the original, or with values of its own.
    if (!other || used_.contains(duplicate.name) || (own && duplicate.may_differ)) return;
    used_.insert(duplicate.name);
    if (!own) return;  // reported as missing already
    if (!(own->shape == other->shape)) {
      report_.misshapen.push_back({other->name, other->shape, "expected " + own->shape.text() + " as of " + own->name});
      return;
    }
    std::vector<float> a(static_cast<std::size_t>(own->shape.elements())), b(a.size());
    file_.read(own->name, a);
    file_.read(other->name, b);
    if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0)
      report_.unequal.push_back({other->name, other->shape, "repeats " + own->name + " where embeddings are tied"});
  }

  const TensorFile& file_;
  const std::vector<Mapping>& table_;
  const std::vector<Duplicate>& duplicates_;
  std::set<std::string> used_;
  TensorReport report_;
};

void check_finite(const TensorFile& file, const std::string& name, std::span<const float> values) {
  for (const float value : values) {
    if (!std::isfinite(value))
      throw UserError(
          "{}: tensor {} contains {}; expected finite weights, so the file is damaged or its training diverged; "
          "download the file again, or use an earlier checkpoint",
          file.path(), name, value);
  }
}

}  // namespace

TensorReport match_tensors(const TensorFile& file, const std::vector<Mapping>& table,
                           const std::vector<Duplicate>& duplicates,
                           const std::function<bool(std::string_view)>& is_carried) {
  return Matching(file, table, duplicates).report(is_carried);
}

void check_report(const TensorReport& report, const TensorFile& file, const std::string& described_by,
                  const ImportOptions& options) {
  if (report.is_faultless(options.allow_missing, options.allow_unexpected)) return;
  if (options.on_fault) options.on_fault(report);
  // Of heads that Furlong has no parameters for, such as classifiers, the rest of the model is what a user wants.
  const bool only_unexpected = report.is_faultless(options.allow_missing, true);
  throw UserError("{}: its tensors do not match those that {} describes: {}{}", file.path(), described_by,
                  report.faults(options.allow_missing, options.allow_unexpected),
                  only_unexpected ? "; furlong convert --allow-unexpected imports the model without them" : "");
}

std::span<float> values_of(const Parameter& parameter) {
  return {parameter.master().data<float>(), static_cast<std::size_t>(parameter.shape().elements())};
}

void read_parameter(const TensorFile& file, const Mapping& mapping, const std::vector<Duplicate>& duplicates,
                    std::span<float> values) {
  std::size_t begin = 0;
  std::vector<float> buffer;
  for (const Part& part : mapping.parts) {
    const auto size = static_cast<std::size_t>(part.elements());
    const ForeignTensor* tensor = find_part(file, part, duplicates);
    const std::span<float> place = values.subspan(begin, size);
    if (part.layout == Layout::plain && part.unused_rows == 0) {
      file.read(tensor->name, place);
    } else {
      buffer.resize(static_cast<std::size_t>(part.shape.elements()));
      file.read(tensor->name, buffer);
      to_ours(part, buffer, place);
    }
    check_finite(file, tensor->name, place);
    begin += size;
  }
}

CheckpointOrigin::Tensor carried_tensor(const TensorFile& file, const ForeignTensor& tensor) {
  CheckpointOrigin::Tensor kept{tensor.name, "float32", {tensor.shape.begin(), tensor.shape.end()}, {}};
  const auto keep = [&](const void* data, std::size_t bytes) {
    const auto* first = static_cast<const std::byte*>(data);
    kept.data.assign(first, first + bytes);
  };
  if (tensor.stored_type.starts_with("I") || tensor.stored_type.starts_with("U") || tensor.stored_type == "BOOL") {
    const std::vector<std::int64_t> values = file.read_integers(tensor.name);
    kept.dtype = "int64";
    keep(values.data(), values.size() * sizeof(std::int64_t));
    return kept;
  }
  std::vector<float> values(static_cast<std::size_t>(tensor.shape.elements()));
  file.read(tensor.name, values);
  check_finite(file, tensor.name, values);
  keep(values.data(), values.size() * sizeof(float));
  return kept;
}

std::string unused_rows_name(const Part& part) { return part.name + ".unused_rows"; }

CheckpointOrigin::Tensor unused_rows(const TensorFile& file, const Part& part) {
  CheckpointOrigin::Tensor rows = carried_tensor(file, *file.find(part.name));
  rows.name = unused_rows_name(part);
  rows.shape[0] = part.unused_rows;
  rows.data.resize(static_cast<std::size_t>(part.unused_elements()) * sizeof(float));
  return rows;
}

bool can_be_stored(const std::string& name) {
  const bool numeral = name.find_first_not_of("0123456789") == std::string::npos;  // names of groups in a checkpoint
  return !numeral && name.find('/') == std::string::npos && name != "." && name.size() < 1000;
}

}  // namespace furlong
