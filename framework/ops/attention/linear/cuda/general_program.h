#pragma once
// The general kernels of linear attention on GPUs: the steps that a block executes for each job. Included by kernels,
// after kernel.h.
#include <cstdint>
#include <initializer_list>

#include "framework/core/error.h"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Work of all threads of a block between two barriers. Feature maps, products and rotations of rows are distinguished
/// by the tensors they work on (general_steps.cuh).
enum class GeneralStep : std::uint8_t {
  end,
  // rows in
  read_keys,
  project_keys,
  map_keys,
  rotations_of_keys,
  read_queries,
  project_queries,
  map_queries,
  rotations_of_queries,
  read_gradients,
  // products of pairs
  scores,
  finish_scores,
  normalise,
  products,
  rotate_near_queries,
  rotate_near_keys,
  rotated_products,
  own_products,
  // outputs
  weigh,
  patch_values,
  near_outputs,
  restore_values,
  past_outputs,
  finish_outputs,
  // sums
  absorb_keys,
  rotate_absorbed_keys,
  add_keys,
  absorb_queries,
  rotate_absorbed_queries,
  add_queries,
  // d_query
  gradients_from_state,
  rotate_gradients_from_state,
  finish_gradients_from_state,
  gradient_products,
  query_gradients,
  near_query_gradients,
  rotated_query_gradients,
  rotate_back_queries,
  add_rotated_query_gradients,
  exact_query_gradients,
  take_near_query_gradients,
  map_query_gradients,
  project_query_gradients,
  write_d_query,
  // d_key and d_value
  gradients_from_later,
  rotate_gradients_from_later,
  finish_gradients_from_later,
  rotate_later_weights,
  later_values,
  finish_later_values,
  key_gradients,
  direct_key_gradients,
  near_key_gradients,
  rotated_key_gradients,
  rotate_back_keys,
  add_rotated_key_gradients,
  near_values,
  exact_key_gradients,
  exact_key_weights,
  take_near_key_gradients,
  key_logarithms,
  map_key_gradients,
  project_key_gradients,
  write_d_key
};

/// Work on one chunk: a list of steps, without the steps that the options do not need.
enum class GeneralJob : std::uint8_t {
  none,
  clear_state,
  load_start,
  load_slot,
  store_slot,
  store_end,
  write_report,
  write_d_gate,
  // by steps
  absorb,       ///< adds a chunk of keys to the state
  attend,       ///< computes outputs of a chunk of queries from the state and near keys
  attend_all,   ///< computes outputs from the state alone
  advance,      ///< adds the keys of `attend` to the state
  gather,       ///< adds a chunk of queries to the state
  begin_query,  ///< d_query of a chunk of queries: the part from the state
  near_query,   ///< d_query: the part from a chunk of near keys
  end_query,    ///< d_query: backward through the feature map
  begin_key,    ///< the same three parts for d_key and d_value of a chunk of keys
  near_key,
  end_key,
  count
};

/// The steps of each job.
struct GeneralProgram {
  static constexpr int max_steps = 24;
  GeneralStep steps[static_cast<int>(GeneralJob::count)][max_steps];

  /// Returns the steps for a map with or without random projections, in the given feature form, with or without exact
  /// softmax pairs and rotated features.
  static GeneralProgram of(bool directed, bool logarithms, bool exact, bool rotated);
};

