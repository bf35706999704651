#pragma once
// The general kernels of linear attention on GPUs: a block's walk over the chunks of its segment, for each phase, and
// the kernel.
//
// A chunk of queries meets keys in two ways: through the state, which holds the sums over all earlier keys (or over all
// keys), and pair by pair (near keys): its own chunk if causal, and the keys of a window. Backward walks over queries
// for d_query and over keys for d_key and d_value. Each recomputes its pairs, so no two blocks add to the same row.
//
// One thread walks: it sets the next job and its chunks. All threads execute the job's steps.
#include "framework/ops/attention/linear/cuda/general_steps.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// In shared memory. One thread calls enter() and next().
template <class T, class Head>
class GeneralWalk : public GeneralSteps<T, Head> {
 public:
  GeneralJob job;

  /// Prepares for the first job of a segment.
  __device__ void enter(std::int64_t segment) {
    segment_ = segment;
    slot_ = segment;
    fresh_ = false;
    this->has_state = this->had_pairs = false;
    this->pairs = {0, 0, this->a.causal, this->a.window, this->a.softmax_window, !this->a.reversed};
    this->document_start = 0;
    absorbed_ = absorb_to_ = gathered_ = gather_to_ = 0;
    stage_ = Stage::first;
    switch (this->a.phase) {
      case GeneralPhase::local_states:
        return enter_local_states();
      case GeneralPhase::local_gather:
        return enter_local_gather();
      case GeneralPhase::outputs:
      case GeneralPhase::d_query:
        return enter_queries();
      case GeneralPhase::d_key:
        return enter_keys();
    }
  }

  /// Sets the next job and its chunks; `none` if the segment is complete.
  __device__ void next() {
    job = GeneralJob::none;
    while (job == GeneralJob::none && stage_ != Stage::done) {
      switch (stage_) {
        case Stage::first:
          begin_state();
          break;
        case Stage::chunk:
          begin_chunk();
          break;
        case Stage::fill:
          fill_state();
          break;
        case Stage::work:
          work();
          break;
        case Stage::pairs:
          meet_next();
          break;
        case Stage::finish:
          finish_chunk();
          break;
        case Stage::last:
          leave();
          break;
        case Stage::report:
          report();
          break;
        case Stage::done:
          break;
      }
    }
  }

  /// Executes the job that next() has set, with all threads. Ends with a barrier.
  __device__ __forceinline__ void run() {
    const GeneralArguments<T>& a = this->a;
    const std::int64_t index = head_index(), features = index * this->s.m;
    switch (job) {
      case GeneralJob::clear_state:
        this->clear_state();
        break;
      case GeneralJob::load_start:
        this->load_state(a.start_sum + features * this->s.d_value, a.start_normalizer + features,
                         a.start_maximum + features, a.start_magnitude + index);
        break;
      case GeneralJob::load_slot: {
        const GeneralSlot<T> slot = GeneralSlot<T>::at(a.slots, index * a.slots_a_head + slot_, this->s);
        this->load_state(slot.sum, slot.normalizer, slot.maximum, slot.scalars + 1);
        break;
      }
      case GeneralJob::store_slot: {
        const GeneralSlot<T> slot = GeneralSlot<T>::at(a.slots, index * a.slots_a_head + slot_, this->s);
        this->store_state(slot.sum, slot.normalizer, slot.own_maximum, slot.scalars);
        if (block_thread() == 0) slot.scalars[2] = fresh_ ? T(1) : T(0);
        break;
      }
      case GeneralJob::store_end:
        this->store_state(a.end_sum + features * this->s.d_value, a.end_normalizer + features, a.end_maximum + features,
                          a.end_magnitude + index);
        break;
      case GeneralJob::write_report:
        if (block_thread() == 0) this->write_report(segment_);
        break;
      case GeneralJob::write_d_gate:
        if (block_thread() == 0) this->write_d_gate(segment_);
        break;
      default:
        for (const GeneralStep* step = a.program.steps[static_cast<int>(job)]; *step != GeneralStep::end; ++step) {
          this->take(*step);
          __syncthreads();
        }
        return;
    }
    __syncthreads();
  }

