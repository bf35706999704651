#include "trainers/checkpoint/checkpoint_origin.h"

namespace furlong {
namespace {

constexpr const char* json_name = "origin";
constexpr std::string_view tensor_prefix = "carried/";
std::string file_name(std::size_t i) { return "origin_files/" + std::to_string(i); }

}  // namespace

std::optional<CheckpointOrigin> CheckpointOrigin::read(const CheckpointReader& checkpoint) {
  if (!checkpoint.has(json_name)) return std::nullopt;
  CheckpointOrigin origin;
  origin.json = checkpoint.text(json_name);
  for (std::size_t i = 0; checkpoint.has(file_name(i)); ++i) origin.files.push_back(checkpoint.text(file_name(i)));
  for (const TensorInfo& info : checkpoint.tensors(tensor_prefix)) {
    const std::string name = info.name.substr(tensor_prefix.size());
    Tensor& tensor = origin.carried.emplace_back();
    tensor.name = name;
    tensor.dtype = info.dtype;
    tensor.shape = info.shape;
    tensor.data.resize(info.bytes);
    checkpoint.read(info.name, tensor.data.data(), tensor.data.size());
  }
  return origin;
}

void CheckpointOrigin::write(CheckpointSink& checkpoint) const {
  checkpoint.text(json_name, json);
  for (std::size_t i = 0; i < files.size(); ++i) checkpoint.text(file_name(i), files[i]);
  for (const Tensor& tensor : carried)
    checkpoint.tensor(std::string(tensor_prefix) + tensor.name, tensor.dtype, tensor.shape, tensor.data.data());
}

}  // namespace furlong
