#include "trainers/settings/attention_config.h"

namespace furlong {

layers::AttentionConfig attention_config(const Settings& settings) {
  const ModelSettings& model = settings.model;
  const AttentionSettings& attention = model.attention;
  layers::AttentionConfig config;
  config.mechanism = attention.mechanism;
  config.window = attention.window;
  config.softmax_window = attention.softmax_window;
  config.feature_map = attention.feature_map;
  config.n_features = attention.n_features;
  config.map_options.order = attention.order;
  if (attention.kernel_epsilon > 0)
    config.map_options.kernel_epsilon = config.compat_kernel_epsilon = attention.kernel_epsilon;
  config.map_options.most_features = attention.most_features;
  config.normalizer = attention.normalizer;
  config.centering = attention.centering;
  config.scaling = attention.scaling;
  config.denominator_guard = attention.denominator_guard;
  config.directions = attention.directions;
  config.redraw_every = attention.redraw_every;
  config.chunk_size = attention.chunk_size;
  config.compat = attention.compat;
  config.compat_stabilize = attention.compat_stabilize;
  config.projected_length = attention.projected_length;
  config.projection = attention.projection;
  config.sharing = attention.sharing;
  config.max_sequence_length = model.max_sequence_length;
  config.layer_mechanisms = attention.layers;
  config.head_mechanisms = attention.heads;
  config.n_heads = model.n_heads;
  config.n_kv_heads = model.n_key_value_heads;
  config.d_head = model.d_head;
  config.causal = model.architecture == "decoder";
  return config;
}

}  // namespace furlong