 private:
  enum class Stage : std::uint8_t {
    first,   ///< the state at the start of the segment
    chunk,   ///< the next chunk, or document
    fill,    ///< keys or queries that the chunk needs in the state
    work,    ///< the chunk itself
    pairs,   ///< its near chunks
    finish,  ///< work after the near chunks
    last,    ///< work after the last chunk
    report,
    done
  };
  Stage stage_;
  bool meets_;  // the current job is one of near pairs
  bool fresh_;  // the tokens before the slot's state belong to another document
  std::int64_t segment_, slot_;
  std::int64_t start_,
      end_;  // the next chunk, and the end of the segment; in a walk over keys with near queries: its start
  std::int64_t absorbed_, absorb_to_;  // keys [absorbed, absorb_to) have to be added to the state
  std::int64_t gathered_, gather_to_;  // queries [gather_to, gathered) have to be added, the last first
  std::int64_t near_, near_end_;       // the next near chunk, and the end of the near chunks
  GeneralRange range_;

  // ---- positions ----

  __device__ std::int64_t head_index() const { return this->b * this->a.n_heads + this->head; }
  __device__ bool queries_walk() const {
    return this->a.phase == GeneralPhase::outputs || this->a.phase == GeneralPhase::d_query;
  }
  __device__ bool is_local() const {
    return this->a.phase == GeneralPhase::local_states || this->a.phase == GeneralPhase::local_gather;
  }
  __device__ GeneralRange range_of(std::int64_t token) const { return general_range(this->a, this->b, token); }
  __device__ std::int64_t first_chunk(std::int64_t segment) const {
    return general_chunk_from(this->a, this->b, segment * this->a.query_length, this->a.n_query);
  }
  __device__ std::int64_t chunk_of(std::int64_t token, std::int64_t first) const {
    return token - (token - first) % this->s.chunk;
  }
  /// Returns the last chunk of keys that starts in the segment.
  __device__ std::int64_t last_key_chunk(std::int64_t segment) const {
    const std::int64_t token = gpu_min((segment + 1) * this->a.key_length, this->a.n_key) - 1;
    return chunk_of(token, range_of(token).first_key);
  }
  /// Returns the first document that starts at `token` or later, or n if there is none.
  __device__ std::int64_t first_document(std::int64_t token) const {
    if (token >= this->a.n_key) return this->a.n_key;
    const GeneralRange range = range_of(token);
    return range.first_key == token ? token : range.end_key;
  }
  __device__ int rows_of(std::int64_t start, std::int64_t end) const {
    return static_cast<int>(gpu_min(end - start, this->s.chunk));
  }

  /// first_near, end_near: range of near keys for a chunk of queries at key positions [at, end).
  __device__ std::int64_t first_near(const GeneralRange& range, std::int64_t at) const {
    const std::int64_t first = gpu_max(range.first_key, at - this->a.reach());
    return this->a.whole_chunks ? chunk_of(first, range.first_key) : first;
  }
  __device__ std::int64_t end_near(std::int64_t end) const {
    return this->a.causal ? end : gpu_min(range_.end_key, end - 1 + this->a.window);
  }
  /// Returns the first query of the range whose chunk meets the chunk of keys at `start` through the state, because its
  /// near keys start after it.
  __device__ std::int64_t later_queries(const GeneralRange& range, std::int64_t start) const {
    const std::int64_t far = start - range.first_key + this->s.chunk + this->a.reach() - this->a.query_offset;
    const std::int64_t chunks = far <= 0 ? 0 : ceil_div(far, this->s.chunk);
    return gpu_min(range.first_query + chunks * this->s.chunk, range.end_query);
  }

  __device__ void choose_queries(std::int64_t start, std::int64_t end) {
    this->query_start = start;
    this->query_rows = rows_of(start, end);
  }
  __device__ void choose_keys(std::int64_t start, std::int64_t end) {
    this->key_start = start;
    this->key_rows = rows_of(start, end);
    this->not_finite = 0;
  }
  /// Pairs the current chunks of queries and keys.
  __device__ void meet() {
    this->pairs.offset = this->query_start + this->a.query_offset - this->key_start;
    this->pairs.columns = this->key_rows;
  }

