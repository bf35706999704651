#include "communication/job_store/store_listeners.h"

#include <fmt/ranges.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "framework/core/error.h"

namespace furlong {
namespace {

[[noreturn]] void throw_cannot_listen(const StoreServerOptions& options, const SocketAddress& address, int error) {
  if (error == EADDRINUSE)
    throw UserError(
        "MASTER_PORT {}: the port is taken at {}, perhaps by another job on this host; set MASTER_PORT to a free port",
        options.port, address.host());
  if (error == EACCES)
    throw UserError("MASTER_PORT {}: no permission to listen there; set MASTER_PORT to a port above 1023",
                    options.port);
  throw MachineError("cannot listen at {}: {}", address.text(), error_text(error));
}

}  // namespace

std::vector<Socket> listen_for(const StoreServerOptions& options) {
  std::string problem;
  std::vector<SocketAddress> addresses = resolve(options.address, options.port, problem);
  if (addresses.empty())
    throw UserError("MASTER_ADDR '{}' names no host: {}; set it to rank 0's host name or address", options.address,
                    problem);
  std::vector<std::string> tried;
  bool reachable = options.one_host;
  for (const SocketAddress& address : addresses) {
    if (address.is_wildcard())
      throw UserError(
          "MASTER_ADDR '{}' stands for every network of this host; set it to the one address that the other ranks "
          "reach",
          options.address);
    reachable = reachable || !address.is_loopback();
    tried.push_back(address.host());
  }
  if (!reachable)
    throw UserError(
        "MASTER_ADDR '{}' is {} on rank 0's host {}, which other hosts cannot reach; set MASTER_ADDR to an address of "
        "a shared network",
        options.address, fmt::join(tried, " and "), options.host);
  std::vector<Socket> out;
  for (const SocketAddress& address : addresses) {
    try {
      out.push_back(listen_on(address));
    } catch (const std::system_error& failure) {
      const int error = failure.code().value();
      if (error != EADDRNOTAVAIL && error != EAFNOSUPPORT) throw_cannot_listen(options, address, error);
    }
    if (options.port == 0 && !out.empty()) break;  // a second address would get another port
  }
  if (out.empty())
    throw UserError("MASTER_ADDR '{}' ({}) is not an address of host {}, where rank 0 runs; set it to one of that host",
                    options.address, fmt::join(tried, " and "), options.host);
  return out;
}

}  // namespace furlong
