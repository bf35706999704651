#include "trainers/train/signals.h"

#include <array>
#include <csignal>

namespace furlong {
namespace {

volatile std::sig_atomic_t received_signal = 0;
constexpr std::array watched{SIGTERM, SIGINT, SIGUSR1, SIGHUP};
std::array<struct sigaction, watched.size()> before;
int living = 0;

void remember(int signal) {
  if (signal == SIGINT && received_signal == SIGINT) {
    sigaction(SIGINT, &before[1], nullptr);
    std::raise(SIGINT);  // delivered when this handler returns
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
  for (std::size_t i = 0; i < watched.size(); ++i) {
    sigaction(watched[i], nullptr, &before[i]);
    const bool under_nohup = watched[i] == SIGHUP && before[i].sa_handler == SIG_IGN;
    if (!under_nohup) sigaction(watched[i], &action, nullptr);
  }
}

StopRequests::~StopRequests() {
  if (--living > 0) return;
  for (std::size_t i = 0; i < watched.size(); ++i) sigaction(watched[i], &before[i], nullptr);
}

bool StopRequests::received() const { return received_signal != 0; }

void StopRequests::check_before_writing(const std::filesystem::path& path) const {
  if (received()) throw StoppedBySignal("{}: not written: stopped by signal {}", path.string(), int{received_signal});
}

}  // namespace furlong
