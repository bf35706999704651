// The raw Gloo operations of the benchmark give correct results.
#include "communication/gloo/raw_gloo.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/trainers/parallel_testing.h"

namespace furlong {
namespace {

using parallel_testing::Report;
using parallel_testing::run_world;

TEST(RawGlooTest, OperationsMatchReference) {
  for (const int size : {2, 3}) {
    run_world(size, [size](ProcessGroup& group, const Report&) {
      RawGloo raw(group);
      const auto rank = static_cast<float>(group.rank());
      const auto of_rank = [&](float value) { return Tensor::from(std::vector<float>(1000, value), {1000}); };
      int calls = 0;
      for (int again = 0; again < 2; ++again) {
        const Tensor sum = of_rank(rank + 1), root_values = of_rank(rank),
                     all = Tensor::zeros({size * 1000}, DType::float32);
        const Tensor sent = of_rank(rank), received = of_rank(-1);
        all.narrow(0, group.rank() * 1000, 1000).copy_from(of_rank(rank));
        const int next = (group.rank() + 1) % size, previous = (group.rank() + size - 1) % size;
        const double seconds = raw.time(3, [&] {
          if (calls++ % 3 == 0) raw.all_reduce(sum);
          raw.all_gather(all);
          raw.broadcast(root_values, 1);
          raw.barrier();
          raw.exchange(sent, next, received, previous);
        });
        EXPECT_GT(seconds, 0);
        EXPECT_EQ(sum.to_vector<float>(), std::vector<float>(1000, static_cast<float>(size * (size + 1) / 2)));
        EXPECT_EQ(root_values.to_vector<float>(), std::vector<float>(1000, 1.0f));
        EXPECT_EQ(received.to_vector<float>(), std::vector<float>(1000, static_cast<float>(previous)));
        for (int other = 0; other < size; ++other)
          EXPECT_EQ(all.narrow(0, other * 1000, 1000).to_vector<float>(),
                    std::vector<float>(1000, static_cast<float>(other)));
        // One message from rank 0 to the last rank; the others do not take part.
        raw.time(1, [&] {
          raw.exchange(sent, group.is_first() ? size - 1 : -1, received, group.rank() == size - 1 ? 0 : -1);
        });
        if (group.rank() == size - 1) {
          EXPECT_EQ(received.to_vector<float>(), std::vector<float>(1000, 0.0f));
        }
      }
      EXPECT_EQ(calls, 6);
    });
  }
}

}  // namespace
}  // namespace furlong
