#pragma once
// Gloo pairs (connections) built on sockets that are already connected. Gloo's own pairs listen at one port each,
// accept the first peer that connects, and terminate the process on an unexpected byte.
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
