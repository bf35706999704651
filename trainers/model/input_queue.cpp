#include "trainers/model/input_queue.h"

#include <cstring>

namespace furlong {
namespace {

constexpr std::int64_t border = 64;  // elements; aligns each part's address for fast copies

std::int64_t padded(std::int64_t elements) { return (elements + border - 1) / border * border; }

/// Allocates the part's tensor if it does not fit. Returns false, with an undefined tensor, if the part is empty.
bool make_tensor(const InputPart& part, std::int64_t elements, const Device& device) {
  if (elements == 0) {
    *part.tensor = Tensor{};
    return false;
  }
  if (!part.tensor->defined() || part.tensor->shape() != part.shape || part.tensor->device() != device)
    *part.tensor = Tensor::empty(part.shape, DType::int32, device);
  return true;
}

}  // namespace

void put_on_device(const std::vector<InputPart>& parts, const Device& device) {
  for (const InputPart& part : parts)
    if (make_tensor(part, static_cast<std::int64_t>(part.values->size()), device))
      part.tensor->copy_from(Tensor::from(*part.values, part.shape));
}

InputQueue::InputQueue(const Device& device)
    : stream_{device}, upload_(require_gpu_engine(device.type).make_upload(device.index)) {}

void InputQueue::send(const std::vector<InputPart>& parts) {
  if (waiting_) {  // discarded input: its copy may still run, and its memory may be reused
    upload_->wait(stream_);
    upload_->used(stream_);
  }
  std::int64_t total = 0;
  for (const InputPart& part : parts) total += padded(static_cast<std::int64_t>(part.values->size()));
  if (!sent_.defined() || sent_.elements() < total) {
    sent_ = Tensor{};
    sent_ = Tensor::empty({total}, DType::int32, stream_.device);
    // Work launched so far may still use this memory: the arena reuses memory in stream order.
    upload_->used(stream_);
  }
  const std::int64_t bytes = total * static_cast<std::int64_t>(sizeof(std::int32_t));
  auto* to = static_cast<std::int32_t*>(upload_->host(bytes));
  for (const InputPart& part : parts) {
    if (part.values->empty()) continue;
    std::memcpy(to, part.values->data(), part.values->size() * sizeof(std::int32_t));
    to += padded(static_cast<std::int64_t>(part.values->size()));
  }
  upload_->begin(sent_.address(), bytes);
  waiting_ = true;
}

void InputQueue::receive(const std::vector<InputPart>& parts) {
  require(waiting_, "no input was sent");
  upload_->wait(stream_);
  std::int64_t from = 0;
  for (const InputPart& part : parts) {
    const auto elements = static_cast<std::int64_t>(part.values->size());
    if (!make_tensor(part, elements, stream_.device)) continue;
    part.tensor->copy_from(sent_.narrow(0, from, elements).reshape(part.shape));
    from += padded(elements);
  }
  upload_->used(stream_);
  waiting_ = false;
}

}  // namespace furlong
