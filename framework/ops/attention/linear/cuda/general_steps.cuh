#pragma once
// The general kernels of linear attention on GPUs: the steps of their jobs. Each part of the arithmetic appears once,
// and so does the long code of a tile product, for all steps that are products. So a kernel with every option stays
// small enough to compile.
#include "framework/ops/attention/linear/cuda/general_logarithms.cuh"
#include "framework/ops/attention/linear/cuda/general_values.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Head is GeneralLogarithms<T> or GeneralValues<T>.
template <class T, class Head>
class GeneralSteps : public Head {
 public:
  /// Executes one step with all threads. Its inputs must have been written before a barrier; the step has no barrier.
  __device__ __forceinline__ void take(GeneralStep step) {
    BlockProduct<T> product = product_of(step);
    if (product.M > 0) {
      if (step == GeneralStep::add_keys || step == GeneralStep::add_queries) this->publish_scale();
      block_gemm(product, this->a.three_parts);
      return;
    }
    const Turn turn = turn_of(step);
    if (turn.rows > 0) {
      for_rows(turn.rows, [&](int i) {
        const std::int64_t at = static_cast<std::int64_t>(i) * this->s.ld_m();
        this->rotate_row(turn.rotations + i * 2 * this->s.half(), turn.source + at, turn.target + at, turn.back);
      });
      return;
    }
    take_rows(step);
  }

 private:
  /// target = R source, or Rᵀ source if `back`, for rows of features.
  struct Turn {
    int rows;
    const T *rotations, *source;
    T* target;
    bool back;
  };

  /// Returns the product of a step; M = 0 if the step is not a product or has nothing to do.
  __device__ __forceinline__ BlockProduct<T> product_of(GeneralStep step) const {
    const auto& s = this->s;
    const int queries = this->query_rows, keys = this->key_rows, near = this->pairs.columns, m = s.m, d = s.d,
              d_value = s.d_value;
    const auto rows = [](const T* data, std::int64_t ld) { return by_rows<T>(data, ld); };
    const auto columns = [](const T* data, std::int64_t ld) { return by_columns<T>(data, ld); };
    const int ld_d = s.ld_d(), ld_v = s.ld_v(), ld_m = s.ld_m(), ld_n = s.ld_n();
    BlockTarget<T> state{this->state, ld_v, true, this->factors, s.compensated ? this->sum_lost : nullptr};
    const bool more = this->had_pairs;
    switch (step) {
      case GeneralStep::project_keys:
        return this->map.projection(this->k, keys, this->feature_k);
      case GeneralStep::project_queries:
        return this->map.projection(this->q, queries, this->feature_q);
      case GeneralStep::scores:
        return {queries, near, d, rows(this->q, ld_d), columns(this->k, ld_d), {this->score, ld_n}};
      case GeneralStep::products:
        return {queries, near, m, rows(this->near_q(), ld_m), columns(this->near_k(), ld_m), {this->product, ld_n}};
      case GeneralStep::rotated_products:
        return {queries,
                near,
                m,
                rows(this->rotated_q, ld_m),
                columns(this->rotated_k, ld_m),
                {this->rotated_product, ld_n}};
      case GeneralStep::near_outputs:
        return {queries, d_value, near, rows(this->weight, ld_n), rows(this->v, ld_v), {this->out, ld_v}};
      case GeneralStep::past_outputs:
        return {this->has_state ? queries : 0, d_value, m, rows(this->feature_q, ld_m), rows(this->state, ld_v),
                {this->out, ld_v, near > 0}};
      case GeneralStep::add_keys:
        return {m, d_value, keys, columns(this->feature_k, ld_m), rows(this->v, ld_v), state};
      case GeneralStep::add_queries:
        return {m, d_value, queries, columns(this->feature_q, ld_m), rows(this->g, ld_v), state};
      case GeneralStep::gradients_from_state:
        return {this->has_state ? queries : 0, m, d_value, rows(this->g, ld_v), columns(this->state, ld_v),
                {this->d_feature, ld_m}};
      case GeneralStep::gradient_products:
        return {queries, near, d_value, rows(this->g, ld_v), columns(this->v, ld_v), {this->g_v, ld_n}};
      case GeneralStep::near_query_gradients:
        return {queries,
                m,
                near,
                rows(this->d_product, ld_n),
                rows(this->near_k(), ld_m),
                {this->near_gradient, ld_m, more}};
      case GeneralStep::rotated_query_gradients:
        return {queries, m, near, rows(this->d_rotated, ld_n), rows(this->rotated_k, ld_m), {this->rotated_q, ld_m}};
      case GeneralStep::exact_query_gradients:
        return {queries, d, near, rows(this->score, ld_n), rows(this->k, ld_d), {this->d_x_q, ld_d, more}};
      case GeneralStep::project_query_gradients:
        return this->map.back_projection(this->d_feature, queries, this->d_x);
      case GeneralStep::gradients_from_later:
        return {this->has_state ? keys : 0, m, d_value, rows(this->v, ld_v), columns(this->state, ld_v),
                {this->d_feature, ld_m}};
      case GeneralStep::later_values:
        return {this->has_state ? keys : 0, d_value,          m, rows(this->rotated_later_weights(), ld_m),
                rows(this->state, ld_v),    {this->d_v, ld_v}};
      case GeneralStep::near_key_gradients:
        return {keys,
                m,
                queries,
                columns(this->d_product, ld_n),
                rows(this->near_q(), ld_m),
                {this->near_gradient, ld_m, more}};
      case GeneralStep::rotated_key_gradients:
        return {keys, m, queries, columns(this->d_rotated, ld_n), rows(this->rotated_q, ld_m), {this->rotated_k, ld_m}};
      case GeneralStep::near_values:
        return {keys, d_value, queries, columns(this->weight, ld_n), rows(this->g, ld_v), {this->d_v, ld_v, true}};
      case GeneralStep::exact_key_gradients:
        return {keys, d, queries, columns(this->score, ld_n), rows(this->q, ld_d), {this->d_x_k, ld_d, more}};
      case GeneralStep::project_key_gradients:
        return this->map.back_projection(this->d_feature, keys, this->d_x);
      default:
        return {};
    }
  }

