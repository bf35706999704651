#include "tests/communication/communicator_testing.h"

namespace furlong {
namespace {

using namespace communicator_testing;

TEST(Gloo, ConnectsOverIPv6) {
  run_job(2,
          [](Rank& self, Communicator& communicator) {
            EXPECT_EQ(self.options.address, "::1");
            const Tensor values = tensor<float>(1, self.rank(), 1000);
            communicator.all_reduce(Stream{}, values).wait();
            EXPECT_EQ(wrong_elements<float>(values, 1, 2, Reduction::sum), 0);
          },
          {.address = "::1"});
}

TEST(Gloo, OwnAddressMatchesTheRouteToThePeer) {
  EXPECT_EQ(own_address_toward("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(own_address_toward("localhost"), "127.0.0.1");
  EXPECT_EQ(own_address_toward("::1"), "::1");
  const std::string message = store_testing::message_of<UserError>([] { own_address_toward("no-such-host.invalid"); });
  EXPECT_NE(message.find("MASTER_ADDR: 'no-such-host.invalid' cannot be resolved"), std::string::npos) << message;
}

}  // namespace
}  // namespace furlong