  // ---- entering a segment ----

  /// Causal: the keys that enter the state between this segment's first chunk of queries and the next segment's, into
  /// the next segment's slot. Not causal: the segment's keys, into its own slot.
  __device__ void enter_local_states() {
    if (!this->a.causal) {
      absorbed_ = segment_ * this->a.key_length;
      absorb_to_ = gpu_min(absorbed_ + this->a.key_length, this->a.n_key);
      return;
    }
    const std::int64_t begin = first_chunk(segment_), after = first_chunk(segment_ + 1), offset = this->a.query_offset;
    slot_ = segment_ + 1;
    if (after >= this->a.n_query) return;
    const GeneralRange range = range_of(after);
    fresh_ = this->a.document_first && range.first_key >= begin;
    absorbed_ = fresh_ ? range.first_key : first_near(range_of(begin), begin + offset);
    absorb_to_ = first_near(range, after + offset);
    this->document_start = range.first_key;
  }
  /// Causal: the queries that this segment's keys, but not the next segment's, meet through their sum, into this
  /// segment's slot. Not causal: the segment's queries, into its own slot.
  __device__ void enter_local_gather() {
    range_ = range_of(0);
    if (!this->a.causal) {
      gather_to_ = segment_ * this->a.query_length;
      gathered_ = gpu_min(gather_to_ + this->a.query_length, this->a.n_query);
      return;
    }
    const std::int64_t chunk = last_key_chunk(segment_), later = last_key_chunk(segment_ + 1);
    const GeneralRange of_later = range_of(later);
    range_ = range_of(chunk);
    fresh_ = this->a.document_first && range_.first_key != of_later.first_key;
    gathered_ = fresh_ ? range_.end_query : later_queries(of_later, later);
    gather_to_ = later_queries(range_, chunk);
    this->document_start = range_.first_key;
  }
  __device__ void enter_queries() {
    if (this->a.has_near_keys()) {
      start_ = first_chunk(segment_);
      end_ = first_chunk(segment_ + 1);
      if (segment_ > 0 && start_ < end_) absorbed_ = first_near(range_of(start_), start_ + this->a.query_offset);
    } else {
      start_ = segment_ * this->a.query_length;
      end_ = gpu_min(start_ + this->a.query_length, this->a.n_query);
      if (this->a.document_first) start_ = first_document(start_);
      slot_ = this->a.slots_a_head - 1;
    }
    if (start_ >= end_) stage_ = Stage::last;
  }
  __device__ void enter_keys() {
    const std::int64_t begin = segment_ * this->a.key_length;
    if (this->a.has_near_keys()) {  // from the last chunk to the first, so that later queries are gathered one after
                                    // another
      start_ = last_key_chunk(segment_);
      end_ = begin;
      if (start_ < end_) stage_ = Stage::done;
      range_ = range_of(start_);
      gathered_ = this->a.has_state_keys() ? later_queries(range_, start_) : range_.end_query;
    } else {
      start_ = this->a.document_first ? first_document(begin) : begin;
      end_ = gpu_min(begin + this->a.key_length, this->a.n_key);
      slot_ = this->a.slots_a_head - 1;
      if (start_ >= end_) stage_ = Stage::done;
    }
  }

  // ---- the stages ----

  __device__ void begin_state() {
    stage_ = is_local() ? Stage::fill : Stage::chunk;
    const bool is_start = queries_walk() && this->a.query_segments == 1;  // the start of the whole sequence
    if (is_local() || !this->a.has_state_keys() || (this->a.document_first && !this->a.has_near_keys())) {
      job = GeneralJob::clear_state;
    } else if (!this->a.has_near_keys()) {
      job = GeneralJob::load_slot;
    } else if (is_start) {
      job = this->a.start_sum ? GeneralJob::load_start : GeneralJob::clear_state;
    } else {
      const bool empty = !queries_walk() && segment_ + 1 == this->a.key_segments;
      job = empty ? GeneralJob::clear_state : GeneralJob::load_slot;
    }
    this->has_state = job != GeneralJob::clear_state;  // the maximum of an empty state gives it weight zero
  }