inline GeneralProgram GeneralProgram::of(bool directed, bool logarithms, bool exact, bool rotated) {
  using enum GeneralStep;
  using Steps = std::initializer_list<GeneralStep>;
  GeneralProgram program{};
  const auto add = [&](GeneralJob job, Steps steps, bool wanted = true) {
    GeneralStep* at = program.steps[static_cast<int>(job)];
    int used = 0;
    while (at[used] != end) ++used;
    require(used + static_cast<int>(steps.size()) < max_steps, "linear_attention: a job has more than {} steps",
            max_steps);
    for (const GeneralStep step : steps) {
      if (wanted) at[used++] = step;
    }
  };
  const auto add_keys_of = [&](GeneralJob job) {
    add(job, {read_keys});
    add(job, {project_keys}, directed);
    add(job, {map_keys});
    add(job, {rotations_of_keys}, rotated);
  };
  const auto add_queries_of = [&](GeneralJob job) {
    add(job, {read_queries});
    add(job, {project_queries}, directed);
    add(job, {map_queries});
    add(job, {rotations_of_queries}, rotated);
  };
  const auto add_pairs = [&](GeneralJob job) {
    add(job, {scores, finish_scores}, exact);
    add(job, {normalise}, logarithms);
    add(job, {products});
    add(job, {rotate_near_queries, rotate_near_keys, rotated_products, own_products}, rotated);
  };
  for (const GeneralJob job : {GeneralJob::absorb, GeneralJob::advance}) {
    if (job == GeneralJob::absorb) add_keys_of(job);
    add(job, {absorb_keys});
    add(job, {rotate_absorbed_keys}, rotated);
    add(job, {add_keys});
  }
  add_keys_of(GeneralJob::attend);
  add_queries_of(GeneralJob::attend);
  add_pairs(GeneralJob::attend);
  add(GeneralJob::attend, {weigh, patch_values, near_outputs, restore_values, past_outputs, finish_outputs});
  add_queries_of(GeneralJob::attend_all);
  add(GeneralJob::attend_all, {weigh, past_outputs, finish_outputs});
  add_queries_of(GeneralJob::gather);
  add(GeneralJob::gather, {read_gradients, absorb_queries});
  add(GeneralJob::gather, {rotate_absorbed_queries}, rotated);
  add(GeneralJob::gather, {add_queries});

  add_queries_of(GeneralJob::begin_query);
  add(GeneralJob::begin_query, {read_gradients, gradients_from_state});
  add(GeneralJob::begin_query, {rotate_gradients_from_state}, rotated);
  add(GeneralJob::begin_query, {finish_gradients_from_state});
  add_keys_of(GeneralJob::near_query);
  add_pairs(GeneralJob::near_query);
  add(GeneralJob::near_query, {gradient_products, query_gradients, near_query_gradients});
  add(GeneralJob::near_query, {rotated_query_gradients, rotate_back_queries, add_rotated_query_gradients}, rotated);
  add(GeneralJob::near_query, {exact_query_gradients}, exact);
  add(GeneralJob::end_query, {take_near_query_gradients, map_query_gradients});
  add(GeneralJob::end_query, {project_query_gradients}, directed);
  add(GeneralJob::end_query, {write_d_query});

  add_keys_of(GeneralJob::begin_key);
  add(GeneralJob::begin_key, {gradients_from_later});
  add(GeneralJob::begin_key, {rotate_gradients_from_later}, rotated);
  add(GeneralJob::begin_key, {finish_gradients_from_later});
  add(GeneralJob::begin_key, {rotate_later_weights}, rotated);
  add(GeneralJob::begin_key, {later_values});
  add(GeneralJob::begin_key, {finish_later_values}, !logarithms);
  add_queries_of(GeneralJob::near_key);
  add(GeneralJob::near_key, {read_gradients});
  add_pairs(GeneralJob::near_key);
  add(GeneralJob::near_key, {gradient_products, key_gradients});
  add(GeneralJob::near_key, {direct_key_gradients}, logarithms);
  add(GeneralJob::near_key, {near_key_gradients});
  add(GeneralJob::near_key, {rotated_key_gradients, rotate_back_keys, add_rotated_key_gradients}, rotated);
  add(GeneralJob::near_key, {near_values});
  add(GeneralJob::near_key, {exact_key_gradients, exact_key_weights}, exact);
  add(GeneralJob::end_key, {take_near_key_gradients, key_logarithms, map_key_gradients});
  add(GeneralJob::end_key, {project_key_gradients}, directed);
  add(GeneralJob::end_key, {write_d_key});
  return program;
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
