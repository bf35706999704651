#pragma once
#include <string>

namespace furlong {

/// Returns the version of the program, e.g. "0.1.0".
std::string version();
/// Returns the commit of the build, with the suffix "-dirty" if the tree had changes; "unknown" outside a repository.
std::string commit();

}  // namespace furlong
