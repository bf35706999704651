#include "framework/core/version.h"

#include "version_generated.h"

namespace furlong {

std::string version() { return FURLONG_VERSION; }
std::string commit() { return FURLONG_COMMIT; }

}  // namespace furlong
