#pragma once
// Gloo pairs (connections) built on sockets that are already connected. Gloo of 2022 (Debian 12) listens at one port
// for each pair, accepts the first peer that connects, and terminates the process on an unexpected byte. Gloo of 2023
// (Debian 13) listens at one port for all pairs, as long as the device exists; running out of file descriptors there
// terminates the process.
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>

#include <memory>

#include "communication/job_store/socket.h"

namespace furlong {

/// Returns a context of Gloo's TCP transport whose createPair() makes pairs without a connection. createPair() throws
/// MachineError if the system cannot provide a socket.
std::shared_ptr<gloo::transport::Context> make_adopting_context(const std::shared_ptr<gloo::transport::Device>& device,
                                                                int rank, int size);

/// Connects a rank's pair of such a context through `socket`. Throws std::runtime_error if the context's connections
/// are already closed.
void adopt(gloo::transport::Context& context, int rank, Socket socket);

}  // namespace furlong