  __device__ void begin_chunk() {
    if (!this->a.has_near_keys()) {
      begin_chunk_of_all();
    } else if (queries_walk()) {
      if (start_ >= end_) {
        stage_ = Stage::last;
        return;
      }
      range_ = range_of(start_);
      this->document_start = range_.first_key;
      stage_ = Stage::fill;
      if (this->a.document_first && start_ == range_.first_query) clear(range_.first_key);
      if (this->a.has_state_keys()) absorb_to_ = first_near(range_, start_ + this->a.query_offset);
    } else {
      if (start_ < end_) {
        stage_ = Stage::done;
        return;
      }
      range_ = range_of(start_);
      this->document_start = range_.first_key;
      stage_ = Stage::fill;
      if (start_ + rows_of(start_, range_.end_key) == range_.end_key) {
        clear(0);
        gathered_ = range_.end_query;
      }
      gather_to_ = this->a.has_state_keys() ? later_queries(range_, start_) : gathered_;
    }
  }
  /// Used if all keys, or queries, of a document are in the state: a new document is added first.
  __device__ void begin_chunk_of_all() {
    const std::int64_t n = queries_walk() ? this->a.n_query : this->a.n_key;
    // A document that starts in the segment is processed to its end.
    if (start_ >= n || (start_ >= end_ && !(this->a.document_first && range_of(start_).first_key < start_))) {
      stage_ = queries_walk() ? Stage::last : Stage::done;
      return;
    }
    range_ = range_of(start_);
    this->document_start = range_.first_key;
    stage_ = Stage::fill;
    if (!this->a.document_first || start_ != range_.first_key) return;
    if (queries_walk()) {
      clear(range_.first_key);
      absorb_to_ = range_.end_key;
    } else {
      clear(0);
      gathered_ = range_.end_query;
      gather_to_ = range_.first_query;
    }
  }
  __device__ void clear(std::int64_t absorbed) {
    job = GeneralJob::clear_state;
    this->has_state = false;
    absorbed_ = absorbed;
  }

  __device__ void fill_state() {
    if (absorbed_ < absorb_to_) {
      choose_keys(absorbed_, absorb_to_);
      absorbed_ += this->key_rows;
      this->has_state = true;
      job = GeneralJob::absorb;
    } else if (gathered_ > gather_to_) {
      choose_queries(chunk_of(gathered_ - 1, range_.first_query), gathered_);
      gathered_ = this->query_start;
      this->has_state = true;
      job = GeneralJob::gather;
    } else {
      stage_ = Stage::work;
    }
  }

  __device__ void work() {
    if (is_local()) {
      job = GeneralJob::store_slot;
      stage_ = Stage::done;
      return;
    }
    this->had_pairs = meets_ = false;
    stage_ = this->a.has_near_keys() && this->a.phase != GeneralPhase::outputs ? Stage::pairs : Stage::finish;
    if (queries_walk()) {
      const bool near = this->a.has_near_keys();
      choose_queries(start_, near ? range_.end_query : this->a.document_first ? range_.end_query : end_);
      const std::int64_t at = start_ + this->a.query_offset;
      if (near) {
        near_ = first_near(range_, at);
        near_end_ = end_near(at + this->query_rows);
      }
      if (this->a.phase == GeneralPhase::d_query) {
        job = GeneralJob::begin_query;
      } else if (near) {
        this->key_start = near_;
        this->key_rows = static_cast<int>(near_end_ - near_);
        this->not_finite = 0;
        meet();
        job = GeneralJob::attend;
      } else {
        job = GeneralJob::attend_all;
      }
    } else {
      choose_keys(start_, range_.end_key);
      if (this->a.has_near_keys()) {
        // No earlier chunk of queries meets the chunk of keys pair by pair.
        const std::int64_t ahead = this->a.causal ? this->a.query_offset : this->a.window;
        const std::int64_t chunk = (start_ - range_.first_key) / this->s.chunk - ceil_div(ahead, this->s.chunk) - 1;
        near_ = range_.first_query + gpu_max(std::int64_t{0}, chunk) * this->s.chunk;
        near_end_ = gathered_;
      }
      job = GeneralJob::begin_key;
    }
  }