  __device__ __forceinline__ Turn turn_of(GeneralStep step) const {
    const int queries = this->query_rows, keys = this->key_rows;
    switch (step) {
      case GeneralStep::rotate_near_queries:
        return {queries, this->rotations_q, this->near_q(), this->rotated_q, false};
      case GeneralStep::rotate_near_keys:
        return {this->pairs.columns, this->rotations_k, this->near_k(), this->rotated_k, false};
      case GeneralStep::rotate_absorbed_keys:
        return {keys, this->rotations_k, this->feature_k, this->feature_k, false};
      case GeneralStep::rotate_absorbed_queries:
        return {queries, this->rotations_q, this->feature_q, this->feature_q, false};
      case GeneralStep::rotate_gradients_from_state:
        return {this->has_state ? queries : 0, this->rotations_q, this->d_feature, this->d_feature, true};
      case GeneralStep::rotate_back_queries:
        return {queries, this->rotations_q, this->rotated_q, this->rotated_q, true};
      case GeneralStep::rotate_gradients_from_later:
        return {this->has_state ? keys : 0, this->rotations_k, this->d_feature, this->d_feature, true};
      case GeneralStep::rotate_later_weights:
        return {this->has_state ? keys : 0, this->rotations_k, this->later_weights(), this->rotated_later_weights(),
                false};
      case GeneralStep::rotate_back_keys:
        return {keys, this->rotations_k, this->rotated_k, this->rotated_k, true};
      default:
        return {};
    }
  }

