#pragma once
// Listening sockets of the job store.
#include <vector>

#include "communication/job_store/socket.h"
#include "communication/job_store/store_server.h"

namespace furlong {

/// Listens on each local address that options.address resolves to, and on no other. Throws UserError if none of them
/// can be reached by the other ranks, or if the port is taken or not permitted.
std::vector<Socket> listen_for(const StoreServerOptions& options);

}  // namespace furlong
