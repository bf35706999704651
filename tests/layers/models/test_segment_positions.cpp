// Positions of a segment's tokens in context parallelism, where other ranks hold the other segments.
#include "tests/layers/models/decoder_testing.h"

namespace furlong::layers {
namespace {

using namespace furlong::layers::testing;
using furlong::reference::doubles;

/// A segment of a longer sequence whose other segments contribute nothing to attention.
class LoneSegment final : public ops::SegmentExchange {
 public:
  explicit LoneSegment(std::int64_t first) : first_(first) {}
  void exchange_keys(const Stream& stream, ops::LinearAttentionState& state, bool) override {
    state = ops::empty_like(stream, state);
  }
  void exchange_queries(const Stream& stream, ops::LinearAttentionState& state, bool) override {
    state = ops::empty_like(stream, state);
  }
  std::vector<std::int64_t> open_document_tokens() const override { return {}; }
  std::int64_t first_position() const override { return first_; }
  std::int64_t sequence_length() const override { return 2 * first_; }

 private:
  std::int64_t first_;
};

/// Returns the hidden states of tokens at positions from `first` on, in a model made for max_sequence_length tokens.
std::vector<double> hidden_from(std::int64_t first, Position position, std::int64_t max_sequence_length) {
  ModelConfig config = small_config({"linear", "elu1"}, position, 0, Style::gpt2);
  config.max_sequence_length = max_sequence_length;
  TestModel model(config, DType::float64);
  const Tensor tokens = random_tokens(2, 6, config);
  std::vector<std::int32_t> positions;
  for (std::int64_t i = 0; i < tokens.elements(); ++i) positions.push_back(static_cast<std::int32_t>(first + i % 6));
  LoneSegment segment(first);
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  ForwardContext context = Pass{}.context(tape);
  context.positions = Tensor::from(positions, tokens.shape());
  context.exchange = &segment;
  return doubles(model.decoder.hidden(context, tokens).value());
}

TEST(SegmentPositions, SinusoidalPositionsExtendBeyondMaxLength) {
  const std::vector<double> states = hidden_from(6, Position::sinusoidal, 48);
  EXPECT_EQ(hidden_from(6, Position::sinusoidal, 12), states);
  EXPECT_EQ(hidden_from(6, Position::sinusoidal, 4), states);
  EXPECT_EQ(hidden_from(6, Position::sinusoidal, 1'000'000'000'000), states) << "the table has the positions needed";
  EXPECT_NE(hidden_from(7, Position::sinusoidal, 48), states) << "positions make no difference";
}

TEST(SegmentPositions, RejectsTooFewLearnedPositions) {
  EXPECT_NO_THROW(hidden_from(6, Position::learned, 12));
  EXPECT_THROW(hidden_from(6, Position::learned, 11), ContractError);
}

}  // namespace
}  // namespace furlong::layers
