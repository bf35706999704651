#pragma once
// Compares the tensors of a foreign file with a table of mappings, and reads them.
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

/// Compares the file with the table. Returns the matched, missing, misshapen and unequal tensors. A remaining tensor is
/// carried (stored only for a later export) if is_carried(its name), otherwise unexpected.
TensorReport match_tensors(const TensorFile& file, const std::vector<Mapping>& table,
                           const std::vector<Duplicate>& duplicates,
                           const std::function<bool(std::string_view)>& is_carried);
/// Throws UserError if the report has faults that `options` do not allow. Calls options.on_fault first.
void check_report(const TensorReport& report, const TensorFile& file, const std::string& described_by,
                  const ImportOptions& options);

/// Reads a matched parameter, part by part, into `values`. Throws UserError if a value is not finite.
void read_parameter(const TensorFile& file, const Mapping& mapping, const std::vector<Duplicate>& duplicates,
                    std::span<float> values);
/// Returns the values of a parameter in host memory. Its store must be on the CPU, in float32.
std::span<float> values_of(const Parameter& parameter);

/// Reads a tensor that is stored for export only: integers as int64, other types as float32.
CheckpointOrigin::Tensor carried_tensor(const TensorFile& file, const ForeignTensor& tensor);
/// Reads the unused rows of a part, for export, as a tensor named unused_rows_name().
CheckpointOrigin::Tensor unused_rows(const TensorFile& file, const Part& part);
std::string unused_rows_name(const Part& part);
/// Returns true if a checkpoint can store a tensor with this name.
bool can_be_stored(const std::string& name);

}  // namespace furlong
