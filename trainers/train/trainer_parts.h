#pragma once
// For trainers/trainer*.cpp only: what a trainer and the forecast of its memory are both made with.
#include <memory>
#include <optional>

#include "trainers/model/model.h"
#include "trainers/train/distillation/teacher.h"

namespace furlong {

inline std::unique_ptr<Teacher> make_teacher(const Settings& settings, const Vocabulary& data, const Device& device,
                                             std::optional<DType> compute) {
  return settings.teacher.teaches() ? std::make_unique<Teacher>(settings, data, device, compute) : nullptr;
}

inline Frozen frozen_by(const std::unique_ptr<Teacher>& teacher) { return teacher ? teacher->frozen() : Frozen(); }

inline std::int64_t bucket_elements(const ParallelSettings& parallel, DType dtype) {
  return parallel.bucket_megabytes * 1'000'000 / size_of(dtype);
}

}  // namespace furlong
