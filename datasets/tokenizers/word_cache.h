#pragma once
// A cache of the ids of words: text repeats its words, and a table lookup is much faster than a model.
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace furlong {

/// A direct-mapped table of short words. Not thread-safe.
class WordCache {
 public:
  WordCache() : slots_(n_slots) {}
  static constexpr std::size_t longest_word = 48;  ///< bytes; longer words rarely repeat

  /// Finds the ids of a word: a view that the next insert() invalidates. Returns false if the word is not in the cache.
  bool find(std::string_view word, std::uint64_t hash, std::span<const std::int32_t>& ids) const {
    const Slot& slot = slots_[hash % n_slots];
    if (slot.hash != hash || std::string_view(text_).substr(slot.text, slot.length) != word) return false;
    ids = std::span(ids_).subspan(slot.first_id, slot.n_ids);
    return true;
  }
  /// Stores the ids of a word. Clears the cache first if it is full.
  void insert(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids) {
    if (text_.size() + ids_.size() > max_stored) {
      slots_.assign(n_slots, Slot());
      text_.clear();
      ids_.clear();
    }
    slots_[hash % n_slots] = {hash, static_cast<std::uint32_t>(text_.size()), static_cast<std::uint32_t>(ids_.size()),
                              static_cast<std::uint32_t>(word.size()), static_cast<std::uint32_t>(ids.size())};
    text_ += word;
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t text = 0, first_id = 0, length = 0, n_ids = 0;
  };
  static constexpr std::size_t n_slots = 1 << 15, max_stored = 4 << 20;
  std::vector<Slot> slots_;
  std::string text_;
  std::vector<std::int32_t> ids_;
};

/// One cache per concurrent call, borrowed for the duration of the call. Thread-safe.
class WordCachePool {
 public:
  /// Returns a free cache, or a new one. Never blocks on other borrowers.
  std::unique_ptr<WordCache> borrow() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<WordCache>();
    std::unique_ptr<WordCache> cache = std::move(free_.back());
    free_.pop_back();
    return cache;
  }
  /// Returns a cache to the pool; its content is kept.
  void give_back(std::unique_ptr<WordCache> cache) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(cache));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> free_;
};

}  // namespace furlong
