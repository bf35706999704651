#pragma once
// Replaces a header that Debian's libgloo-dev omits although the headers of Gloo's TCP transport include it. Names and
// layout equal Gloo's. If the package provides the header, that one is found first.
#include <memory>

namespace gloo {

/// Keeps an object that somebody else owns from being destroyed.
template <typename T>
class NonOwningPtr final {
  std::shared_ptr<T> ptr_;
};

/// Yields a NonOwningPtr as long as the object exists.
template <typename T>
class WeakNonOwningPtr final {
 protected:
  std::weak_ptr<T> ptr_;
};

/// Belongs to the object itself.
template <typename T>
class ShareableNonOwningPtr final {
 protected:
  std::shared_ptr<T> ptr_;
};

}  // namespace gloo