  __device__ __forceinline__ void take_rows(GeneralStep step) {
    const int queries = this->query_rows, keys = this->key_rows, near = this->pairs.columns, ld_m = this->s.ld_m();
    switch (step) {
      case GeneralStep::read_keys:
        for_rows(keys, [&](int j) { this->read_key(j); });
        break;
      case GeneralStep::map_keys:
        for_rows(keys, [&](int j) { this->map_key(j); });
        break;
      case GeneralStep::rotations_of_keys:
        for_rows(keys, [&](int j) {
          this->turn(this->key_start - this->document_start + j,
                     this->rotations_k + static_cast<std::int64_t>(j) * 2 * this->s.half());
        });
        break;
      case GeneralStep::read_queries:
        for_rows(queries, [&](int i) { this->read_query(i); });
        break;
      case GeneralStep::map_queries:
        for_rows(queries, [&](int i) { this->map_query(i); });
        break;
      case GeneralStep::rotations_of_queries:
        for_rows(queries, [&](int i) {
          this->turn(this->query_start + this->a.query_offset - this->document_start + i,
                     this->rotations_q + i * 2 * this->s.half());
        });
        break;
      case GeneralStep::read_gradients:
        for_rows(queries, [&](int i) { this->read_gradient(i); });
        break;
      case GeneralStep::finish_scores:
        for_rows(queries, [&](int i) { this->finish_scores(i); });
        break;
      case GeneralStep::normalise:
        this->normalise();
        break;
      case GeneralStep::own_products:
        this->take_own_products();
        break;
      case GeneralStep::weigh:
        for_rows(queries, [&](int i) { this->weigh(i); });
        break;
      case GeneralStep::patch_values:
        if (this->not_finite != 0) for_rows(near, [&](int j) { this->patch_values(j); });
        break;
      case GeneralStep::restore_values:
        if (this->not_finite == 0) break;
        for_rows(queries, [&](int i) { this->add_patched_values(i); });
        for_rows(near, [&](int j) { this->read_value(j); });
        break;
      case GeneralStep::finish_outputs:
        for_rows(queries, [&](int i) { this->finish_output(i); });
        break;
      case GeneralStep::absorb_keys:
        this->absorb_keys();
        break;
      case GeneralStep::absorb_queries:
        this->absorb_queries();
        break;
      case GeneralStep::finish_gradients_from_state:
        for_rows(queries, [&](int i) {
          if (this->s.softmax_pairs && lane_index() == 0) this->d_log_q[i] = 0;
          if (this->has_state) {
            this->finish_gradients_from_state(i);
          } else {
            for_columns(this->s.m, [&](int f) { this->d_feature[i * ld_m + f] = 0; });
          }
        });
        break;
      case GeneralStep::query_gradients:
        for_rows(queries, [&](int i) { this->query_gradients(i); });
        break;
      case GeneralStep::add_rotated_query_gradients:
        for_rows(queries, [&](int i) { add_row(this->rotated_q + i * ld_m, this->near_gradient + i * ld_m); });
        break;
      case GeneralStep::take_near_query_gradients:
        if (this->had_pairs) for_rows(queries, [&](int i) { this->take_near_gradients(i, this->near_q()); });
        break;
      case GeneralStep::map_query_gradients:
        for_rows(queries, [&](int i) {
          this->map.template gradient_row<Head::form>(this->q + i * this->s.ld_d(), false, this->feature_q + i * ld_m,
                                                      this->d_feature + i * ld_m,
                                                      this->s.softmax_pairs ? this->d_log_q[i] : T(0),
                                                      this->half_gradients + i, this->d_x + i * this->s.ld_d());
        });
        break;
      case GeneralStep::write_d_query:
        for_rows(queries, [&](int i) { this->write_d_query(i); });
        break;
      case GeneralStep::finish_gradients_from_later:
        for_rows(keys, [&](int j) {
          if (lane_index() == 0) this->d_key_weight[j] = 0;
          if (this->has_state) {
            this->finish_gradients_from_later(j);
          } else {
            for_columns(this->s.m, [&](int f) { this->d_feature[j * ld_m + f] = 0; });
            for_columns(this->s.d_value, [&](int c) { this->d_v[j * this->s.ld_v() + c] = 0; });
          }
        });
        break;
      case GeneralStep::finish_later_values:
        if (this->has_state) for_rows(keys, [&](int j) { this->finish_later_values(j); });
        break;
      case GeneralStep::key_gradients:
        for_rows(queries, [&](int i) { this->key_gradients(i); });
        break;
      case GeneralStep::direct_key_gradients:
        for_rows(keys, [&](int j) { this->direct_key_gradients(j); });
        break;
      case GeneralStep::add_rotated_key_gradients:
        for_rows(keys, [&](int j) { add_row(this->rotated_k + j * ld_m, this->near_gradient + j * ld_m); });
        break;
      case GeneralStep::exact_key_weights:
        this->add_exact_key_weights();
        break;
      case GeneralStep::take_near_key_gradients:
        if (this->had_pairs) for_rows(keys, [&](int j) { this->take_near_gradients(j, this->near_k()); });
        break;
      case GeneralStep::key_logarithms:
        for_rows(keys, [&](int j) { this->key_logarithm(j); });
        break;
      case GeneralStep::map_key_gradients:
        for_rows(keys, [&](int j) {
          this->map.template gradient_row<Head::form>(this->k + j * this->s.ld_d(), true, this->feature_k + j * ld_m,
                                                      this->d_feature + j * ld_m, this->d_row_log(j),
                                                      this->half_gradients + j, this->d_x + j * this->s.ld_d());
        });
        break;
      case GeneralStep::write_d_key:
        for_rows(keys, [&](int j) { this->write_d_key(j); });
        break;
      default:
        break;
    }
  }
  __device__ void add_row(const T* source, T* target) const {
    for_columns(this->s.m, [&](int f) { target[f] += source[f]; });
  }
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
