#include "trainers/train/signals.h"

#include <csignal>

namespace furlong {
namespace {

volatile std::sig_atomic_t received_signal = 0;
constexpr int watched[] = {SIGTERM, SIGINT, SIGUSR1};
struct sigaction before[3];
int living = 0;

void remember(int signal) {
  if (signal == SIGINT && received_signal == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  received_signal = signal;
}

}  // namespace

StopRequests::StopRequests() {
  if (living++ > 0) return;
  received_signal = 0;
  struct sigaction action = {};
  action.sa_handler = remember;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (int i = 0; i < 3; ++i) sigaction(watched[i], &action, &before[i]);
}

StopRequests::~StopRequests() {
  if (--living > 0) return;
  for (int i = 0; i < 3; ++i) sigaction(watched[i], &before[i], nullptr);
}

bool StopRequests::received() const { return received_signal != 0; }

void StopRequests::check_before_writing(const std::filesystem::path& path) const {
  if (received()) throw StoppedBySignal("{}: not written: stopped by signal {}", path.string(), int{received_signal});
}

}  // namespace furlong
