#pragma once
// Debian's libgloo-dev leaves out this header, which those of Gloo's TCP transport include. These have the names and
// the layout of Gloo's own; where the package has it, that one is found first.
#include <memory>

namespace gloo {

/// Keeps an object from being destroyed that somebody else owns.
template <typename T>
class NonOwningPtr final {
  std::shared_ptr<T> ptr_;
};

/// Of which one can be had as long as the object is there.
template <typename T>
class WeakNonOwningPtr final {
 protected:
  std::weak_ptr<T> ptr_;
};

/// The object's own.
template <typename T>
class ShareableNonOwningPtr final {
 protected:
  std::shared_ptr<T> ptr_;
};

}  // namespace gloo
