#include "communication/gloo/gloo_mesh.h"
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
  EXPECT_EQ(own_address_toward("127.0.0.1", true), "127.0.0.1");
  EXPECT_EQ(own_address_toward("localhost", true), "127.0.0.1");
  EXPECT_EQ(own_address_toward("::1", true), "::1");
  const std::string message =
      store_testing::message_of<UserError>([] { own_address_toward("no-such-host.invalid", true); });
  EXPECT_NE(message.find("MASTER_ADDR: 'no-such-host.invalid' cannot be resolved"), std::string::npos) << message;
  EXPECT_EQ(own_address_toward("127.0.0.1", false), "127.0.0.1") << "the only address of this name";
}

/// Returns the addresses to try of a name that resolves to `hosts`.
std::vector<std::string> tried(const std::vector<std::string>& hosts, bool one_host) {
  std::vector<SocketAddress> addresses;
  std::string problem;
  for (const std::string& host : hosts) addresses.push_back(resolve(host, 1, problem).at(0));
  std::vector<std::string> out;
  for (const SocketAddress& address : addresses_to_try(addresses, one_host)) out.push_back(address.host());
  return out;
}

// As with /etc/hosts of Debian, where a host's own name also stands for 127.0.1.1.
TEST(Gloo, RanksOnSeveralHostsIgnoreLoopbackAddresses) {
  using Hosts = std::vector<std::string>;
  const Hosts both{"2001:db8::7", "127.0.1.1", "192.0.2.7"};
  EXPECT_EQ(tried(both, true), (Hosts{"127.0.1.1", "192.0.2.7", "2001:db8::7"}));
  EXPECT_EQ(tried(both, false), (Hosts{"192.0.2.7", "2001:db8::7"}));
  EXPECT_EQ(tried({"::1", "127.0.1.1"}, false), (Hosts{"127.0.1.1", "::1"})) << "nothing else exists";
}

// Rank 1 listens, but connects late.
TEST(Gloo, WarnsAboutRanksThatDoNotConnect) {
  Job job(2, [](Rank& self) {
    self.options.notice_after = 500ms;
    if (self.rank() == 0) {
      const LogCapture captured;
      const std::unique_ptr<Communicator> communicator = self.communicator();
      EXPECT_EQ(count_of("connecting the ranks has taken ", captured.text()), 1) << captured.text();
      EXPECT_EQ(count_of(" s: no connection to rank 1 on host host1 yet; check ", captured.text()), 1);
      self.store().set("connected", store_testing::bytes("yes"));
    } else {
      GlooMesh mesh(self.store(), self.options);
      std::this_thread::sleep_for(2s);
      mesh.connect();
      self.store().wait({"connected"}, 20s);
    }
    self.leave();
  });
  EXPECT_EQ(job.wait(), (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace furlong
