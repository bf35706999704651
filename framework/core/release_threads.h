#pragma once

namespace furlong {

/// Ends the waiting threads of parallel loops; the next loop starts others. Call it before a fork() whose child
/// computes: the child has none of these threads. No loop may run meanwhile.
void release_threads();

}  // namespace furlong
