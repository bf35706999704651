#pragma once
// Gradients of several processes become one, in buckets that go as soon as backward has finished with them.
#include <cstdint>
#include <vector>

#include "communication/communicator.h"
#include "framework/autodiff/parameter_store.h"
#include "framework/autodiff/tape.h"
#include "trainers/checkpoint/shard_layout.h"

namespace furlong {

/// Adds up the gradients of all ranks in the store's own memory: all of them, or, where the optimizer is sharded, each
/// rank's own ranges alone (the others' are then undefined). Buckets go in the layout's order on all ranks, whichever
/// rank was sooner. Of the communicator nothing else is asked between begin() and finish().
class GradientReducer {
 public:
  /// dtype: what travels, float32 or bfloat16 (rounded at each rank that a sum passes); the store's own dtype where
  /// that is float64. All arguments outlive this.
  GradientReducer(ParameterStore& store, Communicator& communicator, const ShardLayout& layout, DType dtype,
                  bool is_sharded);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// The backward to come, on this tape, is the last that adds to these gradients: from now on buckets go. The tape
  /// lives until finish().
  void begin(const Tape& tape);
  /// Behind it, and behind ParameterStore::complete_gradients(): the rest goes, and all are waited for. Throws
  /// MachineError where a rank was lost.
  void finish(const Stream& stream);
  /// Of a tensor like the store's flat ones each rank has its own ranges right; then all have all of it.
  void gather(const Stream& stream, const Tensor& flat) const;

  /// Buckets of the last step that went while its backward still had something to do.
  std::size_t buckets_hidden() const { return hidden_; }
  /// That travel of each bucket.
  std::vector<std::int64_t> bucket_bytes() const;
  /// For how long finish() waited, in all steps; on a GPU the stream waits and not the host.
  double seconds_waited() const { return seconds_waited_; }

 private:
  struct Bucket {
    Tensor gradients;   // [elements], of the store
    Tensor travelling;  // the same in another dtype; undefined where it is the same
    Tensor own, rest;   // of what travels: this rank's part, and what every rank has; undefined where there is none
    std::size_t parameters = 0, open = 0;
    std::vector<Work> work;
  };
  Bucket make_bucket(const ShardLayout::Bucket& range) const;
  void note_final(std::size_t bucket);
  /// All that are ready, in order.
  void send_ready(const Stream& stream, bool all);

  ParameterStore& store_;
  Communicator& communicator_;
  const ShardLayout& layout_;
  DType dtype_;
  bool is_sharded_;
  std::vector<Bucket> buckets_;  // as in the layout
  std::size_t sent_ = 0, hidden_ = 0;
  const Tape* tape_ = nullptr;  // between begin() and finish()
  double seconds_waited_ = 0;
};

}  // namespace furlong
