#pragma once
// Gloo's connections (pairs), made of sockets that are connected already. Gloo's own way listens at a port for each,
// takes whoever comes first for the peer, and ends the process at a byte that it does not expect.
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>

#include <memory>

#include "communication/job_store/socket.h"

namespace furlong {

/// A context of Gloo's TCP transport. Its createPair() makes pairs without a connection, and throws MachineError where
/// the system has no socket for one.
std::shared_ptr<gloo::transport::Context> make_adopting_context(const std::shared_ptr<gloo::transport::Device>& device,
                                                                int rank, int size);

/// Gives the pair of a rank in such a context its connection. Throws std::runtime_error where the context's connections
/// have been closed meanwhile.
void adopt(gloo::transport::Context& context, int rank, Socket socket);

}  // namespace furlong