  /// Sets the next chunk that the current one meets pair by pair.
  __device__ void meet_next() {
    this->had_pairs = this->had_pairs || meets_;
    meets_ = false;
    if (near_ >= near_end_) {
      stage_ = Stage::finish;
      return;
    }
    if (queries_walk()) {
      choose_keys(near_, range_.end_key);
      near_ += this->s.chunk;
      job = GeneralJob::near_query;
    } else {
      choose_queries(near_, range_.end_query);
      near_ += this->s.chunk;
      const std::int64_t at = this->query_start + this->a.query_offset;
      if (end_near(at + this->query_rows) <= this->key_start) return;
      if (first_near(range_, at) > this->key_start) {
        stage_ = Stage::finish;
        return;
      }
      job = GeneralJob::near_key;
    }
    meet();
    meets_ = true;
  }

  __device__ void finish_chunk() {
    stage_ = Stage::chunk;
    if (queries_walk()) {
      start_ += this->query_rows;
      if (this->a.phase == GeneralPhase::d_query) {
        if (this->a.d_query.data) job = GeneralJob::end_query;
      } else if (this->a.pure() && (this->a.end_sum || start_ < range_.end_query)) {
        // The near keys are the chunk's own, already loaded.
        absorbed_ = start_ + this->a.query_offset;
        this->has_state = true;
        job = GeneralJob::advance;
      }
    } else {
      job = GeneralJob::end_key;
      if (!this->a.has_near_keys()) {
        start_ += this->key_rows;
      } else {
        start_ = start_ == 0 ? -1 : chunk_of(start_ - 1, range_of(start_ - 1).first_key);
      }
    }
  }
  __device__ void leave() {
    stage_ = Stage::report;
    if (this->a.phase != GeneralPhase::outputs || !this->a.end_sum || segment_ + 1 != this->a.query_segments) return;
    absorb_to_ = this->a.n_key - this->a.reach();
    if (absorbed_ < absorb_to_) {
      fill_state();
      stage_ = Stage::last;
    } else {
      job = GeneralJob::store_end;
    }
  }
  __device__ void report() {
    stage_ = Stage::done;
    if (this->a.phase == GeneralPhase::outputs && this->a.report) job = GeneralJob::write_report;
    if (this->a.phase == GeneralPhase::d_query && this->a.d_gate) job = GeneralJob::write_d_gate;
  }
};

/// Processes all segments of all heads in one phase; blocks take them in turn. Blocks are one-dimensional.
template <class T, FeatureForm form>
__global__ void __launch_bounds__(256, 1)
    linear_attention_general_kernel(const GeneralArguments<T> arguments, std::int64_t segments) {
  using Walk =
      GeneralWalk<T, std::conditional_t<form == FeatureForm::logarithms, GeneralLogarithms<T>, GeneralValues<T>>>;
  FURLONG_SHARED(Walk, walk);
  FURLONG_DYNAMIC_SHARED(char, shared);
  if (block_thread() == 0) {
    walk.a = arguments;
    walk.s = arguments.sizes;
    GeneralPlacement place{shared, arguments.scratch + blockIdx.x * arguments.scratch_bytes, arguments.shared_bytes};
    place_tile<T>(walk, walk.s, arguments.phase, place);
  }
  const std::int64_t tasks = arguments.batch * arguments.n_heads * segments;
  for (std::int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    if (block_thread() == 0) {
      const std::int64_t head = task / segments;
      walk.choose(head / arguments.n_heads, head % arguments.n_heads);
      walk.enter(task % segments);
    }
    for (;;) {
      if (block_thread() == 0) walk.next();
      __syncthreads();
      if (walk.job == GeneralJob::none) break;
      walk.run();
    }
    __syncthreads();
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
