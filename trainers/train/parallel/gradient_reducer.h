#pragma once
// Sums gradients over ranks in buckets. A bucket's reduction starts as soon as backward has finished with it.
#include <cstdint>
#include <vector>

#include "communication/communicator.h"
#include "framework/autodiff/parameter_store.h"
#include "framework/autodiff/tape.h"
#include "trainers/checkpoint/shard_layout.h"

namespace furlong {

/// Sums the gradients of all ranks in place, in ParameterStore::gradients(). If the optimizer is sharded, each rank
/// gets the sums of its own ranges only, and its other gradients are undefined. All ranks reduce buckets in the
/// layout's order. Nothing else may use the communicator between begin() and finish(). Uses
/// ParameterStore::on_gradient_final().
class GradientReducer {
 public:
  /// `dtype`: the dtype in which gradients are exchanged: float32 or bfloat16 (rounded at each rank that a sum passes);
  /// float64 for a float64 store. `store`, `communicator` and `layout` must outlive this object. `layout` is for the
  /// communicator's number of ranks. Throws ContractError for another dtype or layout.
  GradientReducer(ParameterStore& store, Communicator& communicator, const ShardLayout& layout, DType dtype,
                  bool is_sharded);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Call this before the last backward that adds to these gradients. That backward starts the reduction of each bucket
  /// when its gradients are final. `tape` must live until finish(). Returns immediately.
  void begin(const Tape& tape);
  /// Forgets a reduction without finish(): its backward failed, or was recorded in vain. No effect without one.
  void abandon();
  /// Call this after that backward and ParameterStore::complete_gradients(). Starts the reduction of the remaining
  /// buckets and waits for all buckets: on a CPU the call blocks, on a GPU `stream` waits. Throws MachineError if a
  /// rank failed, and ContractError without begin().
  void finish(const Stream& stream);
  /// Gathers a tensor laid out like the store's flat tensors: every rank contributes its own ranges, and all ranks get
  /// the whole tensor, in place. All ranks call it. Waits like finish().
  void gather(const Stream& stream, const Tensor& flat) const;

  /// Number of buckets of the last step whose reduction overlapped with backward.
  std::size_t overlapped_buckets() const { return overlapped_; }
  /// Exchanged bytes of each bucket.
  std::vector<std::int64_t> bucket_bytes() const;
  /// Seconds that finish() waited, over all steps. On a GPU the stream waits, not the host.
  double seconds_waited() const { return seconds_waited_; }

 private:
  struct Bucket {
    Tensor gradients;  // [elements], in the store
    Tensor exchanged;  // copy in the exchanged dtype; undefined if it is the same dtype
    // this rank's part of the exchanged elements, and the remainder that every rank has; may be undefined
    Tensor own, rest;
    std::size_t parameters = 0, open = 0;
    std::vector<Work> work;
  };
  Bucket make_bucket(const ShardLayout::Bucket& range) const;
  void note_final(std::size_t bucket);
  /// Starts the reduction of all ready buckets, in order.
  void send_ready(const Stream& stream, bool all);

  ParameterStore& store_;
  Communicator& communicator_;
  const ShardLayout& layout_;
  DType dtype_;
  bool is_sharded_;
  std::vector<Bucket> buckets_;  // in the layout's order
  std::size_t sent_ = 0, overlapped_ = 0;
  const Tape* tape_ = nullptr;  // between begin() and finish()
  double seconds_waited_ = 0;
};

}  // namespace furlong
