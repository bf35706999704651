#pragma once
// The tensors of a foreign file against a table of mappings: comparing, reading, keeping.
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "conversion/mapping.h"
#include "conversion/tensor_report.h"
#include "formats/tensor_file.h"
#include "framework/autodiff/parameter_store.h"
#include "trainers/checkpoint/checkpoint_origin.h"

namespace furlong {

struct ImportOptions;

/// What is matched, missing, misshapen or unequal under a table, and of the other tensors what is carried and what
/// unexpected.
TensorReport match_tensors(const TensorFile& file, const std::vector<Mapping>& table,
                           const std::vector<Duplicate>& duplicates,
                           const std::function<bool(std::string_view)>& is_carried);
/// Throws UserError where the report is not faultless under the options, which are shown the report before.
void check_report(const TensorReport& report, const TensorFile& file, const std::string& described_by,
                  const ImportOptions& options);

/// Reads a matched parameter, part by part, into `values`. Throws UserError for values that are not finite.
void read_parameter(const TensorFile& file, const Mapping& mapping, const std::vector<Duplicate>& duplicates,
                    std::span<float> values);
/// The values of a parameter in host memory; the store is on the CPU, in float32.
std::span<float> values_of(const Parameter& parameter);

/// A tensor to be kept for export as it is: integers as int64, everything else as float32.
CheckpointOrigin::Tensor carried_tensor(const TensorFile& file, const ForeignTensor& tensor);
/// Whether a checkpoint can keep a tensor of that name.
bool can_be_kept(const std::string& name);

}  // namespace furlong
