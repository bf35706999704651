#include "framework/cuda/engine/report.h"

namespace furlong {
namespace {

using Report = CudaReport (*)();
constinit Report report_function = nullptr;  // set before main; constinit because the order of static objects is open

}  // namespace

CudaReportRegistration::CudaReportRegistration(CudaReport (*function)()) { report_function = function; }

std::optional<CudaReport> cuda_report() {
  if (report_function == nullptr) return std::nullopt;
  return report_function();
}

}  // namespace furlong
