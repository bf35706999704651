#pragma once
#include <string>

namespace furlong {

/// Version of the program, e.g. "0.1.0".
std::string version();
/// The commit it was built from, with "-dirty" behind it when the tree had changes; "unknown" outside a repository.
std::string commit();

}  // namespace furlong
