#pragma once
// Where the store listens.
#include <vector>

#include "communication/job_store/socket.h"
#include "communication/job_store/store_server.h"

namespace furlong {

/// On each address that the name has on this host, and on no other. Throws UserError where that is none that the other
/// ranks reach, or the port cannot be had.
std::vector<Socket> listen_for(const StoreServerOptions& options);

}  // namespace furlong
